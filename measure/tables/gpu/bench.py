"""Tables of an NVIDIA GPU: how a launch is priced.

A price is marginal: the time of one launch in a chain of dependent launches inside a CUDA graph,
on inputs that rotate so that what a decode step finds cold is cold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from measure.harness.campaign import Bench, Place, Ready, grid, held_out
from measure.harness.gpu import Launch
from measure.harness.hashes import table_hash
from measure.kernels.chain import Shape
from measure.tables.gpu.layer import (
    LAYERS,
    SMALL,
    Sampler,
    added,
    release,
    replays,
    small_op,
)

SHAPE = Shape()
HEADS: dict[str, Sequence[int | str]] = {
    "heads": [SHAPE.heads],
    "kv_heads": [SHAPE.kv_heads],
    "head_dim": [SHAPE.dim],
}
CACHE = HEADS | {"kv_dtype": ["bf16"]}
ROUTER = HEADS | {"page_tokens": [4], "summary_dtype": ["fp8"], "selector": ["rocketkv"]}
BATCHES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 17, 20, 24, 28, 32)
# Of routers: the fused one spreads its work otherwise from batch 3, 9 and 17 on.
ROUTER_BATCHES = (1, 2, 3, 4, 6, 8, 9, 12, 16, 17, 24, 32)
CONTEXTS = (4096, 6144, 8192, 10240, 12288)
# Right after them a scan is spread otherwise, or over a power of two of pages twice as large.
JUMPS = {"context_tokens": (4096, 8192)}
TOP_PAGES = (32, 64)
ROUTER_AXES = {"batch": ROUTER_BATCHES, "context_tokens": CONTEXTS}
# Of other selectors' routers, which choose so many tokens.
SELECTOR_AXES = {
    "batch": (1, 2, 4, 8, 16, 32),
    "context_tokens": (2048, 4096, 8192, 16384, 32768, 65536),
}
SELECTED_TOKENS = 2048
PROMPTS = (
    *(512, 1024, 1536, 2048, 3072, 4096, 5120, 6144, 8192, 10240, 12288),
    *(16384, 20480, 24576, 28672, 32768, 36864, 40960),
)

# Rows up to which an op is launch-bound and its neighbours matter.
DECODE_ROWS = 64
# Samples of a price that is a difference: each is a median of several replays.
LAYER_CALLS, LAYER_WINDOWS = 10, 5
# Units of held-out points: kernels are compiled for capacities that are multiples of them, pages
# are whole.
UNITS = {"context_tokens": 64, "selected_tokens": 16, "payload_bytes": 256}
# Memory that the inputs of one point may take.
MOST_BYTES = 40 << 30

IN_A_CHAIN = "marginal time in a chain inside a CUDA graph, cold inputs in rotation"
IN_A_LAYER = "what it adds to a layer's chain inside a CUDA graph; over 64 rows, in its own chain"

Make = Callable[[Place], tuple[list[Launch], int]]


def chained(launches: Sequence[Launch], least: int = 48) -> Sampler:
    """Return a sampler: a replay of a graph of at least `least` launches, per launch."""
    rounds = -(-least // len(launches))
    sample = replays([*launches] * rounds)
    return lambda: sample() / (rounds * len(launches))


def median_s(sample: Sampler, calls: int = 30) -> float:
    """Return the median of some samples after a few more."""
    return float(np.median([sample() for _ in range(calls)][calls // 5 :]))


def gpu_bench(
    table: str,
    axes: Mapping[str, Sequence[int]],
    make: Make,
    holds_for: Mapping[str, Sequence[int | str]],
    *,
    keys: Mapping[str, Sequence[int | str]] | None = None,
    dtype: str = "bf16",
    least: int = 48,
    calls: int = 20,
    slot: str = "",
    jumps: Mapping[str, Sequence[int]] | None = None,
) -> Bench:
    """Return the bench of a table; `make` gives a point's launches in rotation and their bytes.

    With `slot`, decode points are priced by what the op adds to a layer there; ops of the layer
    itself (`SMALL`) by what they add to its GEMMs.
    """

    def with_keys(places: Sequence[Place]) -> tuple[Place, ...]:
        every = [key | dict(place) for key in map(dict, grid(**(keys or {}))) for place in places]
        # Batch by batch: the layers around an op are set up once each.
        return tuple(sorted(every, key=lambda at: at.get("batch", 0)))

    return Bench(
        table=table,
        keys=tuple(keys or {}),
        axes=tuple(axes),
        points=with_keys(grid(**axes)),
        heldout=with_keys(held_out(0, axes, UNITS)),
        prepare=partial(_prepared, table, make, least, calls, slot),
        dtype=dtype,
        source_hash=table_hash(table, "GPU"),
        reference=IN_A_LAYER if slot or table in SMALL else IN_A_CHAIN,
        holds_for=holds_for,
        jumps=jumps or {},
    )


def _prepared(table: str, make: Make, least: int, calls: int, slot: str, place: Place) -> Ready:
    """Set a point up, see `gpu_bench`."""
    release()
    batch = int(place.get("batch", place.get("rows", 0)))
    if table in SMALL and batch <= DECODE_ROWS:
        return in_a_layer(small_op(table, batch))
    launches, moved = make(place)
    if slot:
        return in_a_layer(added(batch, launches, slot))
    if batch > DECODE_ROWS:
        return Ready(chained(launches, min(least, 4)), moved or None, min(calls, 8))
    return Ready(chained(launches, least), moved or None, calls)


def in_a_layer(sampler: Sampler) -> Ready:
    """Return a point that is timed as a difference: each sample is a median of several replays."""
    return Ready(sampler, None, LAYER_CALLS, LAYER_WINDOWS)


def layer_sets(set_bytes: int) -> int:
    """Sets of inputs for the layers around an op: one each, where there is memory for them."""
    return max(1, min(LAYERS, MOST_BYTES // max(set_bytes, 1)))


def integers(place: Place, *axes: str) -> list[int]:
    """Return a place's values on some axes as whole numbers."""
    return [int(place[axis]) for axis in axes]
