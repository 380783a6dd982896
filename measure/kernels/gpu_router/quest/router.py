"""Quest's router on the GPU: an upper bound of each page's scores, then the top pages.

Two kernels. The first, split over pages, scores every page before the tail page and takes the
current key into the tail page's summary; the second finds the top pages of a query head, or of a
KV head by the mean of its heads' softmax. Summaries are paged, in the dtype of the keys:
[blocks, kv_heads, block_pages, 2 (min, max), head_dim].
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from measure.kernels.attention.launch import LOG2E, SMS
from measure.kernels.gpu_router.select import LOWEST, bounds, pad, place, sort_keys
from measure.kernels.gpu_router.stepwise.kernels import _summary_at

SCORE_PAGES, SCORE_WARPS, SCORE_STAGES = 32, 4, 3
"""Pages a step of the scoring loop, warps and depth of its pipeline."""


@triton.jit
def _update(
    keys,
    pool,
    table,
    row,
    head,
    last,
    kv_heads,
    table_blocks,
    page_tokens,
    BLOCK_PAGES: tl.constexpr,
    DIM: tl.constexpr,
):
    """Take the key of token ``last`` into its page's min and max."""
    channel = tl.arange(0, DIM)
    key = tl.load(keys + (row * kv_heads + head) * DIM + channel)
    at = channel + _summary_at(
        pool, table, row, last // page_tokens, head, kv_heads, table_blocks, BLOCK_PAGES, DIM
    )
    opens = last % page_tokens == 0
    low, high = tl.load(at), tl.load(at + DIM)
    tl.store(at, tl.where(opens | (key < low), key, low))
    tl.store(at + DIM, tl.where(opens | (key > high), key, high))


@triton.jit
def score_kernel(
    queries,
    keys,
    pool,
    table,
    context,
    scores,
    kv_heads,
    table_blocks,
    page_tokens,
    row_pages,
    splits,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_PAGES: tl.constexpr,
    PAGES: tl.constexpr,
):
    """Scores of a split of a sequence's pages for all heads of a KV head; a last split updates."""
    pair, split = tl.program_id(0), tl.program_id(1)
    row, head = pair // kv_heads, pair % kv_heads
    last = tl.load(context + row) - 1
    if split == splits:
        _update(
            keys,
            pool,
            table,
            row,
            head,
            last,
            kv_heads,
            table_blocks,
            page_tokens,
            BLOCK_PAGES,
            DIM,
        )
    else:
        pages = last // page_tokens
        share = tl.cdiv(tl.cdiv(pages, splits), PAGES) * PAGES
        lanes, channel = tl.arange(0, 16), tl.arange(0, DIM)
        at = (pair * GROUP + lanes[:, None]) * DIM + channel[None, :]
        query = tl.load(queries + at, mask=lanes[:, None] < GROUP, other=0.0)
        # The larger of q min and q max: q max where q is positive, q min where it is negative.
        positive = tl.where(query > 0, query, 0.0).to(query.dtype)
        negative = tl.where(query < 0, query, 0.0).to(query.dtype)
        for start in range(split * share, tl.minimum(pages, (split + 1) * share), PAGES):
            page = start + tl.arange(0, PAGES)
            real = page < pages
            rows = _summary_at(
                pool,
                table,
                row,
                tl.where(real, page, 0),
                head,
                kv_heads,
                table_blocks,
                BLOCK_PAGES,
                DIM,
            )
            source = rows[:, None] + channel[None, :]
            low = tl.load(source, mask=real[:, None], other=0.0)
            high = tl.load(source + DIM, mask=real[:, None], other=0.0)
            score = tl.dot(negative, tl.trans(low))
            score = tl.dot(positive, tl.trans(high), score)
            target = scores + (pair * GROUP + lanes[:, None]) * row_pages + page[None, :]
            tl.store(target, score, mask=(lanes[:, None] < GROUP) & real[None, :])


@triton.jit
def top_kernel(
    scores,
    indices,
    context,
    choosers,
    page_tokens,
    row_pages,
    top,
    scale,
    SHARE: tl.constexpr,
    BLOCK: tl.constexpr,
    TOP: tl.constexpr,
):
    """Top pages of one chooser: a query head, or ``SHARE`` heads by the sum of their softmax."""
    chooser = tl.program_id(0)
    pages = (tl.load(context + chooser // choosers) - 1) // page_tokens
    page = tl.arange(0, BLOCK)
    real = page < pages
    source = scores + chooser * SHARE * row_pages + page
    if SHARE == 1:
        value = tl.load(source, mask=real, other=0.0)
    else:
        value = tl.zeros([BLOCK], tl.float32)
        for member in tl.static_range(SHARE):
            score = tl.load(source + member * row_pages, mask=real, other=float("-inf")) * scale
            weight = tl.where(real, tl.exp2(score - tl.max(score, 0)), 0.0)
            value += weight / tl.sum(weight, 0)
    keys = tl.where(real, sort_keys(value), LOWEST)
    wanted = tl.minimum(top, pages)
    low, high, above = bounds(keys, indices, pages, wanted, BLOCK)
    target = indices + chooser * top
    place(target, keys, page, low, high, 0, above, wanted)
    pad(target, wanted, top, TOP)


@dataclass
class QuestRouter:
    """State of one layer's router and its intermediate results.

    Attributes
    ----------
    queries, keys
        [batch, kv_heads, group, head_dim] and [batch, kv_heads, head_dim], after RoPE.
    pool
        Summaries, see the module.
    table
        int32 [batch, table_blocks]: blocks of each sequence.
    context
        int32 [batch]: tokens in the cache, the current one included.
    row_pages
        Capacity in pages.
    top
        Pages to choose; the tail page is never one of them.
    shared
        Whether the heads of a KV head choose together.
    indices
        int32 [batch, heads or kv_heads, top], in no order, -1 for none.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    pool: torch.Tensor
    table: torch.Tensor
    context: torch.Tensor
    page_tokens: int
    row_pages: int
    top: int
    shared: bool = False

    def __post_init__(self) -> None:
        batch, kv_heads, group, _ = self.queries.shape
        choosers = kv_heads if self.shared else kv_heads * group
        self.scores = torch.full((batch, kv_heads, group, self.row_pages), float("nan"))
        self.indices = torch.full((batch, choosers, self.top), -1, dtype=torch.int32)

    def __call__(self) -> None:
        """Launch both kernels on the current stream."""
        batch, kv_heads, group, dim = self.queries.shape
        pairs, choosers = batch * kv_heads, self.indices.shape[1]
        # Several waves of programs, so that the last one is short.
        splits = max(1, min(8 * SMS // pairs, triton.cdiv(self.row_pages, SCORE_PAGES)))
        score_kernel[(pairs, splits + 1)](
            self.queries,
            self.keys,
            self.pool,
            self.table,
            self.context,
            self.scores,
            kv_heads,
            self.table.shape[1],
            self.page_tokens,
            self.row_pages,
            splits,
            group,
            dim,
            self.pool.shape[2],
            SCORE_PAGES,
            num_warps=SCORE_WARPS,
            num_stages=SCORE_STAGES,
        )
        wide = max(128, triton.next_power_of_2(self.row_pages))
        top_kernel[(batch * choosers,)](
            self.scores,
            self.indices,
            self.context,
            choosers,
            self.page_tokens,
            self.row_pages,
            self.top,
            dim**-0.5 * LOG2E,
            group if self.shared else 1,
            wide,
            triton.next_power_of_2(self.top),
            num_warps=max(1, min(16, wide // 256)),
        )


def random_router(
    batch: int,
    context_tokens: int,
    *,
    kv_heads: int = 8,
    group: int = 4,
    dim: int = 128,
    page_tokens: int = 16,
    block_pages: int = 8,
    top: int = 127,
    shared: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    like: QuestRouter | None = None,
) -> QuestRouter:
    """A router on fresh random queries, keys and summaries, blocks in random order.

    With ``like`` only the summaries are new.
    """
    pages = (context_tokens - 1) // page_tokens + 1
    blocks = -(-pages // block_pages)
    middle = torch.randn(batch * blocks, kv_heads, block_pages, dim, dtype=dtype)
    half = torch.rand_like(middle) * 2
    pool = torch.stack([middle - half, middle + half], dim=3)
    if like is not None:
        other = copy.copy(like)
        other.pool = pool
        return other
    return QuestRouter(
        torch.randn(batch, kv_heads, group, dim, dtype=dtype),
        torch.randn(batch, kv_heads, dim, dtype=dtype),
        pool,
        torch.randperm(batch * blocks).reshape(batch, blocks).int(),
        torch.full((batch,), context_tokens, dtype=torch.int32),
        page_tokens,
        pages,
        top,
        shared,
    )
