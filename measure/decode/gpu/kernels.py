"""The kernel that a decode run on a GPU needs beside the measured ones."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from measure.kernels.attention.launch import PagedCache
from measure.kernels.flow.gpu import rope_kernel


@triton.jit
def rope_keep_kernel(
    qkv,
    cos_sin,
    queries,
    keys,
    values,
    table,
    context,
    fresh,
    table_blocks,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
):
    """The measured kernel, and the new keys once more, side by side."""
    rope_kernel(
        qkv,
        cos_sin,
        queries,
        keys,
        values,
        table,
        context,
        table_blocks,
        HEADS,
        KV_HEADS,
        DIM,
        BLOCK_TOKENS,
    )
    row, head = tl.program_id(0), tl.program_id(1)
    if (head >= HEADS) & (head < HEADS + KV_HEADS):
        half = tl.arange(0, DIM // 2)
        turn = cos_sin + (tl.load(context + row) - 1) * DIM + half
        cos, sin = tl.load(turn), tl.load(turn + DIM // 2)
        source = qkv + (row * (HEADS + 2 * KV_HEADS) + head).to(tl.int64) * DIM + half
        low, high = tl.load(source).to(tl.float32), tl.load(source + DIM // 2).to(tl.float32)
        to = fresh + (row * KV_HEADS + head - HEADS) * DIM + half
        tl.store(to, (low * cos - high * sin).to(fresh.dtype.element_ty))
        tl.store(to + DIM // 2, (high * cos + low * sin).to(fresh.dtype.element_ty))


def rope_append(
    qkv: torch.Tensor,
    cos_sin: torch.Tensor,
    queries: torch.Tensor,
    cache: PagedCache,
    fresh: torch.Tensor,
) -> None:
    """`kernels.flow.gpu.rope_append`; ``fresh`` [batch, kv_heads, head_dim] gets the keys."""
    batch, kv_heads, group, dim = queries.shape
    heads = kv_heads * group
    rope_keep_kernel[(batch, heads + 2 * kv_heads)](
        qkv,
        cos_sin,
        queries,
        cache.keys,
        cache.values,
        cache.table,
        cache.context,
        fresh,
        cache.table.shape[1],
        heads,
        kv_heads,
        dim,
        cache.block_tokens,
        num_warps=1,
    )
