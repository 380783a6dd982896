"""Decode runs that cheat or break: the checks notice, and nobody waits long."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

from decodes import CHANNELS, PAGE, tiny  # noqa: E402
from float64 import router as ref  # noqa: E402
from float64.decode import step_errors  # noqa: E402
from float64.errors import floats  # noqa: E402

from essim.errors import AbsentError, InputError  # noqa: E402
from measure.kernels import numbers  # noqa: E402

CPU = ["cpu-target", "cpu-in", "cpu-mid", "cpu-mix"]
Cheat = Callable[[Any, Any], None]


def answer_for_another_layer(loop: Any, patch: Any) -> None:
    post = loop.router.post
    patch.setattr(loop.router, "post", lambda layer, *rest: post(layer % 3 + 1, *rest))


def give_pages_of_the_step_before(loop: Any, patch: Any) -> None:
    pages, before = loop.pool.pages, {}

    def late(layer: int, count: int) -> Any:
        now = pages(layer, count)
        old, before[layer] = before.get(layer, now), now
        return old

    patch.setattr(loop.pool, "pages", late)


def always_choose_the_first_pages(loop: Any, patch: Any) -> None:
    pages = loop.pool.pages

    def fixed(layer: int, count: int) -> Any:
        return torch.arange(count, dtype=torch.int32).expand_as(pages(layer, count))

    patch.setattr(loop.pool, "pages", fixed)


def lose_new_keys(loop: Any, patch: Any) -> None:
    patch.setattr(loop.pool, "post_key", lambda *rest: None)


def hand_keys_over_a_step_late(loop: Any, patch: Any) -> None:
    """A page's last key then misses the first scan of that page."""
    post_key, waiting = loop.pool.post_key, {}

    def late(layer: int, key: Any, slot: int) -> None:
        if layer in waiting:
            post_key(layer, *waiting[layer])
        waiting[layer] = key.clone(), slot

    patch.setattr(loop.pool, "post_key", late)


def mix_up_keys_of_sequences(loop: Any, patch: Any) -> None:
    post_key = loop.pool.post_key
    patch.setattr(
        loop.pool, "post_key", lambda layer, key, slot: post_key(layer, key.flip(0), slot)
    )


def route_at_a_position_too_early(loop: Any, patch: Any) -> None:
    publish = loop.pool.publish
    patch.setattr(
        loop.pool, "publish", lambda n, kind, x, at, tokens: publish(n, kind, x, at - 1, tokens)
    )


def worst_errors(mode: str, cheat: Cheat | None, patch: Any) -> dict[str, float]:
    worst: dict[str, float] = {}
    with tiny(mode) as loop:
        loop.set_position(70, evicted_tokens=3)
        if cheat is not None:
            cheat(loop, patch)
        for _ in range(18):
            taken_in = loop.sampled.clone()
            loop.step()
            for name, error in step_errors(loop, taken_in, CHANNELS, PAGE).items():
                worst[name] = max(error, worst.get(name, 0.0))
    return worst


@pytest.mark.parametrize("mode", CPU)
@pytest.mark.parametrize(
    "cheat",
    [
        answer_for_another_layer,
        give_pages_of_the_step_before,
        always_choose_the_first_pages,
        lose_new_keys,
        hand_keys_over_a_step_late,
        mix_up_keys_of_sequences,
    ],
)
def test_the_checks_notice_routing_that_cheats(mode: str, cheat: Cheat, monkeypatch) -> None:
    errors = worst_errors(mode, cheat, monkeypatch)
    assert errors["selection"] > 0.02
    # What the wrong pages lead to is computed as before.
    assert errors["logits"] < 2e-5


@pytest.mark.parametrize("mode", CPU)
def test_without_a_cheat_the_same_run_is_sound(mode: str, monkeypatch) -> None:
    errors = worst_errors(mode, None, monkeypatch)
    assert errors["selection"] < 1e-3
    assert errors["query"] < 1e-2


@pytest.mark.parametrize("mode", ["cpu-in", "cpu-mid", "cpu-mix"])
def test_a_proxy_at_the_wrong_position_is_noticed(mode: str, monkeypatch) -> None:
    errors = worst_errors(mode, route_at_a_position_too_early, monkeypatch)
    assert errors["query"] > 0.1


@pytest.mark.parametrize("mode", CPU)
def test_routing_that_is_skipped_ends_the_run(mode: str, monkeypatch) -> None:
    with tiny(mode) as loop:
        loop.set_position(70)
        loop.step()
        monkeypatch.setattr(loop.pool, "publish", lambda *rest: None)
        with pytest.raises(InputError, match="no route of layer 1 was posted"):
            loop.step()


@pytest.mark.parametrize("mode", CPU)
def test_summaries_hold_the_keys_up_to_the_last_step(mode: str) -> None:
    with tiny(mode) as loop:
        loop.set_position(69)
        for tokens in (70, 71, 72, 73):
            loop.step()
            loop.pool.drain()
            for layer, sequence in ((1, 0), (3, 1)):
                keys = floats(loop.cache.keys(layer))[sequence].transpose(1, 0, 2)
                rounded = numbers.from_bf16(numbers.to_bf16(keys))
                low, high = ref.page_summaries(rounded, PAGE)
                codes = loop.router.summaries(layer, sequence, tokens)
                np.testing.assert_array_equal(codes[:, :, 0], ref.to_e5m2(low).swapaxes(0, 1))
                np.testing.assert_array_equal(codes[:, :, 1], ref.to_e5m2(high).swapaxes(0, 1))


@pytest.mark.parametrize("mode", ["cpu-target", "cpu-in", "cpu-mid"])
@pytest.mark.parametrize(("threads", "dead"), [(1, 0), (2, 1)])
def test_a_dead_worker_ends_the_run_within_a_second(mode: str, threads: int, dead: int) -> None:
    with tiny(mode, threads=threads) as loop:
        loop.set_position(70)
        loop.step()
        loop.router.lib.essim_stall(loop.router.pool, dead, 1)
        assert loop.router.timeout_s < 1
        with pytest.raises(AbsentError, match=rf"stand still: \[(0, )?{dead}\]"):
            loop.step()


def test_updates_wait_for_a_slot_and_none_is_lost() -> None:
    with tiny("cpu-mid") as loop:
        loop.set_position(70)
        loop.router.lib.essim_stall(loop.router.pool, 0, 1)
        time.sleep(0.05)
        keys = torch.randn(5, 2, 2, 32, generator=torch.Generator().manual_seed(1))
        for i in range(4):
            loop.pool.post_key(1, keys[i], 72 + i)
        with pytest.raises(AbsentError, match="did not update"):
            loop.pool.post_key(1, keys[4], 76)
        loop.router.lib.essim_stall(loop.router.pool, 0, 0)
        loop.pool.post_key(1, keys[4], 76)
        loop.pool.drain()
        codes = loop.router.summaries(1, 1, 77)[:, 18:]
        rounded = numbers.from_bf16(numbers.to_bf16(floats(keys)[:, 1]))
        np.testing.assert_array_equal(codes[:, 0, 0], ref.to_e5m2(rounded[:4].min(0)))
        np.testing.assert_array_equal(codes[:, 0, 1], ref.to_e5m2(rounded[:4].max(0)))
        np.testing.assert_array_equal(codes[:, 1, 0], ref.to_e5m2(rounded[4]))


def test_a_closed_run_gives_threads_and_cores_back() -> None:
    before = torch.get_num_threads(), os.sched_getaffinity(0)
    with tiny("cpu-mid", pin=True) as loop:
        assert torch.get_num_threads() == 1
        router = loop.router
    assert (torch.get_num_threads(), os.sched_getaffinity(0)) == before
    with pytest.raises(InputError, match="already closed"):
        router.stalled()
