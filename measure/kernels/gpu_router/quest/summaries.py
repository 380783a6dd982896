"""Quest's page summaries of a prompt, written where its router reads them (`router_quest`)."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from measure.kernels.gpu_router.stepwise.kernels import _summary_at

PAGES, UNROLL, WARPS = 8, 8, 4
"""Pages of a program, tokens of a page whose loads are in flight together, warps."""


@triton.jit
def summary_kernel(
    keys,
    pool,
    table,
    tokens,
    table_blocks,
    page_tokens,
    DIM: tl.constexpr,
    BLOCK_PAGES: tl.constexpr,
    PAGES: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """Min and max of ``PAGES`` pages of one KV head."""
    head = tl.program_id(1).to(tl.int64)
    page, channel = tl.program_id(0) * PAGES + tl.arange(0, PAGES), tl.arange(0, DIM)
    low = tl.full([PAGES, DIM], float("inf"), tl.float32)
    high = tl.full([PAGES, DIM], float("-inf"), tl.float32)
    for start in range(0, page_tokens, UNROLL):
        for member in tl.static_range(UNROLL):
            # Past the end of a page or of the prompt its last token again: that changes neither.
            token = page * page_tokens + tl.minimum(start + member, page_tokens - 1)
            token = tl.minimum(token, tokens - 1)
            source = keys + (head * tokens + token[:, None]) * DIM + channel[None, :]
            key = tl.load(source).to(tl.float32)
            low, high = tl.minimum(low, key), tl.maximum(high, key)
    real = page * page_tokens < tokens
    page = tl.where(real, page, 0)
    rows = _summary_at(
        pool, table, 0, page, head, tl.num_programs(1), table_blocks, BLOCK_PAGES, DIM
    )
    at = rows[:, None] + channel[None, :]
    tl.store(at, low, mask=real[:, None])
    tl.store(at + DIM, high, mask=real[:, None])


def build_summaries(
    keys: torch.Tensor, pool: torch.Tensor, table: torch.Tensor, page_tokens: int
) -> None:
    """Launch: summarise every page of a prompt, an open last page included.

    Parameters
    ----------
    keys
        [kv_heads, tokens, head_dim], after RoPE.
    pool
        [blocks, kv_heads, block_pages, 2 (min, max), head_dim], in the dtype of the keys.
    table
        int32 [table_blocks]: blocks of the sequence, enough for its pages.
    """
    kv_heads, tokens, dim = keys.shape
    pages = triton.cdiv(tokens, page_tokens)
    summary_kernel[(triton.cdiv(pages, PAGES), kv_heads)](
        keys,
        pool,
        table,
        tokens,
        len(table),
        page_tokens,
        dim,
        pool.shape[2],
        PAGES,
        UNROLL,
        num_warps=WARPS,
    )
