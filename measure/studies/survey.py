"""Ops of many shapes: ``python -m measure.studies.survey --out DIR``.

How far carrying a price over to another shape is off can only be seen on other shapes.
``gemm-*.csv``: GEMMs over outputs, inputs and rows, each in a chain of its own on cold weights.
``heads-*.csv``: attention and routers over KV heads and query heads a KV head, each by what it adds
to a decode layer of Llama-3.1-8B. ``widths-*.csv``: norms and activations over width, likewise.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from measure.harness.gpu import Launch, cold_sets, require_gpu
from measure.harness.hashes import table_hash
from measure.harness.table import ResultTable, fill
from measure.harness.timing import Axis, Spec, from_samples
from measure.kernels.attention.launch import (
    dense_attention,
    random_cache,
    random_pages,
    sparse_attention,
)
from measure.kernels.flow import gpu as flow
from measure.kernels.gpu_router.fused.router import random_router as fused_router
from measure.kernels.gpu_router.stepwise.router import random_router as stepwise_router
from measure.tables.gpu.bench import chained, layer_sets
from measure.tables.gpu.layer import LAYERS, added, release

OUTPUTS = (1024, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 8192, 10240, 16384, 22528, 28672, 40960)
INPUTS = (1024, 2048, 3072, 4096, 5120, 8192, 11264, 14336, 18432)
HEAD_OUTPUTS, HEAD_INPUTS = (65536, 131072, 151552), (1024, 2048, 3072, 4096, 5120)
FEW_ROWS, MANY_ROWS = (1, 2, 4, 8, 12, 16, 24, 32, 64), (256, 1024, 8192)
FP8_OUTPUTS, FP8_INPUTS = (2048, 4096, 6144, 10240, 28672), (2048, 4096, 8192, 14336)
# (KV heads, query heads a KV head); the stepwise router takes groups that are powers of two.
HEADS = ((8, 4), (2, 8), (4, 7), (4, 8), (8, 3), (8, 5), (10, 4), (16, 1), (32, 1))
BATCHES, CONTEXTS, SELECTED = (1, 4, 12, 32), (1072, 4304, 17200), (128, 256)
ROUTED_CONTEXTS = (4480, 9472)
NORM_WIDTHS, ACT_WIDTHS = (
    (1024, 2048, 2560, 3072, 4096, 5120, 8192),
    (1536, 4096, 8192, 14336, 28672),
)
SAMPLES = 6
# Elements of the memory that all weights are views of.
POOL_ELEMENTS = 3 << 30


def gemm_specs() -> Iterator[Spec]:
    """Yield the GEMMs, weights of one shape together."""
    shapes = [*itertools.product(OUTPUTS, INPUTS), *itertools.product(HEAD_OUTPUTS, HEAD_INPUTS)]
    for n, k in shapes:
        for rows in FEW_ROWS + MANY_ROWS * (n in OUTPUTS[1::2]):
            yield _spec("gemm", {"n": n, "k": k, "rows": rows}, "bf16")
    for n, k in itertools.product(FP8_OUTPUTS, FP8_INPUTS):
        for rows in (1, 4, 16, 64, *MANY_ROWS):
            yield _spec("gemm", {"n": n, "k": k, "rows": rows}, "fp8")


def gemm_samples(pool: torch.Tensor) -> Callable[[Spec], list[float]]:
    """Return what times a GEMM on weights that are views of `pool`."""
    small = pool.to(torch.float8_e4m3fn) if pool.numel() < POOL_ELEMENTS else None

    def samples(spec: Spec) -> list[float]:
        n, k, rows = (int(spec.axes[axis]) for axis in ("n", "k", "rows"))
        size = n * k * (2 if spec.dtype == "bf16" else 1)
        sets = min(cold_sets(size, 64), pool.numel() // (n * k))
        hidden = torch.randn(rows, k).bfloat16()
        out = torch.empty(rows, n, dtype=torch.bfloat16)
        own = pool if spec.dtype == "bf16" else small
        assert own is not None
        weights = [own[i * n * k : (i + 1) * n * k].view(n, k) for i in range(sets)]
        launches: list[Launch] = [lambda w=w: flow.gemm(hidden, w, out) for w in weights]
        if spec.dtype == "fp8":
            packed, scale = hidden.to(torch.float8_e4m3fn), torch.ones(())
            launches = [lambda w=w: flow.gemm_fp8(packed, w, scale) for w in weights]
        sampler = chained(launches, 48 if rows <= 64 else 4)
        return [sampler() for _ in range(SAMPLES)]

    return samples


def head_specs() -> Iterator[Spec]:
    """Yield attention and routers over heads, batch by batch: layers are set up once each."""
    for batch in BATCHES:
        for kv_heads, group in HEADS:
            at: dict[str, Axis] = {"batch": batch, "kv_heads": kv_heads, "group": group}
            for tokens in CONTEXTS:
                if batch * kv_heads * tokens <= 32 * 8 * 17200:
                    yield _spec("attn_dense", at | {"tokens": tokens})
            for selected in SELECTED:
                yield _spec("attn_sparse", at | {"tokens": selected})
            for tokens in ROUTED_CONTEXTS:
                yield _spec("gpu_route_fused", at | {"tokens": tokens})
                if group & (group - 1) == 0:
                    yield _spec("gpu_route_stepwise", at | {"tokens": tokens})


def head_samples(spec: Spec) -> list[float]:
    """Time an op of other heads by what it adds to a layer."""
    batch, kv_heads, group, tokens = (
        int(spec.axes[axis]) for axis in ("batch", "kv_heads", "group", "tokens")
    )
    slot, launches = "attention", []
    query = torch.randn(batch, kv_heads, group, 128).bfloat16()
    token_bytes = 2 * kv_heads * 128 * 2
    if spec.kind == "attn_dense":
        cache = random_cache(batch, tokens, kv_heads=kv_heads)
        caches = [_other(cache) for _ in range(layer_sets(batch * tokens * token_bytes))]
        launches = [dense_attention(query, own, tokens) for own in caches]
    elif spec.kind == "attn_sparse":
        cache = random_cache(batch, 8192, kv_heads=kv_heads, block_tokens=4)
        pages = random_pages(batch, kv_heads, 8192 // 4 - 1, tokens // 4)
        caches = [_other(cache) for _ in range(layer_sets(batch * 8192 * token_bytes))]
        launches = [sparse_attention(query, own, pages, 4) for own in caches]
    else:
        slot = "route"
        make = fused_router if spec.kind == "gpu_route_fused" else stepwise_router
        first = make(batch, tokens, kv_heads=kv_heads, group=group)
        launches = [
            make(batch, tokens, kv_heads=kv_heads, group=group, like=first) for _ in range(LAYERS)
        ]
    sampler = added(batch, launches, slot)
    return [sampler() for _ in range(SAMPLES)]


def width_specs() -> Iterator[Spec]:
    """Yield norms and activations over their width."""
    for rows in BATCHES:
        for kind, widths in (("norm", NORM_WIDTHS), ("act", ACT_WIDTHS)):
            for width in widths:
                yield _spec(kind, {"rows": rows, "width": width})


def width_samples(spec: Spec) -> list[float]:
    """Time a norm or an activation of another width by what it adds to a layer."""
    rows, width = int(spec.axes["rows"]), int(spec.axes["width"])
    launches: list[Launch]
    if spec.kind == "norm":
        hidden, residual = (torch.randn(rows, width).bfloat16() for _ in range(2))
        gains, out = torch.randn(16, width).bfloat16(), torch.empty_like(hidden)
        launches = [lambda g=g: flow.rms_norm(residual, g, out, hidden) for g in gains]
    else:
        gate_up = torch.randn(rows, 2 * width).bfloat16()
        target = torch.empty(rows, width, dtype=torch.bfloat16)
        launches = [lambda: flow.silu_mul(gate_up, target)] * 16
    sampler = added(rows, launches)
    return [sampler() for _ in range(SAMPLES)]


def _other(cache):  # type: ignore[no-untyped-def]
    """Return a cache with the same table and other memory."""
    return dataclasses.replace(cache, keys=cache.keys.clone(), values=cache.values.clone())


def _spec(kind: str, axes: dict[str, Axis], dtype: str = "bf16") -> Spec:
    return Spec(kind, axes, dtype, "cold", None, table_hash(kind, "gpu"))


def survey(name: str, specs: list[Spec], samples: Callable[[Spec], list[float]], out: Path) -> None:
    """Write a file of each op kind, ``NAME-KIND.csv``; what is there is kept, failures are told."""
    for kind in dict.fromkeys(spec.kind for spec in specs):
        own = [spec for spec in specs if spec.kind == kind]
        table = ResultTable(out / f"{name}-{kind}.csv", tuple(own[0].axes), own[0].source_hash)
        for batch in dict.fromkeys(spec.axes.get("batch") for spec in own):
            some = [spec for spec in own if spec.axes.get("batch") == batch]
            try:
                fill(table, some, lambda spec: from_samples(spec, timed(spec, samples)))
            except RuntimeError as error:
                print(f"{kind}: {error}", file=sys.stderr)
        print(f"{name} {kind}: {len(table)} points", file=sys.stderr, flush=True)


def timed(spec: Spec, samples: Callable[[Spec], list[float]]) -> list[float]:
    """Return samples of a point, with what earlier ones held freed."""
    release()
    return samples(spec)


def main() -> None:
    """Time everything that DIR lacks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=["widths", "heads", "gemm"])
    args = parser.parse_args()
    require_gpu()
    args.out.mkdir(parents=True, exist_ok=True)
    if "widths" in args.only:
        survey("widths", list(width_specs()), width_samples, args.out)
    if "heads" in args.only:
        survey("heads", list(head_specs()), head_samples, args.out)
    for dtype, elements in (("bf16", POOL_ELEMENTS), ("fp8", POOL_ELEMENTS // 2)):
        if "gemm" in args.only:
            pool = torch.empty(elements, dtype=torch.bfloat16).normal_()
            specs = [spec for spec in gemm_specs() if spec.dtype == dtype]
            survey(f"gemm-{dtype}", specs, gemm_samples(pool), args.out)
            del pool


if __name__ == "__main__":
    main()
