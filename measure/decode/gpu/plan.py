"""The campaign of a machine with an NVIDIA GPU: Llama-3.1-8B with RocketKV as deployed."""

from __future__ import annotations

import functools
import gc
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from essim.methods.routing import Early
from essim.methods.selectors.rocketkv import RocketKV
from essim.model.shape import PRESETS
from measure.decode.gpu.cache import (
    DENSE_BLOCK_TOKENS,
    KV_BLOCK_TOKENS,
    PagedKVCache,
    block_tokens,
)
from measure.decode.gpu.loop import GpuDecode
from measure.decode.gpu.routing import make_mailbox
from measure.decode.shared.cells import WARM_UP_STEPS, Cell, Plan, Run, grid
from measure.decode.shared.loop import Settings
from measure.decode.shared.modes import GPU_MODES, check_mode
from measure.decode.shared.weights import Weights
from measure.harness.gpu import require_gpu
from measure.harness.hashes import gpu_decode_hash
from measure.harness.machine import thread_count
from measure.harness.router_timing import LATENT, READ_QUERY, last_ticket, sample
from measure.kernels.cpu_router.abi import Pages
from measure.kernels.handover.mailbox import GpuMailbox
from measure.tables.gpu.machine import gpu_facts

MODEL = PRESETS["llama-3.1-8b"]
PROMPT_BUDGET, PAGE_TOKENS, RANK, CHANNELS, SEED = 4096, 4, 128, 32, 0
BATCHES, POSITIONS, ATTENDED = (1, 2, 4, 8, 16), (4480, 7424, 11520), (128, 256)
# The state of the host: so many calls of each kind, idle as long before each as a table's.
PROBE_CALLS, PROBE_IDLE_S = 200, 20e-6
# Capacities are multiples of it: kernels are compiled for them.
CAPACITY_TOKENS = 256
# The published shortcut for 32 layers.
MIX: tuple[Early, ...] = tuple("mid" if layer <= 20 else "in" for layer in range(1, MODEL.layers))


def make_plan(modes: Sequence[str] | None, quick: bool, steps: int | None) -> Plan:
    """Return the default campaign: 240 cells, 18 if quick; ``cpu-mix`` at the first budget alone.

    Raises
    ------
    AbsentError
        If there is no GPU, or a mode does not exist.
    """
    for mode in modes or ():
        check_mode(mode, gpu=True)
    require_gpu()
    points = ((1, 8), POSITIONS[:1], ATTENDED[:1]) if quick else (BATCHES, POSITIONS, ATTENDED)
    cells = tuple(
        cell
        for cell in grid(modes or GPU_MODES, *points)
        if cell.mode != "cpu-mix" or cell.attended_tokens == ATTENDED[0]
    )
    steps = steps or 16
    threads = min(8, max(1, thread_count() - 1))
    runs = GroupRuns(steps, threads)
    return Plan(
        cells=cells,
        make_run=runs.run,
        steps=steps,
        dtype="bf16",
        source_hash=gpu_decode_hash(),
        facts=gpu_facts()
        | {
            "model": MODEL.name,
            "selector": selector(ATTENDED[0]).model_dump(mode="json"),
            "dense_kv_block_tokens": DENSE_BLOCK_TOKENS,
            "rank": RANK,
            "channels": CHANNELS,
            "router_threads": threads,
            "mix": list(MIX),
            "seed": SEED,
            "summaries": "of the cache on the GPU; in the CPU router's pool random codes",
        },
        trace_step=runs.trace_step,
        group=_group,
        host=lambda: runs.host,
        release=runs.release,
    )


def selector(attended_tokens: int) -> RocketKV:
    """RocketKV with a budget of attended tokens, the tail page not counted."""
    return RocketKV(
        prompt_budget=PROMPT_BUDGET,
        page_tokens=PAGE_TOKENS,
        top_pages=attended_tokens // PAGE_TOKENS,
        kv_block_tokens=KV_BLOCK_TOKENS,
    )


def _group(cell: Cell) -> object:
    return cell.batch, cell.position_tokens, cell.attended_tokens


class _Placed:
    """A run whose cache holds noise already."""

    def __init__(self, run: GpuDecode) -> None:
        self._run = run

    def set_position(self, tokens: int) -> None:
        self._run.set_position(tokens, noise=False)

    def steps(self, count: int) -> list[float]:
        return self._run.steps(count)


@dataclass
class GroupRuns:
    """Makes runs; those of the last group of cells are kept, and share caches and pool.

    Attributes
    ----------
    host
        The state of the host before and after each group with a pool, see `_probe`.
    """

    steps: int
    threads: int
    _of: object = None
    _at: Cell | None = None
    _caches: dict[int, PagedKVCache] = field(default_factory=dict)
    _mailbox: GpuMailbox | None = None
    _runs: dict[str, GpuDecode] = field(default_factory=dict)
    host: list[dict[str, float]] = field(default_factory=list)

    def run(self, cell: Cell) -> AbstractContextManager[Run]:
        """Return a cell's run, which leaving does not close."""
        if _group(cell) != self._of:
            self.release()
            self._of = _group(cell)
        if cell.mode not in self._runs:
            self._runs[cell.mode] = self._made(cell)
        return nullcontext(_Placed(self._runs[cell.mode]))

    def trace_step(self, cell: Cell) -> dict[str, Any]:
        """Return a cell's step in the Chrome trace format, after a few to warm up."""
        self.run(cell)
        traced = self._made(cell, trace=True)
        traced.set_position(cell.position_tokens, noise=False)
        traced.steps(WARM_UP_STEPS)
        return traced.chrome_trace()

    def release(self) -> None:
        """Free what the last group held."""
        if self._mailbox is not None:
            self._probe()
            self._mailbox.router.close()
        self._of, self._runs, self._caches, self._mailbox = None, {}, {}, None
        gc.collect()
        torch.cuda.empty_cache()

    def _probe(self) -> None:
        """Time routes on the group's pool as a table's are timed, and a read of their bytes."""
        assert self._mailbox is not None
        assert self._at is not None
        torch.cuda.synchronize()
        router, cell = self._mailbox.router, self._at
        timed = {
            name: sample(router, kind, cell.position_tokens, PROBE_IDLE_S, PROBE_CALLS)
            for name, kind in (("route_s", LATENT), ("read_s", READ_QUERY))
        }
        # The GPU counts on from the last route that the CPU asked for.
        self._mailbox._state[0] = last_ticket(router)
        about = {"batch": cell.batch, "context_tokens": cell.position_tokens}
        means = {name: float(seconds.mean()) for name, seconds in timed.items()}
        self.host.append(about | {"threads": self.threads} | means)

    def _made(self, cell: Cell, *, trace: bool = False) -> GpuDecode:
        room = cell.position_tokens + self.steps + WARM_UP_STEPS
        capacity = -(-room // CAPACITY_TOKENS) * CAPACITY_TOKENS
        block = block_tokens(cell.mode)
        if block not in self._caches:
            self._caches[block] = PagedKVCache(MODEL, cell.batch, capacity, block)
            self._caches[block].fill_noise(torch.Generator("cuda").manual_seed(SEED))
        cache = self._caches[block]
        cache.tokens = capacity  # summaries are made of all of it
        chosen = selector(ATTENDED[0] if cell.mode == "dense" else cell.attended_tokens)
        if cell.mode.startswith("cpu") and self._mailbox is None:
            pages = Pages(PAGE_TOKENS, chosen.top_pages or 1, CHANNELS)
            self._mailbox = make_mailbox(
                weights(), cache, pages, self.threads, RANK, noise=SEED + 1
            )
            self._at = cell
            self._probe()
        settings = Settings(
            model=MODEL,
            selector=chosen,
            mode=cell.mode,
            batch=cell.batch,
            capacity_tokens=capacity,
            rank=RANK,
            channels=CHANNELS,
            threads=self.threads,
            mix=MIX if cell.mode == "cpu-mix" else None,
            seed=SEED,
            trace=trace,
        )
        mailbox = self._mailbox if cell.mode.startswith("cpu") else None
        return GpuDecode(settings, weights=weights(), cache=cache, mailbox=mailbox)


@functools.cache
def weights() -> Weights:
    """The plan's weights, made once."""
    return Weights.random(MODEL, SEED, "cuda", torch.bfloat16)
