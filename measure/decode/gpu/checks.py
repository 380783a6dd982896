"""Decode steps on a GPU against float64, link by link, in every mode of a small shape."""

from __future__ import annotations

import time
from collections.abc import Iterator
from unittest.mock import patch

import torch

from essim.errors import AbsentError
from essim.methods.selectors.rocketkv import RocketKV
from essim.model.shape import ModelShape
from measure.decode.gpu.cache import KV_BLOCK_TOKENS, PagedKVCache
from measure.decode.gpu.loop import GpuDecode
from measure.decode.gpu.routing import GpuRouters, PoolRouting, SideRouting
from measure.decode.shared.modes import GPU_MODES
from measure.decode.shared.reference import floats, step_errors
from measure.kernels.compare import relative_error

Row = tuple[str, float, float]

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
PAGE, CHANNELS, RANK, BATCH, CAPACITY = 4, 32, 128, 2, 512
# Of BF16 activations through six layers; a wrong page, key or position gives ten times as much.
BOUNDS = {"logits": 0.03, "input": 0.02, "query": 0.02, "selection": 0.02}
FAILED_WITHIN_S = 1.0


def small(
    mode: str,
    top_pages: int = 5,
    *,
    threads: int = 2,
    capture: bool = True,
    cache: PagedKVCache | None = None,
) -> GpuDecode:
    """Return a run of the small shape."""
    selector = RocketKV(
        prompt_budget=64, page_tokens=PAGE, top_pages=top_pages, kv_block_tokens=KV_BLOCK_TOKENS
    )
    return GpuDecode(
        SMALL,
        selector,
        mode,
        BATCH,
        CAPACITY,
        threads=threads,
        rank=RANK,
        channels=CHANNELS,
        mix=["in", "mid", "mid", "in", "mid"] if mode == "cpu-mix" else None,
        capture=capture,
        cache=cache,
    )


def decode_rows() -> Iterator[Row]:
    """Every mode after a set position, over page borders, and after a prefill; then a dead pool."""
    for mode in GPU_MODES:
        with small(mode) as run:
            run.set_position(150, evicted_tokens=37)
            yield from _stepped(f"decode {mode}", run, 6)
            run.prefill(120)
            yield from _stepped(f"decode {mode} after a prefill", run, 3)
    yield from _all_pages()
    yield from _cheats()
    yield _dead_worker()


def _stepped(name: str, run: GpuDecode, steps: int) -> Iterator[Row]:
    worst: dict[str, float] = {}
    for _ in range(steps):
        taken_in = run.sampled.clone()
        run.step()
        for link, error in step_errors(run, taken_in, CHANNELS, PAGE).items():
            worst[link] = max(worst.get(link, 0.0), error)
    for link, error in worst.items():
        yield f"{name}: {link}", error, BOUNDS[link]


def _all_pages() -> Iterator[Row]:
    """With a budget of the whole context, logits are those of dense attention."""
    # The same noise in the same blocks.
    cache = PagedKVCache(SMALL, BATCH, CAPACITY, KV_BLOCK_TOKENS)
    with small("dense", cache=cache) as dense:
        dense.set_position(150)
        dense.step()
        expected = floats(dense.logits)
    for mode in GPU_MODES[1:]:
        with small(mode, top_pages=48) as run:
            run.set_position(150)
            run.step()
            error = relative_error(floats(run.logits), expected)
            yield f"decode {mode}: all pages against dense", error, BOUNDS["logits"]


def _cheats() -> Iterator[Row]:
    """Routing that is left out, late, or of another layer: each must be past a bound."""

    def stale(pool: PoolRouting, layer: int) -> None:
        """Wait for the answer and leave the pages as they are."""
        pool.mailbox.take(None)
        pool.forget()

    def other(side: SideRouting, layer: int, anchor: torch.Tensor) -> None:
        """Route with the factors of another layer."""
        factors = dict(side.factors)
        side.factors[layer] = factors[layer - 1 or len(factors)]
        fork(side, layer, anchor)
        side.factors[layer] = factors[layer]

    fork = SideRouting.fork
    cheats = (
        ("gpu-target", GpuRouters, "route", lambda routers, layer: None),
        ("cpu-target", PoolRouting, "take", stale),
        ("cpu-mid", PoolRouting, "take", stale),
        ("gpu_side-mid-fused", SideRouting, "fork", other),
    )
    for mode, where, name, cheat in cheats:
        with patch.object(where, name, cheat), small(mode) as run:
            run.set_position(150)
            rows = list(_stepped(mode, run, 4))
        noticed = any(error > bound for _, error, bound in rows)
        yield f"decode {mode}: a cheat goes unnoticed", float(not noticed), 0.0


def _dead_worker() -> Row:
    """A worker that stands still ends the run within a second, and the GPU stays usable."""
    with small("cpu-mid", capture=False) as run:
        run.set_position(150)
        assert run.mailbox is not None
        router = run.mailbox.router
        router.lib.essim_stall(router.pool, 0, 1)
        start = time.perf_counter()
        try:
            run.steps(4)
            seconds = float("inf")
        except AbsentError:
            seconds = time.perf_counter() - start
        router.lib.essim_stall(router.pool, 0, 0)
    if int(torch.ones(8).sum()) != 8:
        seconds = float("inf")
    return "decode cpu-mid: a dead worker, seconds to the error", seconds, FAILED_WITHIN_S
