"""Tables of an NVIDIA GPU: Llama-3.1-8B's decode layer, its prefill, and GPU routing.

A price is marginal: the time of one launch in a chain of dependent launches inside a CUDA graph,
on inputs that rotate so that what a decode step finds cold is cold.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from measure.campaign import Bench, Place, Ready, grid, held_out
from measure.gpu import Launch, capture, cold_sets, replay_s
from measure.hashes import gpu_hash
from measure.kernels import flow, projection, router_fused, router_stepwise, stage1
from measure.kernels.attention import dense_attention, random_cache, random_pages, sparse_attention
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
_DECODE_ROWS = 64

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
        if rows > _DECODE_ROWS:
            return Ready(chained(launches, min(least, 4)), moved or None, min(calls, 8))
        if inside and rows <= _DECODE_ROWS:
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


def gpu_benches() -> list[Bench]:
    """Return every table of the campaign, routers first."""
    return [
        *router_benches(),
        *attention_benches(),
        *row_benches(),
        gemm_bench(),
        head_bench(),
        *prefill_benches(),
    ]


def _int(place: Place, *axes: str) -> list[int]:
    return [int(place[axis]) for axis in axes]


def router_benches() -> list[Bench]:
    """Return both GPU routers, the proxy projection, and what a router costs beside the stream."""
    axes = {"batch": ROUTER_BATCHES, "context_tokens": CONTEXTS}

    def fused(place: Place) -> tuple[list[Launch], int]:
        batch, tokens = _int(place, "batch", "context_tokens")
        moved = batch * SHAPE.kv_heads * ((tokens - 1) // 4) * 32
        first = router_fused.random_router(batch, tokens)
        sets = cold_sets(moved, 512)
        return [router_fused.random_router(batch, tokens, like=first) for _ in range(sets)], moved

    def stepwise(place: Place) -> tuple[list[Launch], int]:
        batch, tokens = _int(place, "batch", "context_tokens")
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


def attention_benches() -> list[Bench]:
    """Return decode attention: dense, and sparse over scattered pages at several KV blocks."""
    group = SHAPE.heads // SHAPE.kv_heads
    token_bytes = 2 * SHAPE.kv_heads * SHAPE.dim * 2

    def queries(batch: int) -> torch.Tensor:
        return torch.randn(batch, SHAPE.kv_heads, group, SHAPE.dim).bfloat16()

    def dense(place: Place) -> tuple[list[Launch], int]:
        batch, tokens = _int(place, "batch", "context_tokens")
        moved, first = batch * tokens * token_bytes, random_cache(batch, tokens)
        query = queries(batch)
        caches = [_other(first) for _ in range(cold_sets(moved, 64))]
        return [dense_attention(query, cache, tokens) for cache in caches], moved

    def sparse(place: Place) -> tuple[list[Launch], int]:
        batch, selected, block = _int(place, "batch", "selected_tokens", "kv_block_tokens")
        first = random_cache(batch, 8192, block_tokens=block)
        pages = random_pages(batch, SHAPE.kv_heads, 8192 // 4 - 1, selected // 4)
        query, moved = queries(batch), batch * (selected + 4) * token_bytes
        caches = [_other(first) for _ in range(cold_sets(moved * block // 4, 64))]
        return [sparse_attention(query, cache, pages) for cache in caches], moved

    contexts = (256, 1024, 2048, 4096, 8192, 12288, 24576, 49152)
    scattered = {"batch": BATCHES, "selected_tokens": (32, 128, 512)}
    return [
        gpu_bench("attn_dense", {"batch": BATCHES, "context_tokens": contexts}, dense, CACHE),
        gpu_bench(
            "attn_sparse",
            scattered,
            sparse,
            CACHE | {"page_tokens": [4]},
            keys={"kv_block_tokens": (4, 8, 16, 32)},
        ),
    ]


def _other(cache):  # type: ignore[no-untyped-def]
    """Return a cache with the same table and other memory."""
    return dataclasses.replace(cache, keys=cache.keys.clone(), values=cache.values.clone())


def row_benches() -> list[Bench]:
    """Return ops on activations that the op before has just written."""
    rows = {"rows": (1, 8, 32, 512, 8192, 40960)}

    def norm(place: Place) -> tuple[list[Launch], int]:
        (count,) = _int(place, "rows")
        hidden, residual = (torch.randn(count, SHAPE.hidden).bfloat16() for _ in range(2))
        gains, out = (
            [torch.randn(SHAPE.hidden).bfloat16() for _ in range(16)],
            torch.empty_like(hidden),
        )
        return [lambda g=g: flow.rms_norm(residual, g, out, hidden) for g in gains], 0

    def act(place: Place) -> tuple[list[Launch], int]:
        (count,) = _int(place, "rows")
        gate_up = torch.randn(count, 2 * SHAPE.ffn).bfloat16()
        out = torch.empty(count, SHAPE.ffn, dtype=torch.bfloat16)
        return [lambda: flow.silu_mul(gate_up, out)] * 16, 0

    def embed(place: Place) -> tuple[list[Launch], int]:
        (count,) = _int(place, "rows")
        table = torch.randn(SHAPE.vocab, SHAPE.hidden).bfloat16()
        tokens = torch.randint(0, SHAPE.vocab, (count,), dtype=torch.int32)
        out = torch.empty(count, SHAPE.hidden, dtype=torch.bfloat16)
        return [lambda: flow.embed(tokens, table, out)] * 16, 0

    def rope(place: Place) -> tuple[list[Launch], int]:
        (batch,) = _int(place, "rows")
        cache, table = random_cache(batch, 256), torch.as_tensor(rope_table(256, SHAPE.dim)).cuda()
        qkv = torch.randn(batch, SHAPE.qkv).bfloat16()
        group = SHAPE.heads // SHAPE.kv_heads
        query = torch.empty(batch, SHAPE.kv_heads, group, SHAPE.dim).bfloat16()
        return [lambda: flow.rope_append(qkv, table, query, cache)] * 16, 0

    hidden = {"hidden": [SHAPE.hidden]}
    return [
        gpu_bench("norm", rows, norm, hidden, calls=40, inside=True),
        gpu_bench("act", rows, act, {"ffn": [SHAPE.ffn]}, calls=40, inside=True),
        gpu_bench("embed", rows, embed, hidden, calls=40),
        gpu_bench("rope", {"rows": (1, 8, 32, 512, 4096)}, rope, HEADS, calls=40, inside=True),
    ]


def gemm_bench() -> Bench:
    """Return the GEMMs in BF16 and FP8, decode and prefill rows, weights in rotation."""
    shapes = ((SHAPE.qkv, 4096), (4096, 4096), (2 * SHAPE.ffn, 4096), (4096, SHAPE.ffn))
    rows = (1, 2, 4, 8, 16, 32, 64, 512, 2048, 8192, 40960)

    def make(place: Place) -> tuple[list[Launch], int]:
        n, k, count = _int(place, "n", "k", "rows")
        return _gemms(n, k, count, str(place["dtype"]))

    bench = gpu_bench("gemm", {"rows": rows}, make, {}, least=16)

    def every(places: Sequence[Place]) -> tuple[Place, ...]:
        kinds = itertools.product(shapes, ("bf16", "fp8"))
        return tuple(
            {"n": n, "k": k, "dtype": dtype} | dict(place)
            for (n, k), dtype in kinds
            for place in places
        )

    return dataclasses.replace(
        bench,
        keys=("n", "k", "dtype"),
        points=every(grid(rows=rows)),
        heldout=every(held_out(0, rows=rows)),
    )


def _gemms(n: int, k: int, rows: int, dtype: str) -> tuple[list[Launch], int]:
    """Return launches of one GEMM on weights in rotation, and the bytes of one weight."""
    moved = n * k * (2 if dtype == "bf16" else 1)
    # As many weights as a model has layers: gigabytes apart, they also miss the TLBs.
    sets = SHAPE.layers if rows <= _DECODE_ROWS else cold_sets(moved, 16)
    hidden, out = torch.randn(rows, k).bfloat16(), torch.empty(rows, n, dtype=torch.bfloat16)
    weights = [torch.randn(n, k, dtype=torch.bfloat16) for _ in range(sets)]
    if dtype == "bf16":
        return [lambda w=w: flow.gemm(hidden, w, out) for w in weights], moved
    small, scale = hidden.to(torch.float8_e4m3fn), torch.ones(())
    eights = [w.to(torch.float8_e4m3fn) for w in weights]
    return [lambda w=w: flow.gemm_fp8(small, w, scale) for w in eights], moved


def head_bench() -> Bench:
    """Return the LM head with greedy sampling."""

    def make(place: Place) -> tuple[list[Launch], int]:
        (rows,) = _int(place, "rows")
        hidden = torch.randn(rows, SHAPE.hidden).bfloat16()
        logits = torch.empty(rows, SHAPE.vocab, dtype=torch.bfloat16)
        best, weight = torch.empty(rows).int(), torch.randn(SHAPE.vocab, SHAPE.hidden).bfloat16()

        def launch() -> None:
            flow.gemm(hidden, weight, logits)
            flow.sample_greedy(logits, best)

        return [launch], SHAPE.vocab * SHAPE.hidden * 2

    holds = {"hidden": [SHAPE.hidden], "vocab": [SHAPE.vocab]}
    return gpu_bench("head", {"rows": BATCHES}, make, holds, least=8)


def prefill_benches() -> list[Bench]:
    """Return what a prefill has beside GEMMs: causal attention, stage 1, summaries."""
    rows = {"rows": PROMPTS}
    budget = 4096

    def prompt(tokens: int, heads: int) -> torch.Tensor:
        return torch.randn(heads, tokens, SHAPE.dim).bfloat16()

    def attention(place: Place) -> tuple[list[Launch], int]:
        (tokens,) = _int(place, "rows")
        query = prompt(tokens, SHAPE.heads)[None]
        keys, values = (prompt(tokens, SHAPE.kv_heads)[None] for _ in range(2))
        return [lambda: stage1.prefill_attention(query, keys, values)], 0

    def select(place: Place) -> tuple[list[Launch], int]:
        (tokens,) = _int(place, "rows")
        keys, values = (prompt(tokens, SHAPE.kv_heads) for _ in range(2))
        group = SHAPE.heads // SHAPE.kv_heads
        query = torch.randn(SHAPE.kv_heads, group, stage1.WINDOW, SHAPE.dim).bfloat16()

        def launch() -> None:
            kept = stage1.select_prompt(query, keys, budget)
            stage1.compact(keys, kept)
            stage1.compact(values, kept)

        return [launch], 0

    def summary(place: Place) -> tuple[list[Launch], int]:
        (tokens,) = _int(place, "rows")
        kept = min(tokens, budget)
        row = (kept // 4 // 128 + 1) * 128
        codes = torch.empty(SHAPE.kv_heads, 2, SHAPE.dim, row, dtype=torch.uint8)
        keys = [prompt(kept, SHAPE.kv_heads) for _ in range(8)]
        return [lambda k=k: stage1.build_summaries(k, codes, 4) for k in keys], 0

    kept = CACHE | {"prompt_budget": [budget], "selector": ["rocketkv"]}
    return [
        gpu_bench("attn_prefill", rows, attention, CACHE, least=2, calls=10),
        gpu_bench("stage1_select", rows, select, kept, least=2, calls=10),
        gpu_bench("summary_build", rows, summary, kept | {"page_tokens": [4]}, calls=20),
    ]


def side_stream_bench() -> Bench:
    """Return what a router beside the main stream costs it, per routed layer of a whole step."""
    steps: dict[tuple[int, int], tuple[Chain, float]] = {}

    def prepare(place: Place) -> Ready:
        batch, tokens = _int(place, "batch", "context_tokens")
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
