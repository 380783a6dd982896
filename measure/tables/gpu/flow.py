"""Tables of an NVIDIA GPU: the main flow of Llama-3.1-8B besides attention."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from functools import lru_cache, partial

import torch

from measure.harness.campaign import Bench, Place, Ready, grid, held_out
from measure.harness.gpu import Launch, cold_sets
from measure.harness.timing import Axis
from measure.kernels.attention.launch import PagedCache, random_cache
from measure.kernels.flow import gpu as flow
from measure.kernels.numbers import rope_table
from measure.tables.gpu.bench import (
    BATCHES,
    DECODE_ROWS,
    HEADS,
    IN_A_LAYER,
    PROMPTS,
    SHAPE,
    gpu_bench,
    in_a_layer,
    integers,
)
from measure.tables.gpu.layer import gemm as gemm_in_layer


def flow_benches() -> list[Bench]:
    """Return the tables of ops on rows of activations: norms, RoPE, activation, GEMMs, the ends."""
    return [*row_benches(), gemm_bench(), head_bench()]


def row_benches() -> list[Bench]:
    """Return ops on activations that the op before has just written."""
    rows = {"rows": (*BATCHES, 64, 128, 512, *PROMPTS[1:])}

    def norm(place: Place) -> tuple[list[Launch], int]:
        (count,) = integers(place, "rows")
        hidden, residual = (torch.randn(count, SHAPE.hidden).bfloat16() for _ in range(2))
        gains, out = torch.randn(16, SHAPE.hidden).bfloat16(), torch.empty_like(hidden)
        return [partial(flow.rms_norm, residual, gain, out, hidden) for gain in gains], 0

    def act(place: Place) -> tuple[list[Launch], int]:
        (count,) = integers(place, "rows")
        gate_up = torch.randn(count, 2 * SHAPE.ffn).bfloat16()
        out = torch.empty(count, SHAPE.ffn, dtype=torch.bfloat16)
        return [lambda: flow.silu_mul(gate_up, out)] * 16, 0

    def embed(place: Place) -> tuple[list[Launch], int]:
        (count,) = integers(place, "rows")
        table = torch.randn(SHAPE.vocab, SHAPE.hidden).bfloat16()
        tokens = torch.randint(0, SHAPE.vocab, (count,), dtype=torch.int32)
        out = torch.empty(count, SHAPE.hidden, dtype=torch.bfloat16)
        return [lambda: flow.embed(tokens, table, out)] * 16, 0

    def rope(place: Place) -> tuple[list[Launch], int]:
        (count,) = integers(place, "rows")
        table = torch.as_tensor(rope_table(count, SHAPE.dim)).cuda()
        qkv, cache = torch.randn(count, SHAPE.qkv).bfloat16(), _prompt_cache(count)
        group = SHAPE.heads // SHAPE.kv_heads
        query = torch.empty(count, SHAPE.kv_heads, group, SHAPE.dim).bfloat16()
        return [lambda: flow.rope_append(qkv, table, query, cache)] * 16, 0

    hidden = {"hidden": [SHAPE.hidden]}
    return [
        gpu_bench("norm", rows, norm, hidden, calls=40),
        gpu_bench("act", rows, act, {"ffn": [SHAPE.ffn]}, calls=40),
        gpu_bench("embed", rows, embed, hidden, calls=40),
        gpu_bench("rope", rows, rope, HEADS, calls=40),
    ]


def _prompt_cache(tokens: int) -> PagedCache:
    """Return the cache of one prompt, a row a token: row i appends token i."""
    one = random_cache(1, tokens)
    table = one.table.expand(tokens, -1).contiguous()
    return PagedCache(one.keys, one.values, table, torch.arange(1, tokens + 1, dtype=torch.int32))


def gemm_bench() -> Bench:
    """Return the GEMMs in BF16 and FP8, decode and prefill rows, weights in rotation."""
    shapes = ((SHAPE.qkv, 4096), (4096, 4096), (2 * SHAPE.ffn, 4096), (4096, SHAPE.ffn))
    rows = (*BATCHES, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 24576, 32768, 40960)

    def make(place: Place) -> tuple[list[Launch], int]:
        n, k, count = integers(place, "n", "k", "rows")
        return _gemms(n, k, count, str(place["dtype"]))

    bench = gpu_bench("gemm", {"rows": rows}, make, {}, least=4, calls=8)

    def prepare(place: Place) -> Ready:
        n, k, count = integers(place, "n", "k", "rows")
        if count > DECODE_ROWS:
            return bench.prepare(place)
        sampler = gemm_in_layer(n, k, str(place["dtype"]), count)
        return in_a_layer(sampler)

    def every(places: Sequence[Place]) -> tuple[Place, ...]:
        kinds: list[dict[str, Axis]] = [
            {"n": n, "k": k, "dtype": dtype}
            for (n, k), dtype in itertools.product(shapes, ("bf16", "fp8"))
        ]
        found = (kind | dict(place) for kind in kinds for place in places)
        # Batch by batch, prefill last: layers, and then weights, are set up once each.
        return tuple(sorted(found, key=lambda at: min(int(at["rows"]), DECODE_ROWS + 1)))

    return dataclasses.replace(
        bench,
        keys=("n", "k", "dtype"),
        points=every(grid(rows=rows)),
        heldout=every(held_out(0, {"rows": rows})),
        prepare=prepare,
        reference=IN_A_LAYER,
    )


def _gemms(n: int, k: int, rows: int, dtype: str) -> tuple[list[Launch], int]:
    """Return launches of one GEMM on weights in rotation, and the bytes of one weight."""
    moved = n * k * (2 if dtype == "bf16" else 1)
    weights = _weights(n, k, dtype)
    hidden, out = torch.randn(rows, k).bfloat16(), torch.empty(rows, n, dtype=torch.bfloat16)
    if dtype == "bf16":
        return [partial(flow.gemm, hidden, weight, out) for weight in weights], moved
    small, scale = hidden.to(torch.float8_e4m3fn), torch.ones(())
    return [partial(flow.gemm_fp8, small, weight, scale) for weight in weights], moved


@lru_cache(maxsize=1)
def _weights(n: int, k: int, dtype: str) -> list[torch.Tensor]:
    """Return random weights [n, k] that no cache holds together; only the last shape's are kept."""
    kind = torch.bfloat16 if dtype == "bf16" else torch.float8_e4m3fn
    sets = cold_sets(n * k * kind.itemsize, 16)
    return [torch.randn(n, k, dtype=torch.bfloat16).to(kind) for _ in range(sets)]


def head_bench() -> Bench:
    """Return the LM head with greedy sampling."""

    def make(place: Place) -> tuple[list[Launch], int]:
        (rows,) = integers(place, "rows")
        hidden = torch.randn(rows, SHAPE.hidden).bfloat16()
        logits = torch.empty(rows, SHAPE.vocab, dtype=torch.bfloat16)
        best, weight = torch.empty(rows).int(), torch.randn(SHAPE.vocab, SHAPE.hidden).bfloat16()

        def launch() -> None:
            flow.gemm(hidden, weight, logits)
            flow.sample_greedy(logits, best)

        return [launch], SHAPE.vocab * SHAPE.hidden * 2

    holds = {"hidden": [SHAPE.hidden], "vocab": [SHAPE.vocab]}
    return gpu_bench("head", {"rows": BATCHES}, make, holds, least=8)
