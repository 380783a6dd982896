"""Every path of the CPU router against the float64 reference."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from float64 import router as ref
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from essim.errors import AbsentError
from measure.harness.router_timing import last_ticket, spans_s
from measure.kernels import numbers
from measure.kernels.cpu_router.abi import ISAS, STORAGES, RouterShape
from measure.kernels.cpu_router.library import available_isas
from measure.kernels.cpu_router.router import Router, fold_norm

ENCODE = {"e5m2": ref.to_e5m2, "bf16": numbers.to_bf16}
DECODE: dict[str, Callable[[Any], npt.NDArray[np.float64]]] = {
    "e5m2": ref.from_e5m2,
    "bf16": numbers.from_bf16,
}
EPS = 1e-5
# fp32 sums of 32 products and an exp2 good to 1e-7; avx512bf16 reads subnormal e5m2 codes as zero.
SCORE_RTOL = 3e-4

few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> npt.NDArray[np.uint16]:
    return numbers.to_bf16(scale * rng.standard_normal(shape))


def pointer(values: npt.NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(values.ctypes.data)


def last_query(router: Router) -> npt.NDArray[np.float64]:
    s = router.shape
    bits = np.empty((s.batch, s.heads, s.head_dim), np.uint16)
    router.lib.essim_query(router.pool, pointer(bits))
    return numbers.from_bf16(bits)


def last_choice(router: Router, sequence: int, kv_head: int, pages: int) -> tuple[Any, Any, Any]:
    """Channels, whether they read max, and the summed score of each page."""
    codes = np.empty(router.shape.channels, np.int32)
    group = np.empty(pages, np.float32)
    router.lib.essim_choice(router.pool, sequence, kv_head, pointer(codes), pointer(group), pages)
    return codes & ~(1 << 30), codes >> 30 == 1, group.astype(np.float64)


def check_pages(chosen: npt.NDArray[np.int32], scores: npt.NDArray[np.float64], k: int) -> None:
    """`k` best pages, ascending, then -1; a page may differ only within rounding of the k-th."""
    count = min(k, len(scores))
    pages = chosen[:count]
    assert (chosen[count:] == -1).all()
    assert ((pages >= 0) & (pages < len(scores))).all()
    assert (np.diff(pages) > 0).all()
    if count < len(scores):
        kth = np.sort(scores)[-count]
        rest = np.delete(scores, pages)
        assert scores[pages].min() >= kth * (1 - 2 * SCORE_RTOL) - 1e-30
        assert rest.max() <= kth * (1 + 2 * SCORE_RTOL) + 1e-30


@st.composite
def routers(draw: st.DrawFn) -> tuple[RouterShape, dict[str, Any], np.random.Generator]:
    group, kv_heads = draw(st.sampled_from([1, 3, 4, 5, 8, 16])), draw(st.sampled_from([1, 2, 3]))
    dim = draw(st.sampled_from([32, 64, 128]))
    shape = RouterShape(
        layers=draw(st.sampled_from([2, 7])),  # with few layers no worker helps another
        batch=draw(st.integers(1, 3)),
        heads=group * kv_heads,
        kv_heads=kv_heads,
        head_dim=dim,
        page_tokens=draw(st.integers(1, 5)),
        capacity_tokens=900,
        top_pages=draw(st.sampled_from([1, 5, 32, 100, 140, 300])),
        channels=draw(st.sampled_from([1, 7, 32, dim])),
        rank=draw(st.sampled_from([2, 64, 130])),
        hidden=draw(st.sampled_from([32, 416])),
    )
    options = {
        "threads": draw(st.integers(1, 3)),
        "storage": draw(st.sampled_from(STORAGES)),
        "row_pages": draw(st.sampled_from([64, 256, 4096])),
        "pin": False,
        "prefetch_bytes": draw(st.sampled_from([0, 100_000])),
        "prefetch_chunks": draw(st.integers(0, 2)),
    }
    return shape, options, np.random.default_rng(draw(st.integers(0, 2**32)))


def check_route(
    router: Router, kind: Any, tokens: npt.NDArray[np.int32], rng: np.random.Generator
) -> None:
    """Fill layer 1, route it, and compare every intermediate value."""
    s = router.shape
    group = s.heads // s.kv_heads
    keys = [normal(rng, int(n), s.kv_heads, s.head_dim) for n in tokens]
    up = normal(rng, s.rank, s.heads * s.head_dim, scale=s.rank**-0.5)
    down, norm = normal(rng, s.hidden, s.rank, scale=s.hidden**-0.5), normal(rng, s.hidden)
    table = numbers.rope_table(1000, s.head_dim)
    width = {"query": s.heads * s.head_dim, "latent": s.rank, "hidden": s.hidden}[kind]
    values = normal(rng, s.batch, width, scale=2.0)
    positions = rng.integers(0, 1000, s.batch).astype(np.int32)
    router.set_rope(table)
    router.set_up(1, up)
    router.set_down(1, down, norm)
    for sequence, own in enumerate(keys):
        router.build(1, sequence, own)
    router.lib.essim_keep(router.pool, 1)
    chosen = router.route(1, kind, values, positions, tokens)

    if kind == "query":
        query = numbers.from_bf16(values).reshape(s.batch, s.heads, s.head_dim)
    else:
        latents, slack = numbers.from_bf16(values), 1e-6
        if kind == "hidden":
            latents = ref.latent(latents, numbers.from_bf16(fold_norm(down, norm)), EPS)
            latents, slack = numbers.from_bf16(numbers.to_bf16(latents)), 2.0**-8
        weights = numbers.from_bf16(up).reshape(s.rank, s.heads, s.head_dim)
        expected = ref.project(latents, weights, table[positions].astype(np.float64))
        query = last_query(router)
        bound = np.abs(latents).max() * np.abs(weights).sum(axis=0).max()
        assert (np.abs(query - expected) <= 2.0**-8 * np.abs(expected) + slack * bound).all()
    for sequence, own in enumerate(keys):
        low, high = ref.page_summaries(numbers.from_bf16(own), s.page_tokens)
        codes = router.summaries(1, sequence, len(own))
        for plane, exact in enumerate((low, high)):
            expected_codes = ENCODE[router.storage](exact.transpose(1, 0, 2))
            np.testing.assert_array_equal(codes[:, :, plane], expected_codes)
        pages = ref.routable_pages(int(tokens[sequence]), s.page_tokens)
        for g in range(s.kv_heads):
            if pages == 0:
                assert (chosen[sequence, g] == -1).all()
                continue
            own_query = query[sequence, g * group : (g + 1) * group]
            values_of = DECODE[router.storage](codes[g, :pages])
            channels, reads_max, scores = last_choice(router, sequence, g, pages)
            expected_channels, expected_max = ref.choose_channels(own_query, s.channels)
            np.testing.assert_array_equal(channels, expected_channels)
            np.testing.assert_array_equal(reads_max, expected_max)
            exact = ref.page_scores(own_query, values_of[:, 0], values_of[:, 1], s.channels)
            np.testing.assert_allclose(scores, exact, rtol=SCORE_RTOL, atol=1e-30)
            check_pages(chosen[sequence, g], exact, s.top_pages)


@pytest.mark.parametrize("isa", ISAS)
@few
@given(case=routers(), kind=st.sampled_from(["query", "latent", "hidden"]), data=st.data())
def test_a_route_equals_the_reference(isa: str, case: Any, kind: Any, data: st.DataObject) -> None:
    if isa not in available_isas():
        pytest.skip(f"no {isa} here")
    shape, options, rng = case
    tokens = data.draw(st.lists(st.integers(1, 900), min_size=shape.batch, max_size=shape.batch))
    with Router(shape, isa=isa, **options) as router:
        check_route(router, kind, np.array(tokens, np.int32), rng)


def test_more_sequences_than_a_tile_has_rows_equal_the_reference() -> None:
    rng = np.random.default_rng(0)
    shape = RouterShape(
        layers=2,
        batch=19,
        heads=10,
        kv_heads=2,
        head_dim=64,
        page_tokens=4,
        capacity_tokens=600,
        top_pages=20,
        channels=48,
        rank=64,
        hidden=64,
    )
    with Router(shape, 2, pin=False) as router:
        tokens = rng.integers(1, 600, shape.batch).astype(np.int32)
        check_route(router, "latent", tokens, rng)


def test_the_pool_says_when_it_saw_a_route_and_when_it_was_done() -> None:
    shape = RouterShape(2, 1, 4, 2, 64, 4, 400, 8, 16)
    one = np.array([300], np.int32)
    with Router(shape, 2, pin=False) as router:
        router.build(0, 0, normal(np.random.default_rng(0), 400, 2, 64))
        assert last_ticket(router) == 0
        start = time.monotonic()
        for _ in range(3):
            router.route(0, "query", np.full((1, 256), 0x3F80, np.uint16), one, one)
        end = time.monotonic()
        assert last_ticket(router) == 3
        spans = spans_s(router, 3, 3)
    assert spans.shape == (3, 2)
    assert start < spans.min() < spans.max() < end
    # One route is outstanding at a time: the next is seen when this one has ended.
    assert (np.diff(spans.ravel()) >= 0).all()


def test_a_worker_that_stands_still_holds_no_route_up() -> None:
    """The others take over its tasks."""
    rng, tokens = np.random.default_rng(3), np.array([800, 3, 555], np.int32)
    shape = RouterShape(7, 3, 8, 2, 64, 4, 800, 10, 16, rank=64, hidden=64)
    with Router(shape, 2, pin=False) as router:
        router.lib.essim_stall(router.pool, 1, 1)
        time.sleep(0.05)
        for kind in ("latent", "query", "latent"):
            check_route(router, kind, tokens, rng)
        router.lib.essim_stall(router.pool, 1, 0)
        check_route(router, "hidden", tokens, rng)


def test_with_few_layers_an_update_may_be_behind_and_nobody_helps() -> None:
    shape = RouterShape(5, 2, 8, 2, 64, 4, 800, 10, 16)
    query, tokens = np.full((2, 512), 0x3F80, np.uint16), np.array([800, 555], np.int32)
    with Router(shape, 2, pin=False, timeout_s=0.5) as router:
        router.lib.essim_stall(router.pool, 1, 1)
        time.sleep(0.05)
        with pytest.raises(AbsentError, match=r"stand still: \[1\]"):
            router.route(1, "query", query, tokens, tokens)


@pytest.mark.parametrize("isa", ISAS)
@few
@given(case=routers(), data=st.data())
def test_updates_equal_a_rebuild(isa: str, case: Any, data: st.DataObject) -> None:
    if isa not in available_isas():
        pytest.skip(f"no {isa} here")
    shape, options, rng = case
    steps = data.draw(st.integers(1, 9))
    starts = np.array([data.draw(st.integers(0, 300)) for _ in range(shape.batch)], np.int32)
    keys = [normal(rng, int(n) + steps, shape.kv_heads, shape.head_dim) for n in starts]
    with Router(shape, isa=isa, **options) as grown, Router(shape, isa=isa, **options) as rebuilt:
        for sequence, own in enumerate(keys):
            grown.build(1, sequence, own[: starts[sequence]])
            rebuilt.build(1, sequence, own)
        for step in range(steps):
            new = np.stack([own[n + step] for own, n in zip(keys, starts, strict=True)])
            grown.update(1, new, starts + np.int32(step))
        query = normal(rng, shape.batch, shape.heads * shape.head_dim)
        tokens = starts + np.int32(steps)
        first, second = (
            router.route(1, "query", query, tokens, tokens) for router in (grown, rebuilt)
        )
        np.testing.assert_array_equal(first, second)
        for sequence, own in enumerate(keys):
            np.testing.assert_array_equal(
                grown.summaries(1, sequence, len(own)), rebuilt.summaries(1, sequence, len(own))
            )


@pytest.mark.parametrize("isa", ISAS)
def test_every_bf16_key_is_rounded_as_the_reference_does(isa: str) -> None:
    if isa not in available_isas():
        pytest.skip(f"no {isa} here")
    codes = np.arange(65536, dtype=np.uint16)
    keys = codes[(codes & 0x7F80) != 0x7F80].reshape(-1, 1, 64)  # finite
    shape = RouterShape(1, 1, 1, 1, 64, 1, len(keys), 1, 1)
    with Router(shape, 1, isa=isa, pin=False) as router:
        router.build(0, 0, keys)
        got = router.summaries(0, 0, len(keys))
    expected = ref.to_e5m2(numbers.from_bf16(keys[:, 0]))
    np.testing.assert_array_equal(got[0, :, 0], expected)
    np.testing.assert_array_equal(got[0, :, 1], expected)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (0.0, 0x00),
        (-0.0, 0x00),
        (1.0, 0x3C),
        (1.125, 0x3C),
        (1.375, 0x3E),
        (-1.5, 0xBE),
        (57344.0, 0x7B),
        (1e6, 0x7B),
        (-1e6, 0xFB),
        (2.0**-16, 0x01),
        (2.0**-17, 0x00),
        (1.5 * 2.0**-16, 0x02),
        (-(2.0**-20), 0x00),
        (2.0**-14, 0x04),
    ],
)
def test_e5m2_codes(value: float, code: int) -> None:
    assert ref.to_e5m2(np.array([value]))[0] == code


def test_a_score_by_hand() -> None:
    # One head, two channels of four kept: q = (3, -1, 0, 2) keeps 0 and 3, both read max.
    query = np.array([[3.0, -1.0, 0.0, 2.0]])
    high = np.array([[1.0, 9, 9, 0], [0, 9, 9, 1], [0, 9, 9, 0]])
    scores = ref.page_scores(query, high - 5, high, 2)
    scale = np.sqrt(4 * 5 / 6)
    weights = np.exp(np.array([3.0, 2.0, 0.0]) / scale)
    np.testing.assert_allclose(scores, weights / weights.sum(), rtol=1e-14)
    assert ref.top_pages(scores, 2).tolist() == [0, 1]


def test_the_number_of_threads_changes_nothing() -> None:
    shape = RouterShape(2, 3, 8, 2, 64, 4, 2000, 32, 16, rank=64)
    rng = np.random.default_rng(5)
    keys, up = normal(rng, 3, 2000, 2, 64), normal(rng, 64, 512, scale=0.125)
    latent, tokens = normal(rng, 3, 64), np.array([2000, 3, 777], np.int32)
    routes = []
    for threads in (1, 2, 3, 7):
        with Router(shape, threads, pin=False) as router:
            router.set_rope(numbers.rope_table(2000, 64))
            router.set_up(0, up)
            for sequence in range(3):
                router.build(0, sequence, keys[sequence])
            routes += [router.route(0, "latent", latent, tokens - 1, tokens) for _ in range(20)]
    for route in routes[1:]:
        np.testing.assert_array_equal(route, routes[0])


def test_equal_scores_go_to_the_lowest_pages() -> None:
    shape = RouterShape(1, 1, 4, 1, 64, 1, 500, 40, 64)
    for isa in available_isas():
        with Router(shape, 1, isa=isa, pin=False) as router:
            router.build(0, 0, np.full((500, 1, 64), 0x3F80, np.uint16))
            query = np.zeros((1, 256), np.uint16)  # a zero query scores every page the same
            one = np.array([500], np.int32)
            assert router.route(0, "query", query, one, one)[0, 0].tolist() == list(range(40))
