"""Decode steps on a GPU against float64, link by link, in every mode of a small shape."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from cuda import require_cuda

require_cuda()
torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

from float64.decode import float64_step, step_errors  # noqa: E402
from float64.errors import floats, relative_error  # noqa: E402

from essim.errors import AbsentError  # noqa: E402
from essim.methods.selectors.dense import Dense  # noqa: E402
from essim.methods.selectors.rocketkv import RocketKV  # noqa: E402
from essim.model.shape import ModelShape  # noqa: E402
from measure.decode.gpu.cache import KV_BLOCK_TOKENS, PagedKVCache  # noqa: E402
from measure.decode.gpu.loop import GpuDecode  # noqa: E402
from measure.decode.gpu.routing import GpuRouters, PoolRouting, SideRouting  # noqa: E402
from measure.decode.shared.loop import Settings  # noqa: E402
from measure.decode.shared.modes import GPU_MODES  # noqa: E402
from measure.decode.shared.prefill import prefill  # noqa: E402

SMALL = ModelShape(
    name="small",
    layers=6,
    hidden=512,
    heads=8,
    kv_heads=2,
    head_dim=128,
    ffn=1024,
    vocab=1000,
    max_context_tokens=1024,
)
PAGE, CHANNELS, BATCH, CAPACITY = 4, 32, 2, 512
# Of BF16 activations through six layers; a wrong page, key or position gives ten times as much.
BOUNDS = {"logits": 0.03, "input": 0.02, "query": 0.02, "selection": 0.02}
FAILED_WITHIN_S = 1.0


def settings(mode: str, top_pages: int = 5) -> Settings:
    """Of the small shape."""
    selector = RocketKV(
        prompt_budget=64, page_tokens=PAGE, top_pages=top_pages, kv_block_tokens=KV_BLOCK_TOKENS
    )
    return Settings(
        SMALL,
        selector,
        mode,
        BATCH,
        CAPACITY,
        rank=128,
        channels=CHANNELS,
        threads=2,
        mix=["in", "mid", "mid", "in", "mid"] if mode == "cpu-mix" else None,
        capture=True,
    )


def worst_errors(run: GpuDecode, steps: int) -> dict[str, float]:
    """The worst of some steps, link by link."""
    worst: dict[str, float] = {}
    for _ in range(steps):
        taken_in = run.sampled.clone()
        run.step()
        for link, error in step_errors(run, taken_in, CHANNELS, PAGE).items():
            worst[link] = max(worst.get(link, 0.0), error)
    return worst


@pytest.mark.parametrize("mode", GPU_MODES)
def test_steps_over_page_borders_and_after_a_prefill(mode: str, check) -> None:
    with GpuDecode(settings(mode)) as run:
        run.set_position(150, evicted_tokens=37)
        for link, error in worst_errors(run, 6).items():
            check({link: error}, BOUNDS[link])
        run.prefill(120)
        for link, error in worst_errors(run, 3).items():
            check({f"{link} after a prefill": error}, BOUNDS[link])


@pytest.mark.parametrize("mode", GPU_MODES[1:])
def test_all_pages_give_the_logits_of_dense_attention(mode: str, check) -> None:
    # The same noise in the same blocks.
    cache = PagedKVCache(SMALL, BATCH, CAPACITY, KV_BLOCK_TOKENS)
    with GpuDecode(settings("dense"), cache=cache) as dense:
        dense.set_position(150)
        dense.step()
        expected = floats(dense.logits)
    with GpuDecode(settings(mode, top_pages=48)) as run:
        run.set_position(150)
        run.step()
        check({"logits": relative_error(floats(run.logits), expected)}, BOUNDS["logits"])


def left_out(routers: GpuRouters, layer: int) -> None:
    """Choose no pages."""


def late(pool: PoolRouting, layer: int) -> None:
    """Wait for the answer and leave the pages as they are."""
    pool.mailbox.take(None)
    pool.forget()


fork = SideRouting.fork


def of_another_layer(side: SideRouting, layer: int, anchor: torch.Tensor) -> None:
    """Route with the factors of another layer."""
    factors = dict(side.factors)
    side.factors[layer] = factors[layer - 1 or len(factors)]
    fork(side, layer, anchor)
    side.factors[layer] = factors[layer]


@pytest.mark.parametrize(
    ("mode", "where", "name", "cheat"),
    [
        ("gpu-target", GpuRouters, "route", left_out),
        ("cpu-target", PoolRouting, "take", late),
        ("cpu-mid", PoolRouting, "take", late),
        ("gpu_side-mid-fused", SideRouting, "fork", of_another_layer),
    ],
)
def test_a_cheat_is_past_a_bound(
    mode: str, where: type, name: str, cheat: Callable[..., Any], check
) -> None:
    with patch.object(where, name, cheat), GpuDecode(settings(mode)) as run:
        run.set_position(150)
        errors = worst_errors(run, 4)
    noticed = any(error > BOUNDS[link] for link, error in errors.items())
    check({"goes unnoticed": float(not noticed)}, 0.0)


def test_a_worker_that_stands_still_ends_the_run_within_a_second(check) -> None:
    with GpuDecode(replace(settings("cpu-mid"), capture=False)) as run:
        run.set_position(150)
        assert run.mailbox is not None
        router = run.mailbox.router
        router.lib.essim_stall(router.pool, 0, 1)
        start = time.perf_counter()
        try:
            with pytest.raises(AbsentError):
                run.steps(4)
            seconds = time.perf_counter() - start
        finally:
            router.lib.essim_stall(router.pool, 0, 0)
    assert int(torch.ones(8).sum()) == 8  # the GPU stays usable
    check({"seconds to the error": seconds}, FAILED_WITHIN_S)


def test_logits_of_a_prefill_are_those_of_a_step_that_takes_its_last_token_in(check) -> None:
    prompt = torch.arange(7, 127)
    with GpuDecode(settings("dense")) as run:
        cached, logits = prefill(run.weights, Dense(), prompt, run.cache.rope)
        cos_sin = np.stack([floats(part[len(prompt) - 1]) for part in run.cache.rope])
        cache = [(floats(keys), floats(values)) for keys, values in cached]
        last = prompt[-1:].cpu().numpy()
        expected = float64_step(run.weights, last, cache, {}, PAGE, cos_sin).logits
    check({"logits": relative_error(floats(logits), expected)}, BOUNDS["logits"])
