"""Time the GPU kernels, a table a kind: ``python -m measure.bench_gpu --out DIR [--family ...]``.

Every time is marginal: of one launch in a chain of dependent launches in a CUDA graph, on inputs
that rotate so that what a decode step finds cold is cold.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from measure.gpu import Launch, cold_sets, measure_chain, require_gpu
from measure.gpu_points import HASH, Point, spec
from measure.handover_points import handover_points
from measure.kernels import flow, projection, router_fused, router_stepwise
from measure.kernels.attention import (
    dense_attention,
    random_cache,
    random_pages,
    sparse_attention,
)
from measure.kernels.reference import rope_table
from measure.table import ResultTable

BATCHES, CONTEXTS = (1, 4, 8, 16, 32), (4096, 8192, 12288)
HEADS, KV_HEADS, DIM, HIDDEN, FFN, VOCAB = 32, 8, 128, 4096, 14336, 128256


def fused_points() -> Iterator[Point]:
    """The fused router."""
    for batch, tokens in itertools.product(BATCHES, CONTEXTS):
        moved = batch * KV_HEADS * ((tokens - 1) // 4) * 32

        def make(batch: int = batch, tokens: int = tokens, moved: int = moved) -> list[Launch]:
            first = router_fused.random_router(batch, tokens)
            return [
                router_fused.random_router(batch, tokens, like=first)
                for _ in range(cold_sets(moved, 768))
            ]

        yield spec("gpu_route_fused", moved, dtype="e5m2", batch=batch, context_tokens=tokens), make


def stepwise_points() -> Iterator[Point]:
    """The stepwise router: whole, and each of its kernels."""
    for batch, tokens in itertools.product(BATCHES, CONTEXTS):
        moved = batch * KV_HEADS * ((tokens - 1) // 4) * 256
        sets = cold_sets(moved, 128)
        made: list[router_stepwise.StepwiseRouter] = []
        parts = ["all"]
        if batch in (1, 8) and tokens == 4096:
            parts += ["filter", "update", "score", "softmax", "reduce", "top", "offsets"]
        for part in parts:
            own = moved if part in ("all", "score") else 0
            yield (
                spec(
                    "gpu_route_stepwise",
                    own,
                    dtype="e5m2",
                    batch=batch,
                    context_tokens=tokens,
                    part=part,
                ),
                partial(make_stepwise, made, part, batch, tokens, sets),
            )


def make_stepwise(
    made: list[router_stepwise.StepwiseRouter], part: str, batch: int, tokens: int, sets: int
) -> list[Launch]:
    """Launches of one kernel or all; fills ``made``, which the parts of a point share."""
    if not made:
        made.append(first := router_stepwise.random_router(batch, tokens))
        made.extend(
            router_stepwise.random_router(batch, tokens, like=first) for _ in range(sets - 1)
        )
    return [router if part == "all" else router.steps()[part] for router in made]


def dense_points() -> Iterator[Point]:
    """Dense decode attention."""
    for batch, tokens in itertools.product((1, 8, 32), (1024, 4096, 12288, 40960, 65536)):
        moved = batch * tokens * KV_HEADS * DIM * 4

        def make(batch: int = batch, tokens: int = tokens, moved: int = moved) -> list[Launch]:
            queries, first = (
                torch.randn(batch, KV_HEADS, 4, DIM).bfloat16(),
                random_cache(batch, tokens),
            )
            caches = [
                dataclasses.replace(first, keys=first.keys.clone(), values=first.values.clone())
                for _ in range(cold_sets(moved, 64))
            ]
            return [dense_attention(queries, cache, tokens) for cache in caches]

        yield spec("attn_dense", moved, batch=batch, context_tokens=tokens), make


def sparse_points() -> Iterator[Point]:
    """Sparse attention over 32 random pages and the tail page, on rotating caches."""
    for batch, block in itertools.product(BATCHES, (4, 8, 16, 32)):
        moved = batch * KV_HEADS * 33 * block * DIM * 4
        yield (
            spec("attn_sparse", moved, batch=batch, selected_tokens=128, block_tokens=block),
            partial(make_sparse, batch, block, cold_sets(moved, 400)),
        )


def make_sparse(batch: int, block: int, sets: int, tokens: int = 4096) -> list[Launch]:
    """Launches that share all but the cache; its blocks are the same pages of other memory."""
    first = random_cache(batch, tokens, block_tokens=block)
    pages = random_pages(batch, KV_HEADS, tokens // 4 - 1, 32)
    queries = torch.randn(batch, KV_HEADS, 4, DIM).bfloat16()
    caches = [
        dataclasses.replace(first, keys=first.keys.clone(), values=first.values.clone())
        for _ in range(sets)
    ]
    return [sparse_attention(queries, cache, pages) for cache in caches]


def gemm_points() -> Iterator[Point]:
    """GEMMs on rotating weights."""
    shapes = ((6144, HIDDEN), (HIDDEN, HIDDEN), (2 * FFN, HIDDEN), (HIDDEN, FFN), (VOCAB, HIDDEN))
    for (n, k), rows, dtype in itertools.product(shapes, (1, 4, 8, 16, 32), ("bf16", "fp8")):
        moved = n * k * (2 if dtype == "bf16" else 1)
        yield (
            spec("gemm", moved, dtype=dtype, n=n, k=k, rows=rows),
            partial(make_gemms, n, k, rows, dtype, cold_sets(moved)),
        )


def make_gemms(n: int, k: int, rows: int, dtype: str, sets: int) -> list[Launch]:
    """Launches of one GEMM on ``sets`` weights."""
    hidden, out = torch.randn(rows, k).bfloat16(), torch.empty(rows, n, dtype=torch.bfloat16)
    weights = [torch.randn(n, k, dtype=torch.bfloat16) for _ in range(sets)]
    if dtype == "bf16":
        return [partial(flow.gemm, hidden, weight, out) for weight in weights]
    small, scale = hidden.to(torch.float8_e4m3fn), torch.ones(())
    eights = [w.to(torch.float8_e4m3fn) for w in weights]
    return [partial(flow.gemm_fp8, small, weight, scale) for weight in eights]


def small_points() -> Iterator[Point]:
    """Ops whose inputs the op before has just written."""
    for rows, kind in itertools.product((1, 8, 32), ("norm", "act", "rope", "sample")):
        yield spec(kind, 0, "hot", rows=rows), partial(make_small, kind, rows)


def make_small(kind: str, rows: int) -> list[Launch]:
    """Launches of one op of the main flow."""
    if kind == "norm":
        hidden, residual = (torch.randn(rows, HIDDEN).bfloat16() for _ in range(2))
        gains, out = [torch.randn(HIDDEN).bfloat16() for _ in range(64)], torch.empty_like(hidden)
        return [partial(flow.rms_norm, residual, gain, out, hidden) for gain in gains]
    if kind == "act":
        gate, act = torch.randn(rows, 2 * FFN).bfloat16(), torch.empty(rows, FFN).bfloat16()
        return [partial(flow.silu_mul, gate, act)] * 64
    if kind == "sample":
        logits, best = torch.randn(rows, VOCAB).bfloat16(), torch.empty(rows).int()
        return [partial(flow.sample_greedy, logits, best)] * 64
    cache, table = random_cache(rows, 4096), torch.as_tensor(rope_table(4096, DIM)).cuda()
    qkv, query = torch.randn(rows, 48 * DIM).bfloat16(), torch.empty(rows, KV_HEADS, 4, DIM)
    return [partial(flow.rope_append, qkv, table, query.bfloat16(), cache)] * 64


def proxy_points() -> Iterator[Point]:
    """The proxy projection: whole W_q, down alone, up alone, down and up."""
    table = torch.as_tensor(rope_table(4096, DIM)).cuda()
    for batch, part in itertools.product((1, 8, 32), ("full", "down", "up", "down_up")):
        moved = {"full": HIDDEN * HIDDEN, "down_up": 256 * HIDDEN}.get(part, 128 * HIDDEN) * 2
        yield (
            spec("gpu_proxy", moved, batch=batch, part=part),
            partial(make_proxies, batch, part, table, cold_sets(moved)),
        )


def make_proxies(batch: int, part: str, table: torch.Tensor, sets: int) -> list[Launch]:
    """Launches of one part of the projection on ``sets`` weights."""
    anchor = torch.randn(batch, HIDDEN).bfloat16()
    latents = torch.randn(batch, 128).bfloat16()
    context = torch.full((batch,), 4096, dtype=torch.int32)
    query = torch.empty(batch, KV_HEADS, 4, DIM).bfloat16()

    normed, gain = torch.empty_like(anchor), torch.ones(HIDDEN).bfloat16()

    def one(down: torch.Tensor, up: torch.Tensor) -> None:
        if part == "full":
            projection.project_full(anchor, gain, up, table, context, normed, query)
            return
        if part in ("down", "down_up"):
            projection.project_down(anchor, down, latents)
        if part in ("up", "down_up"):
            projection.project_up(latents, up, table, context, query)

    width = HIDDEN if part == "full" else 128
    pairs = [
        (torch.randn(128, HIDDEN).bfloat16(), torch.randn(HIDDEN, width).bfloat16())
        for _ in range(sets)
    ]
    return [partial(one, *pair) for pair in pairs]


FAMILIES: dict[str, Callable[[], Iterator[Point]]] = {
    "fused": fused_points,
    "stepwise": stepwise_points,
    "dense": dense_points,
    "sparse": sparse_points,
    "gemm": gemm_points,
    "small": small_points,
    "proxy": proxy_points,
    "handover": handover_points,
}


def run(family: str, out: Path, replays: int) -> None:
    """Time a family; points that the tables already hold are skipped."""
    tables: dict[str, ResultTable] = {}
    for point, make in FAMILIES[family]():
        name = point.kind
        if name not in tables:
            tables[name] = ResultTable(out / f"{name}.csv", tuple(point.axes), HASH)
        if point in tables[name]:
            continue
        m = measure_chain(point, make(), replays=replays)
        tables[name].append(m)
        axes = " ".join(f"{key}={value}" for key, value in point.axes.items())
        rate = f" {m.bytes_per_s / 1e12:.2f} TB/s" if m.spec.bytes_moved and m.bytes_per_s else ""
        print(f"{name} {axes} {point.dtype}: {m.p50_s * 1e6:.2f} us{rate}", flush=True)


def main() -> None:
    """Time the families asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--family", nargs="*", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--replays", type=int, default=15)
    args = parser.parse_args()
    require_gpu()
    for family in args.family:
        run(family, args.out, args.replays)


if __name__ == "__main__":
    main()
