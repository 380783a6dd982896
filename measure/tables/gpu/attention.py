"""Tables of decode attention on a GPU: dense, and sparse over scattered pages."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from measure.harness.campaign import Bench, Place
from measure.harness.gpu import Launch
from measure.kernels.attention.launch import (
    PagedCache,
    dense_attention,
    random_cache,
    random_pages,
    sparse_attention,
)
from measure.tables.gpu.bench import BATCHES, CACHE, SHAPE, gpu_bench, integers, layer_sets

# A twentieth past the lengths that prompts have: there a program takes a step more than at them,
# and decoding a prompt of 4096 tokens begins there.
CONTEXTS = (256, 1072, 2144, 4304, 8608, 12896, 17200, 68816)
SPARSE_BATCHES = (1, 2, 4, 8, 12, 16, 17, 24, 32)
# Of pages of 4 and of 16 tokens: sizes of KV blocks, and selected tokens.
PAGED = {
    4: ((4, 8, 16, 32), (32, 64, 128, 256, 512)),
    16: ((16,), (512, 1024, 2032, 4096)),
}
SPARSE_CONTEXT = 8192
_TOKEN_BYTES = 2 * SHAPE.kv_heads * SHAPE.dim * 2


def attention_benches() -> list[Bench]:
    """Return both benches."""
    dense = gpu_bench(
        "attn_dense",
        {"batch": BATCHES, "context_tokens": CONTEXTS},
        _dense,
        CACHE,
        slot="attention",
    )
    reference = f"{dense.reference}; KV blocks of 32 tokens"
    return [dataclasses.replace(dense, reference=reference), _sparse_bench()]


def _sparse_bench() -> Bench:
    """Return the bench over pages of both sizes, each with KV blocks that suit it."""
    benches = {
        page: gpu_bench(
            "attn_sparse",
            {"batch": SPARSE_BATCHES, "selected_tokens": selected},
            _sparse,
            CACHE | {"per": ["kv_head"]},
            keys={"kv_block_tokens": blocks},
            slot="attention",
        )
        for page, (blocks, selected) in PAGED.items()
    }

    def paged(places: Sequence[tuple[int, Sequence[Place]]]) -> tuple[Place, ...]:
        return tuple({"page_tokens": page} | dict(at) for page, those in places for at in those)

    return dataclasses.replace(
        benches[4],
        keys=("page_tokens", "kv_block_tokens"),
        points=paged([(page, bench.points) for page, bench in benches.items()]),
        heldout=paged([(page, bench.heldout) for page, bench in benches.items()]),
    )


def _dense(place: Place) -> tuple[list[Launch], int]:
    batch, tokens = integers(place, "batch", "context_tokens")
    moved, first = batch * tokens * _TOKEN_BYTES, random_cache(batch, tokens, block_tokens=32)
    query = _queries(batch)
    caches = [_other(first) for _ in range(layer_sets(moved))]
    return [dense_attention(query, cache, tokens) for cache in caches], moved


def _sparse(place: Place) -> tuple[list[Launch], int]:
    batch, selected, block = integers(place, "batch", "selected_tokens", "kv_block_tokens")
    (page,) = integers(place, "page_tokens")
    first = random_cache(batch, SPARSE_CONTEXT, block_tokens=block)
    pages = random_pages(batch, SHAPE.kv_heads, SPARSE_CONTEXT // page - 1, selected // page)
    query, moved = _queries(batch), batch * (selected + page) * _TOKEN_BYTES
    caches = [_other(first) for _ in range(layer_sets(batch * SPARSE_CONTEXT * _TOKEN_BYTES))]
    return [sparse_attention(query, cache, pages, page) for cache in caches], moved


def _queries(batch: int) -> torch.Tensor:
    group = SHAPE.heads // SHAPE.kv_heads
    return torch.randn(batch, SHAPE.kv_heads, group, SHAPE.dim).bfloat16()


def _other(cache: PagedCache) -> PagedCache:
    """Return a cache with the same table and other memory."""
    return dataclasses.replace(cache, keys=cache.keys.clone(), values=cache.values.clone())
