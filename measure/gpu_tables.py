"""Tables of an NVIDIA GPU: how a launch is priced, GPU routing, and what it costs beside.

A price is marginal: the time of one launch in a chain of dependent launches inside a CUDA graph,
on inputs that rotate so that what a decode step finds cold is cold.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from measure.campaign import Bench, Place, Ready, grid, held_out
from measure.gpu import Launch, capture, cold_sets, replay_s
from measure.hashes import gpu_hash
from measure.kernels import flow, projection, router_fused, router_stepwise
from measure.kernels.chain import Chain, Shape
from measure.kernels.reference import rope_table

SHAPE = Shape()
HEADS: dict[str, Sequence[int | str]] = {
    "heads": [SHAPE.heads],
    "kv_heads": [SHAPE.kv_heads],
    "head_dim": [SHAPE.dim],
}
CACHE = HEADS | {"kv_dtype": ["bf16"]}
PAGES: dict[str, Sequence[int | str]] = {"page_tokens": [4], "top_pages": [32]}
ROUTER = HEADS | PAGES | {"summary_dtype": ["fp8"], "selector": ["rocketkv"]}
BATCHES = (1, 2, 4, 8, 16, 32)
ROUTER_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
CONTEXTS = (4096, 6144, 8192, 12288)
PROMPTS = (512, 1024, 2048, 4096, 6144, 8192, 16384, 28672, 40960)

# Rows up to which an op is launch-bound and its neighbours matter.
DECODE_ROWS = 64

Make = Callable[[Place], tuple[list[Launch], int]]


def chained(launches: Sequence[Launch], least: int = 48) -> Callable[[], float]:
    """Return a sampler: a replay of a graph of at least `least` launches, per launch.

    Replays are enqueued ten at a time: a GPU that waits for the CPU to launch a graph would count
    that wait, some 20 us, as the chain's.
    """
    rounds = -(-least // len(launches))
    graph = capture([*launches] * rounds)
    ready: list[float] = []

    def sample() -> float:
        if not ready:
            ready.extend(replay_s(graph, 10, warm_ups=1))
        return ready.pop() / (rounds * len(launches))

    return sample


def after_gemms(op: Launch, rows: int) -> Callable[[], float]:
    """Return a sampler of what `op` adds to a chain of GEMMs when it comes after each.

    A small op on what a GEMM has just written waits for the GEMM's tail and delays the next one's
    start: in a chain of its own it would look a third faster than in a layer.
    """
    n, k = SHAPE.qkv, SHAPE.hidden
    hidden, out = torch.randn(rows, k).bfloat16(), torch.empty(rows, n, dtype=torch.bfloat16)
    weights = [torch.randn(n, k, dtype=torch.bfloat16) for _ in range(8)]
    gemms = [lambda w=w: flow.gemm(hidden, w, out) for w in weights]
    alone = chained(gemms)
    between = chained([launch for gemm in gemms for launch in (gemm, op)])
    return lambda: max(2 * between() - alone(), 1e-9)


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
    inside: bool = False,
) -> Bench:
    """Return the bench of a table; `make` gives a point's launches in rotation and their bytes.

    With `inside`, decode rows are priced by what the op adds to a chain of GEMMs.
    """

    def prepare(place: Place) -> Ready:
        gc.collect()
        torch.cuda.empty_cache()
        launches, moved = make(place)
        rows = int(place.get("rows", 0))
        if rows > DECODE_ROWS:
            return Ready(chained(launches, min(least, 4)), moved or None, min(calls, 8))
        if inside and rows <= DECODE_ROWS:
            return Ready(after_gemms(launches[0], rows), None, calls)
        return Ready(chained(launches, least), moved or None, calls)

    def with_keys(places: Sequence[Place]) -> tuple[Place, ...]:
        return tuple(
            key | dict(place) for key in map(dict, grid(**(keys or {}))) for place in places
        )

    return Bench(
        table=table,
        keys=tuple(keys or {}),
        axes=tuple(axes),
        points=with_keys(grid(**axes)),
        heldout=with_keys(held_out(0, **axes)),
        prepare=prepare,
        dtype=dtype,
        source_hash=gpu_hash(),
        reference="marginal time in a chain inside a CUDA graph, cold inputs in rotation"
        + ("; decode rows: what it adds to a chain of GEMMs" if inside else ""),
        holds_for=holds_for,
    )


def integers(place: Place, *axes: str) -> list[int]:
    """Return a place's values on some axes as whole numbers."""
    return [int(place[axis]) for axis in axes]


def router_benches() -> list[Bench]:
    """Return both GPU routers, the proxy projection, and what a router costs beside the stream."""
    axes = {"batch": ROUTER_BATCHES, "context_tokens": CONTEXTS}

    def fused(place: Place) -> tuple[list[Launch], int]:
        batch, tokens = integers(place, "batch", "context_tokens")
        moved = batch * SHAPE.kv_heads * ((tokens - 1) // 4) * 32
        first = router_fused.random_router(batch, tokens)
        sets = cold_sets(moved, 512)
        return [router_fused.random_router(batch, tokens, like=first) for _ in range(sets)], moved

    def stepwise(place: Place) -> tuple[list[Launch], int]:
        batch, tokens = integers(place, "batch", "context_tokens")
        moved = batch * SHAPE.kv_heads * ((tokens - 1) // 4) * 256
        first = router_stepwise.random_router(batch, tokens)
        sets = cold_sets(moved, 96)
        return [
            router_stepwise.random_router(batch, tokens, like=first) for _ in range(sets)
        ], moved

    def proxy(place: Place) -> tuple[list[Launch], int]:
        return _proxies(int(place["batch"]), down_only=False)

    def down(place: Place) -> tuple[list[Launch], int]:
        return _proxies(int(place["batch"]), down_only=True)

    batch = {"batch": BATCHES}
    weights = {"hidden": [SHAPE.hidden], "projection_rank": [SHAPE.rank]}
    return [
        gpu_bench("gpu_route_fused", axes, fused, ROUTER | {"channels": [32]}, dtype="e5m2"),
        gpu_bench("gpu_route_stepwise", axes, stepwise, ROUTER, dtype="e5m2"),
        gpu_bench("gpu_proxy", batch, proxy, weights | HEADS),
        gpu_bench("proxy_down", batch, down, weights),
    ]


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


def side_stream_bench() -> Bench:
    """Return what a router beside the main stream costs it, per routed layer of a whole step."""
    steps: dict[tuple[int, int], tuple[Chain, float]] = {}

    def prepare(place: Place) -> Ready:
        batch, tokens = integers(place, "batch", "context_tokens")
        if (batch, tokens) not in steps:
            steps.clear()
            gc.collect()
            torch.cuda.empty_cache()
            chain = Chain(SHAPE, batch, tokens)
            steps[batch, tokens] = chain, step_s(chain)()
        chain, plain_s = steps[batch, tokens]
        chain.routing, chain.kernel = "side", str(place["kernel"])
        beside, routed = step_s(chain), SHAPE.layers - 1
        chain.routing = "none"
        return Ready(lambda: max((beside() - plain_s) / routed, 1e-9), None, 12)

    def step_s(chain: Chain) -> Callable[[], float]:
        """Return a sampler of a whole step: the median of a few replays."""
        launches = chain.launches()
        sample = chained(launches, 1)
        return lambda: float(np.median([sample() for _ in range(9)])) * len(launches)

    axes = {"batch": (1, 4, 8, 16), "context_tokens": (4096, 12288)}
    kernels = ("stepwise", "fused")

    def both(places: Sequence[Place]) -> tuple[Place, ...]:
        return tuple({"kernel": kernel} | dict(place) for place in places for kernel in kernels)

    return Bench(
        table="gpu_side_slowdown",
        keys=("kernel",),
        axes=tuple(axes),
        points=both(grid(**axes)),
        heldout=both(held_out(0, **axes)[:1]),
        prepare=prepare,
        dtype="bf16",
        source_hash=gpu_hash(),
        reference="a 32-layer step with the router on a second stream minus the step without, per "
        "routed layer; rank-128 proxy on the second stream, forked after o_proj",
        holds_for=ROUTER | {"anchor": ["mid"], "projection_rank": [SHAPE.rank], "channels": [32]},
    )
