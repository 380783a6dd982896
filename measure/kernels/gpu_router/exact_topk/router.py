"""Exact top-k's router on the GPU: score every cached key, choose the best tokens of a KV head.

Four kernels, each split over the context. Scores with every split's softmax statistics; the mean
of the group's softmax with a histogram of every chunk; a compaction that keeps what lies above the
histogram's threshold bin and lists what lies in it; the rest of the choice from that list.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl

from measure.kernels.attention.launch import LOG2E, SMS, PagedCache
from measure.kernels.gpu_router.select import BIN_SHIFT, BINS, LOWEST, bin_of, bounds, pad, place

SCORE_TOKENS, SCORE_WARPS, SCORE_STAGES = 128, 4, 3
"""Tokens a step of the scoring loop, warps and depth of its pipeline."""
SPLITS, CHUNKS = 64, 32
"""Most splits and chunks of a row."""
LIST_BLOCK = 2048
"""Tokens that the last kernel takes at a time."""


@triton.jit
def score_kernel(
    queries,
    keys,
    table,
    context,
    scores,
    stats,
    kv_heads,
    table_blocks,
    row_tokens,
    splits,
    scale,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    TOKENS: tl.constexpr,
):
    """Scores (base 2) of a split of a sequence's tokens for all heads of a KV head.

    ``stats`` [pairs, splits, group, 2] are their maximum and the sum of powers below it.
    """
    pair, split = tl.program_id(0), tl.program_id(1)
    row, head = pair // kv_heads, pair % kv_heads
    tokens = tl.load(context + row)
    share = tl.cdiv(tl.cdiv(tokens, splits), TOKENS) * TOKENS
    lanes, channel = tl.arange(0, 16), tl.arange(0, DIM)
    at = (pair * GROUP + lanes[:, None]) * DIM + channel[None, :]
    query = tl.load(queries + at, mask=lanes[:, None] < GROUP, other=0.0)
    peak = tl.full([16], float("-inf"), tl.float32)
    total = tl.zeros([16], tl.float32)
    for start in range(split * share, tl.minimum(tokens, (split + 1) * share), TOKENS):
        token = start + tl.arange(0, TOKENS)
        real = token < tokens
        block = tl.load(table + row * table_blocks + token // BLOCK_TOKENS, mask=real, other=0)
        first = ((block.to(tl.int64) * kv_heads + head) * BLOCK_TOKENS + token % BLOCK_TOKENS) * DIM
        key = tl.load(keys + first[:, None] + channel[None, :], mask=real[:, None], other=0.0)
        score = tl.dot(query, tl.trans(key)) * scale
        target = scores + (pair * GROUP + lanes[:, None]) * row_tokens + token[None, :]
        tl.store(target, score, mask=(lanes[:, None] < GROUP) & real[None, :])
        score = tl.where(real[None, :], score, float("-inf"))
        new = tl.maximum(peak, tl.max(score, 1))
        total = total * tl.exp2(peak - new) + tl.sum(tl.exp2(score - new[:, None]), 1)
        peak = new
    base = stats + ((pair * splits + split) * GROUP + lanes) * 2
    tl.store(base, peak, mask=lanes < GROUP)
    tl.store(base + 1, total, mask=lanes < GROUP)


@triton.jit
def mean_kernel(
    scores,
    stats,
    context,
    means,
    counts,
    kv_heads,
    row_tokens,
    splits,
    first_bin,
    GROUP: tl.constexpr,
    CHUNK: tl.constexpr,
    SPLITS: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """Bits of the mean softmax of a chunk, and how many of its tokens fall into each bin."""
    pair, chunk = tl.program_id(0), tl.program_id(1)
    tokens = tl.load(context + pair // kv_heads)
    if chunk * CHUNK < tokens:
        token, split = chunk * CHUNK + tl.arange(0, CHUNK), tl.arange(0, SPLITS)
        real = token < tokens
        mean = tl.zeros([CHUNK], tl.float32)
        for member in tl.static_range(GROUP):
            base = stats + ((pair * splits + split) * GROUP + member) * 2
            peak = tl.load(base, mask=split < splits, other=float("-inf"))
            part = tl.load(base + 1, mask=split < splits, other=0.0)
            most = tl.max(peak, 0)
            whole = tl.sum(part * tl.exp2(peak - most), 0) * GROUP
            source = scores + (pair * GROUP + member) * row_tokens + token
            mean += tl.exp2(tl.load(source, mask=real, other=0.0) - most) / whole
        bits = mean.to(tl.int32, bitcast=True)
        tl.store(means + pair * row_tokens + token, bits, mask=real)
        count = tl.histogram(bin_of(bits, first_bin), BINS, mask=real)
        tl.store(counts + (pair * CHUNKS + chunk) * BINS + tl.arange(0, BINS), count)


@triton.jit
def compact_kernel(
    means,
    counts,
    context,
    indices,
    list_bits,
    list_tokens,
    sizes,
    kv_heads,
    row_tokens,
    top,
    first_bin,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """Keep a chunk's tokens above the bin that the ``top``-th lies in; list those inside it.

    ``sizes`` [pairs, 2] are the tokens kept and listed of a whole row.
    """
    pair, chunk = tl.program_id(0), tl.program_id(1)
    tokens = tl.load(context + pair // kv_heads)
    if chunk * CHUNK < tokens:
        wanted = tl.minimum(top, tokens)
        each, bins = tl.arange(0, CHUNKS), tl.arange(0, BINS)
        source = counts + (pair * CHUNKS + each[:, None]) * BINS + bins[None, :]
        count = tl.load(source, mask=each[:, None] * CHUNK < tokens, other=0)
        before = tl.sum(tl.where(each[:, None] < chunk, count, 0), 0)
        whole = tl.sum(count, 0)
        limit = tl.sum((tl.cumsum(whole, 0) < wanted).to(tl.int32), 0)
        token = chunk * CHUNK + tl.arange(0, CHUNK)
        real = token < tokens
        bits = tl.load(means + pair * row_tokens + token, mask=real, other=0)
        where = bin_of(bits, first_bin)
        kept, listed = real & (where < limit), real & (where == limit)
        slot = tl.sum(tl.where(bins < limit, before, 0), 0) + tl.cumsum(kept.to(tl.int32), 0) - 1
        tl.store(indices + pair * top + slot, token, mask=kept)
        slot = tl.sum(tl.where(bins == limit, before, 0), 0) + tl.cumsum(listed.to(tl.int32), 0) - 1
        tl.store(list_bits + pair * row_tokens + slot, bits, mask=listed)
        tl.store(list_tokens + pair * row_tokens + slot, token, mask=listed)
        if chunk == 0:
            tl.store(sizes + 2 * pair, tl.sum(tl.where(bins < limit, whole, 0), 0))
            tl.store(sizes + 2 * pair + 1, tl.sum(tl.where(bins == limit, whole, 0), 0))


@triton.jit
def finish_kernel(
    list_bits,
    list_tokens,
    sizes,
    context,
    indices,
    kv_heads,
    row_tokens,
    top,
    BLOCK: tl.constexpr,
    TOP: tl.constexpr,
):
    """Fill a row up from its list, and with -1 where there are fewer than ``top`` tokens."""
    pair = tl.program_id(0)
    end = tl.minimum(top, tl.load(context + pair // kv_heads))
    kept, count = tl.load(sizes + 2 * pair), tl.load(sizes + 2 * pair + 1)
    source, lane = list_bits + pair * row_tokens, tl.arange(0, BLOCK)
    first = tl.load(source + lane, mask=lane < count, other=LOWEST)
    low, high, above = bounds(first, source, count, end - kept, BLOCK)
    target, sure, tied = indices + pair * top, kept, kept + above
    for start in range(0, count, BLOCK):
        at = start + lane
        keys = tl.load(source + at, mask=at < count, other=LOWEST)
        token = tl.load(list_tokens + pair * row_tokens + at, mask=at < count, other=0)
        sure, tied = place(target, keys, token, low, high, sure, tied, end)
    pad(target, end, top, TOP)


@dataclass
class ExactTopKRouter:
    """State of one layer's router and its intermediate results.

    Attributes
    ----------
    queries
        [batch, kv_heads, group, head_dim], after RoPE, in the dtype of the keys.
    cache
        Its keys hold the current token's; values are not read.
    row_tokens
        Capacity.
    top
        Tokens to choose for each KV head.
    indices
        int32 [batch, kv_heads, top], in no order, -1 for none.
    """

    queries: torch.Tensor
    cache: PagedCache
    row_tokens: int
    top: int

    def __post_init__(self) -> None:
        batch, kv_heads, group, _ = self.queries.shape
        pairs, ints = batch * kv_heads, torch.int32
        # Several waves of programs, so that the last one is short.
        splits = min(8 * SMS // pairs, triton.cdiv(self.row_tokens, SCORE_TOKENS), SPLITS)
        self.splits = max(1, splits)
        self.chunk = max(1024, triton.next_power_of_2(self.row_tokens) // CHUNKS)
        self.scores = torch.full((pairs, group, self.row_tokens), float("nan"))
        self.stats = torch.empty((pairs, self.splits, group, 2), dtype=torch.float32)
        self.means = torch.empty((pairs, self.row_tokens), dtype=ints)
        self.counts = torch.empty((pairs, CHUNKS, BINS.value), dtype=ints)
        self.list_bits, self.list_tokens = (torch.empty_like(self.means) for _ in range(2))
        self.sizes = torch.empty((pairs, 2), dtype=ints)
        self.indices = torch.full((batch, kv_heads, self.top), -1, dtype=ints)

    def __call__(self) -> None:
        """Launch the kernels on the current stream."""
        cache, (batch, kv_heads, group, dim) = self.cache, self.queries.shape
        pairs, row = batch * kv_heads, self.row_tokens
        chunks = (pairs, triton.cdiv(row, self.chunk))
        # No more than `top` means exceed 1/top: the threshold is at most that, and so is bin 0.
        first_bin = int(np.float32(1 / self.top).view(np.int32)) >> BIN_SHIFT.value
        score_kernel[(pairs, self.splits)](
            self.queries,
            cache.keys,
            cache.table,
            cache.context,
            self.scores,
            self.stats,
            kv_heads,
            cache.table.shape[1],
            row,
            self.splits,
            dim**-0.5 * LOG2E,
            group,
            dim,
            cache.block_tokens,
            SCORE_TOKENS,
            num_warps=SCORE_WARPS,
            num_stages=SCORE_STAGES,
        )
        mean_kernel[chunks](
            self.scores,
            self.stats,
            cache.context,
            self.means,
            self.counts,
            kv_heads,
            row,
            self.splits,
            first_bin,
            group,
            self.chunk,
            SPLITS,
            CHUNKS,
            num_warps=4,
        )
        compact_kernel[chunks](
            self.means,
            self.counts,
            cache.context,
            self.indices,
            self.list_bits,
            self.list_tokens,
            self.sizes,
            kv_heads,
            row,
            self.top,
            first_bin,
            self.chunk,
            CHUNKS,
            num_warps=8,
        )
        finish_kernel[(pairs,)](
            self.list_bits,
            self.list_tokens,
            self.sizes,
            cache.context,
            self.indices,
            kv_heads,
            row,
            self.top,
            LIST_BLOCK,
            triton.next_power_of_2(self.top),
            num_warps=8,
        )
