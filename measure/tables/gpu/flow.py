"""Tables of an NVIDIA GPU: the main flow of Llama-3.1-8B's decode layer, and its prefill."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from functools import lru_cache

import torch

from measure.harness.campaign import Bench, Place, Ready, grid, held_out
from measure.harness.gpu import Launch, cold_sets
from measure.kernels.attention.launch import (
    PagedCache,
    dense_attention,
    random_cache,
    random_pages,
    sparse_attention,
)
from measure.kernels.flow import gpu as flow
from measure.kernels.flow import stage1
from measure.kernels.numbers import rope_table
from measure.tables.gpu.layer import gemm as gemm_in_layer
from measure.tables.gpu.routing import (
    BATCHES,
    CACHE,
    DECODE_ROWS,
    HEADS,
    IN_A_LAYER,
    LAYER_CALLS,
    LAYER_WINDOWS,
    PROMPTS,
    SHAPE,
    gpu_bench,
    integers,
    layer_sets,
)


def flow_benches() -> list[Bench]:
    """Return every table of the main flow."""
    return [
        *attention_benches(),
        *row_benches(),
        gemm_bench(),
        head_bench(),
        *prefill_benches(),
    ]


def attention_benches() -> list[Bench]:
    """Return decode attention: dense, and sparse over scattered pages at several KV blocks."""
    group = SHAPE.heads // SHAPE.kv_heads
    token_bytes = 2 * SHAPE.kv_heads * SHAPE.dim * 2

    def queries(batch: int) -> torch.Tensor:
        return torch.randn(batch, SHAPE.kv_heads, group, SHAPE.dim).bfloat16()

    def dense(place: Place) -> tuple[list[Launch], int]:
        batch, tokens = integers(place, "batch", "context_tokens")
        moved, first = batch * tokens * token_bytes, random_cache(batch, tokens, block_tokens=32)
        query = queries(batch)
        caches = [_other(first) for _ in range(layer_sets(moved))]
        return [dense_attention(query, cache, tokens) for cache in caches], moved

    def sparse(place: Place) -> tuple[list[Launch], int]:
        batch, selected, block = integers(place, "batch", "selected_tokens", "kv_block_tokens")
        (page,) = integers(place, "page_tokens")
        first = random_cache(batch, 8192, block_tokens=block)
        pages = random_pages(batch, SHAPE.kv_heads, 8192 // page - 1, selected // page)
        query, moved = queries(batch), batch * (selected + page) * token_bytes
        caches = [_other(first) for _ in range(layer_sets(batch * 8192 * token_bytes))]
        return [sparse_attention(query, cache, pages, page) for cache in caches], moved

    # A twentieth past the lengths that prompts have: there a program takes a step more than at
    # them, and decoding a prompt of 4096 tokens begins there.
    contexts = (256, 1072, 2144, 4304, 8608, 12896, 17200, 68816)
    batches = (1, 2, 4, 8, 12, 16, 17, 24, 32)
    four, sixteen = (
        gpu_bench(
            "attn_sparse",
            {"batch": batches, "selected_tokens": selected},
            sparse,
            CACHE | {"per": ["kv_head"]},
            keys={"kv_block_tokens": blocks},
            slot="attention",
        )
        for blocks, selected in (
            ((4, 8, 16, 32), (32, 64, 128, 256, 512)),
            ((16,), (512, 1024, 2032, 4096)),
        )
    )
    whole = gpu_bench(
        "attn_dense",
        {"batch": BATCHES, "context_tokens": contexts},
        dense,
        CACHE,
        slot="attention",
    )
    return [
        dataclasses.replace(whole, reference=f"{whole.reference}; KV blocks of 32 tokens"),
        dataclasses.replace(
            four,
            keys=("page_tokens", "kv_block_tokens"),
            points=(*_paged(4, four.points), *_paged(16, sixteen.points)),
            heldout=(*_paged(4, four.heldout), *_paged(16, sixteen.heldout)),
        ),
    ]


def _paged(page_tokens: int, places: Sequence[Place]) -> tuple[Place, ...]:
    """Return places of one page size."""
    return tuple({"page_tokens": page_tokens} | dict(place) for place in places)


def _other(cache):  # type: ignore[no-untyped-def]
    """Return a cache with the same table and other memory."""
    return dataclasses.replace(cache, keys=cache.keys.clone(), values=cache.values.clone())


def row_benches() -> list[Bench]:
    """Return ops on activations that the op before has just written."""
    rows = {"rows": (*BATCHES, 64, 128, 512, *PROMPTS[1:])}

    def norm(place: Place) -> tuple[list[Launch], int]:
        (count,) = integers(place, "rows")
        hidden, residual = (torch.randn(count, SHAPE.hidden).bfloat16() for _ in range(2))
        gains, out = torch.randn(16, SHAPE.hidden).bfloat16(), torch.empty_like(hidden)
        return [lambda g=g: flow.rms_norm(residual, g, out, hidden) for g in gains], 0

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
        return Ready(sampler, None, LAYER_CALLS, LAYER_WINDOWS)

    def every(places: Sequence[Place]) -> tuple[Place, ...]:
        kinds = itertools.product(shapes, ("bf16", "fp8"))
        found = (
            {"n": n, "k": k, "dtype": dtype} | dict(place)
            for (n, k), dtype in kinds
            for place in places
        )
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
        return [lambda w=w: flow.gemm(hidden, w, out) for w in weights], moved
    small, scale = hidden.to(torch.float8_e4m3fn), torch.ones(())
    return [lambda w=w: flow.gemm_fp8(small, w, scale) for w in weights], moved


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


def prefill_benches() -> list[Bench]:
    """Return what a prefill has beside GEMMs: causal attention, stage 1, summaries."""
    rows = {"rows": PROMPTS}
    budget = 4096

    def prompt(tokens: int, heads: int) -> torch.Tensor:
        return torch.randn(heads, tokens, SHAPE.dim).bfloat16()

    def attention(place: Place) -> tuple[list[Launch], int]:
        (tokens,) = integers(place, "rows")
        query = prompt(tokens, SHAPE.heads)[None]
        keys, values = (prompt(tokens, SHAPE.kv_heads)[None] for _ in range(2))
        return [lambda: stage1.prefill_attention(query, keys, values)], 0

    def select(place: Place) -> tuple[list[Launch], int]:
        (tokens,) = integers(place, "rows")
        keys, values = (prompt(tokens, SHAPE.kv_heads) for _ in range(2))
        group = SHAPE.heads // SHAPE.kv_heads
        query = torch.randn(SHAPE.kv_heads, group, stage1.WINDOW, SHAPE.dim).bfloat16()

        def launch() -> None:
            kept = stage1.select_prompt(query, keys, budget)
            stage1.compact(keys, kept)
            stage1.compact(values, kept)

        return [launch], 0

    def summary(place: Place) -> tuple[list[Launch], int]:
        (tokens,) = integers(place, "rows")
        row = (tokens // 4 // 128 + 1) * 128
        codes = torch.empty(SHAPE.kv_heads, 2, SHAPE.dim, row, dtype=torch.uint8)
        keys = [prompt(tokens, SHAPE.kv_heads) for _ in range(8)]
        return [lambda k=k: stage1.build_summaries(k, codes, 4) for k in keys], 0

    rocket = CACHE | {"selector": ["rocketkv"]}
    return [
        gpu_bench("attn_prefill", rows, attention, CACHE, least=2, calls=10),
        gpu_bench(
            "stage1_select", rows, select, rocket | {"prompt_budget": [budget]}, least=2, calls=10
        ),
        gpu_bench("summary_build", rows, summary, rocket | {"page_tokens": [4]}, calls=20),
    ]
