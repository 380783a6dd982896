"""Decode steps of shapes that no table has: ``python -m measure.studies.shapes --out DIR``.

``DIR/NAME/decode.csv`` and ``provenance.json`` are those of ``python -m measure.decode``, for other
models on a GPU. They say how far prices carried over from measured shapes are off; nothing is
fitted to them.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from essim.model.shape import ModelShape
from measure.decode.gpu.cache import PagedKVCache, block_tokens
from measure.decode.gpu.loop import GpuDecode
from measure.decode.gpu.plan import CAPACITY_TOKENS, CHANNELS, RANK, SEED, selector
from measure.decode.main import tell, write_provenance
from measure.decode.shared.cells import WARM_UP_STEPS, Cell, Plan, Run, grid, write_traces
from measure.decode.shared.cells import run as run_cells
from measure.decode.shared.loop import Settings
from measure.decode.shared.weights import Weights
from measure.harness.gpu import require_gpu
from measure.harness.hashes import gpu_decode_hash
from measure.tables.gpu.machine import gpu_facts

STEPS, BATCHES, POSITIONS, ATTENDED = 16, (1, 4, 12), (4480, 9472), 128
MODES = ("dense", "gpu-target-fused", "gpu_side-mid-fused")
# Its kernels take groups that are powers of two.
STEPWISE_MODES = ("gpu-target", "gpu_side-mid")
_KEYS = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab")


def _shape(name: str, *sizes: int) -> ModelShape:
    fields: dict[str, Any] = dict(zip(_KEYS, sizes, strict=True))
    return ModelShape(name=name, head_dim=128, **fields)


# Integers of published config.json files; the heads' output is as wide as they say, or not tied.
SHAPES = (
    _shape("qwen2.5-3b", 36, 2048, 16, 2, 11008, 151936),
    _shape("qwen3-4b", 36, 2560, 32, 8, 9728, 151936),
    _shape("yi-6b", 32, 4096, 32, 4, 11008, 64000),
    _shape("ministral-8b", 36, 4096, 32, 8, 12288, 131072),
    _shape("mistral-nemo-12b", 40, 5120, 32, 8, 14336, 131072),
    _shape("phi-4", 40, 5120, 40, 10, 17920, 100352),
)


class _Placed:
    """A run whose cache holds noise already."""

    def __init__(self, run: GpuDecode) -> None:
        self._run = run

    def set_position(self, tokens: int) -> None:
        self._run.set_position(tokens, noise=False)

    def steps(self, count: int) -> list[float]:
        return self._run.steps(count)


@dataclass
class ShapeRuns:
    """Makes the runs of one shape; those of one batch and position share caches."""

    model: ModelShape
    weights: Weights
    _of: object = None
    _caches: dict[int, PagedKVCache] = field(default_factory=dict)
    _runs: dict[str, GpuDecode] = field(default_factory=dict)

    def run(self, cell: Cell) -> AbstractContextManager[Run]:
        """Return a cell's run, which leaving does not close."""
        if group(cell) != self._of:
            self._of, self._runs, self._caches = group(cell), {}, {}
            gc.collect()
            torch.cuda.empty_cache()
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

    def _made(self, cell: Cell, *, trace: bool = False) -> GpuDecode:
        room = cell.position_tokens + STEPS + WARM_UP_STEPS
        capacity = -(-room // CAPACITY_TOKENS) * CAPACITY_TOKENS
        block = block_tokens(cell.mode)
        if block not in self._caches:
            self._caches[block] = PagedKVCache(self.model, cell.batch, capacity, block)
            self._caches[block].fill_noise(torch.Generator("cuda").manual_seed(SEED))
        cache = self._caches[block]
        cache.tokens = capacity  # summaries are made of all of it
        settings = Settings(
            self.model,
            selector(ATTENDED),
            cell.mode,
            cell.batch,
            capacity,
            seed=SEED,
            rank=RANK,
            channels=CHANNELS,
            trace=trace,
        )
        return GpuDecode(settings, weights=self.weights, cache=cache)


def group(cell: Cell) -> object:
    """Return what cells that share caches have in common."""
    return cell.batch, cell.position_tokens


def plan_of(model: ModelShape, batches: Sequence[int], positions: Sequence[int]) -> Plan:
    """Return the cells of one shape."""
    queries = model.heads // model.kv_heads
    modes = MODES + STEPWISE_MODES * (queries & (queries - 1) == 0)
    runs = ShapeRuns(model, Weights.random(model, SEED, "cuda", torch.bfloat16))
    sizes = {key: getattr(model, key) for key in (*_KEYS, "head_dim")}
    about = {"model": model.name, "sizes": sizes, "rank": RANK, "channels": CHANNELS, "seed": SEED}
    return Plan(
        cells=grid(modes, batches, positions, (ATTENDED,)),
        make_run=runs.run,
        steps=STEPS,
        dtype="bf16",
        source_hash=gpu_decode_hash(),
        facts=gpu_facts() | about | {"selector": selector(ATTENDED).model_dump(mode="json")},
        trace_step=runs.trace_step,
        group=group,
    )


def main() -> None:
    """Time the shapes asked for, one after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shapes", nargs="*", default=[shape.name for shape in SHAPES])
    args = parser.parse_args()
    require_gpu()
    for model in (shape for shape in SHAPES if shape.name in args.shapes):
        folder = args.out / model.name
        plan = plan_of(model, BATCHES, POSITIONS)
        command = "python -m measure.studies.shapes --out DIR"
        write_provenance(folder / "provenance.json", plan, command)
        run_cells(plan, folder / "decode.csv", tell)
        write_traces(plan, folder)
        del plan
        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
