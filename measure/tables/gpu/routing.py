"""Tables of an NVIDIA GPU: how a launch is priced, GPU routing, and what it costs beside.

A price is marginal: the time of one launch in a chain of dependent launches inside a CUDA graph,
on inputs that rotate so that what a decode step finds cold is cold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch

from measure.harness.campaign import Bench, Place, Ready, grid, held_out
from measure.harness.gpu import Launch, cold_sets
from measure.harness.hashes import table_hash
from measure.kernels.chain import Chain, Shape
from measure.kernels.flow import projection
from measure.kernels.gpu_router.fused import router as router_fused
from measure.kernels.gpu_router.stepwise import router as router_stepwise
from measure.kernels.numbers import rope_table
from measure.tables.gpu.layer import (
    LAYERS,
    SMALL,
    Sampler,
    added,
    difference,
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

    def prepare(place: Place) -> Ready:
        release()
        batch = int(place.get("batch", place.get("rows", 0)))
        if table in SMALL and batch <= DECODE_ROWS:
            return Ready(small_op(table, batch), None, LAYER_CALLS, LAYER_WINDOWS)
        launches, moved = make(place)
        if slot:
            return Ready(added(batch, launches, slot), None, LAYER_CALLS, LAYER_WINDOWS)
        if batch > DECODE_ROWS:
            return Ready(chained(launches, min(least, 4)), moved or None, min(calls, 8))
        return Ready(chained(launches, least), moved or None, calls)

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
        prepare=prepare,
        dtype=dtype,
        source_hash=table_hash(table, "GPU"),
        reference=IN_A_LAYER if slot or table in SMALL else IN_A_CHAIN,
        holds_for=holds_for,
        jumps=jumps or {},
    )


def layer_sets(set_bytes: int) -> int:
    """Sets of inputs for the layers around an op: one each, where there is memory for them."""
    return max(1, min(LAYERS, MOST_BYTES // max(set_bytes, 1)))


def integers(place: Place, *axes: str) -> list[int]:
    """Return a place's values on some axes as whole numbers."""
    return [int(place[axis]) for axis in axes]


def router_benches() -> list[Bench]:
    """Return both GPU routers, the proxy projection, and what a router costs beside the stream."""
    axes = {"batch": ROUTER_BATCHES, "context_tokens": CONTEXTS}

    def proxy(place: Place) -> tuple[list[Launch], int]:
        if place["projection_rank"] == "full":
            return _full_proxies(int(place["batch"]))
        return _proxies(int(place["batch"]), down_only=False)

    def down(place: Place) -> tuple[list[Launch], int]:
        return _proxies(int(place["batch"]), down_only=True)

    batch = {"batch": BATCHES}
    weights = {"hidden": [SHAPE.hidden], "projection_rank": [SHAPE.rank]}
    return [
        gpu_bench(
            "gpu_route_fused",
            axes | {"top_pages": TOP_PAGES},
            _fused,
            ROUTER | {"channels": [32]},
            dtype="e5m2",
            slot="route",
            jumps=JUMPS,
        ),
        gpu_bench(
            "gpu_route_stepwise",
            axes,
            _stepwise,
            # Its top-k is a radix over all pages, however many are wanted.
            ROUTER | {"top_pages": ["{}..{}".format(*TOP_PAGES)]},
            dtype="e5m2",
            slot="route",
            jumps=JUMPS,
        ),
        gpu_bench(
            "gpu_proxy",
            batch,
            proxy,
            HEADS | {"hidden": [SHAPE.hidden], "projection_rank": [SHAPE.rank, "full"]},
            keys={"projection_rank": (SHAPE.rank, "full")},
        ),
        gpu_bench("proxy_down", batch, down, weights, slot="anchor"),
    ]


def _fused(place: Place) -> tuple[list[Launch], int]:
    """Return fused routers on summaries in rotation, and the bytes of one scan."""
    batch, tokens, top = integers(place, "batch", "context_tokens", "top_pages")
    moved = batch * SHAPE.kv_heads * ((tokens - 1) // 4) * 32
    first = router_fused.random_router(batch, tokens, top=top)
    return [router_fused.random_router(batch, tokens, like=first) for _ in range(LAYERS)], moved


def _stepwise(place: Place) -> tuple[list[Launch], int]:
    """Return stepwise routers on summaries in rotation, and the bytes of one scan."""
    batch, tokens = integers(place, "batch", "context_tokens")
    moved = batch * SHAPE.kv_heads * ((tokens - 1) // 4) * 256
    first = router_stepwise.random_router(batch, tokens)
    return [router_stepwise.random_router(batch, tokens, like=first) for _ in range(LAYERS)], moved


def _proxies(batch: int, *, down_only: bool) -> tuple[list[Launch], int]:
    """Return the proxy projection of rank 128, or its first factor alone, on rotating weights."""
    table = torch.as_tensor(rope_table(4096, SHAPE.dim)).cuda()
    anchor = torch.randn(batch, SHAPE.hidden).bfloat16()
    latents = torch.randn(batch, SHAPE.rank).bfloat16()
    context = torch.full((batch,), 4096, dtype=torch.int32)
    group = SHAPE.heads // SHAPE.kv_heads
    query = torch.empty(batch, SHAPE.kv_heads, group, SHAPE.dim).bfloat16()
    moved = SHAPE.rank * SHAPE.hidden * 2 * (1 if down_only else 2)

    def one(down: torch.Tensor, up: torch.Tensor) -> Launch:
        def launch() -> None:
            projection.project_down(anchor, down, latents)
            if not down_only:
                projection.project_up(latents, up, table, context, query)

        return launch

    launches = [
        one(
            torch.randn(SHAPE.rank, SHAPE.hidden).bfloat16(),
            torch.randn(SHAPE.heads * SHAPE.dim, SHAPE.rank).bfloat16(),
        )
        for _ in range(cold_sets(moved))
    ]
    return launches, moved


def _full_proxies(batch: int) -> tuple[list[Launch], int]:
    """Return the proxy projection by the whole W_q, on rotating weights."""
    table = torch.as_tensor(rope_table(4096, SHAPE.dim)).cuda()
    anchor, normed = (torch.randn(batch, SHAPE.hidden).bfloat16() for _ in range(2))
    gain, context = torch.ones(SHAPE.hidden).bfloat16(), torch.full((batch,), 4096).int()
    group, width = SHAPE.heads // SHAPE.kv_heads, SHAPE.heads * SHAPE.dim
    query = torch.empty(batch, SHAPE.kv_heads, group, SHAPE.dim).bfloat16()
    moved = width * SHAPE.hidden * 2
    weights = [torch.randn(width, SHAPE.hidden).bfloat16() for _ in range(cold_sets(moved))]

    def launch(weight: torch.Tensor) -> None:
        projection.project_full(anchor, gain, weight, table, context, normed, query)

    return [partial(launch, weight) for weight in weights], moved


def side_stream_bench() -> Bench:
    """Return what a router beside the main stream costs it, per routed layer of a whole step."""
    shape = Shape(layers=LAYERS + 1, vocab=2048)
    axes = {"batch": (1, 2, 4, 8, 16), "context_tokens": CONTEXTS, "top_pages": TOP_PAGES}
    steps: dict[tuple[int, ...], tuple[Chain, Sampler]] = {}

    def prepare(place: Place) -> Ready:
        batch, tokens, top = at = tuple(integers(place, *axes))
        if at not in steps:
            steps.clear()
            release()
            chain = Chain(shape, batch, tokens, top_pages=top)
            steps[at] = chain, replays(chain.launches())
        chain, plain = steps[at]
        chain.routing, chain.kernel = "side", str(place["kernel"])
        beside = replays(chain.launches())
        chain.routing = "none"
        return Ready(difference(beside, plain, LAYERS, 5), None, LAYER_CALLS, LAYER_WINDOWS)

    kernels = ("stepwise", "fused")

    def both(places: Sequence[Place]) -> tuple[Place, ...]:
        return tuple({"kernel": kernel} | dict(place) for place in places for kernel in kernels)

    return Bench(
        table="gpu_side_slowdown",
        keys=("kernel",),
        axes=tuple(axes),
        points=both(grid(**axes)),
        heldout=both(held_out(0, axes, UNITS)),
        prepare=prepare,
        dtype="bf16",
        source_hash=table_hash("gpu_side_slowdown", "GPU"),
        reference="a step with the router on a second stream minus the step without, per routed "
        "layer; rank-128 proxy on the second stream, forked after o_proj",
        holds_for=ROUTER | {"anchor": ["mid"], "projection_rank": [SHAPE.rank], "channels": [32]},
        jumps=JUMPS,
    )
