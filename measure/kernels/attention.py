"""Attention of a decode step: dense with split KV, and sparse over selected pages.

One program takes all heads of a KV head, so that keys and values are read once. The cache of a
sequence is paged: [blocks, kv_heads, block_tokens, head_dim] each for keys and values, with a block
table [batch, table_blocks]. Splits are joined by a second kernel, as in flash-decoding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from essim.errors import InputError

SMS = 132
LOG2E = 1.4426950408889634


@triton.jit
def _attend(query, keys, values, at, there, real, channel, scale, peak, total, out):
    """One online-softmax step: of the tokens at offsets ``at``, read ``there``, count ``real``."""
    source = at[:, None] + channel[None, :]
    key = tl.load(keys + source, mask=there[:, None], other=0.0)
    value = tl.load(values + source, mask=there[:, None], other=0.0)
    score = tl.dot(query, tl.trans(key)) * scale
    score = tl.where(real[None, :], score, float("-inf"))
    new = tl.maximum(peak, tl.max(score, 1))
    # A split without tokens keeps -inf; avoid inf - inf.
    base = tl.where(new == float("-inf"), 0.0, new)
    weight = tl.exp2(score - base[:, None])
    decay = tl.exp2(peak - base)
    total = total * decay + tl.sum(weight, 1)
    out = out * decay[:, None] + tl.dot(weight.to(value.dtype), value)
    return new, total, out


@triton.jit
def _finish(result, partial, stats, pair, split, splits, lanes, channel, peak, total, out,
            GROUP: tl.constexpr, DIM: tl.constexpr, SPLIT: tl.constexpr):
    """Write the result, or where there are splits its part with peak and total."""
    heads = lanes[:, None] < GROUP
    if SPLIT:
        base = ((pair * splits + split) * GROUP + lanes) * 2
        tl.store(stats + base, peak, mask=lanes < GROUP)
        tl.store(stats + base + 1, total, mask=lanes < GROUP)
        at = ((pair * splits + split) * GROUP + lanes[:, None]) * DIM + channel[None, :]
        tl.store(partial + at, out, mask=heads)
    else:
        at = (pair * GROUP + lanes[:, None]) * DIM + channel[None, :]
        tl.store(result + at, (out / total[:, None]).to(result.dtype.element_ty), mask=heads)


@triton.jit
def dense_kernel(queries, keys, values, table, context, result, partial, stats, kv_heads,
                 table_blocks, splits, scale, GROUP: tl.constexpr, DIM: tl.constexpr,
                 BLOCK_TOKENS: tl.constexpr, TOKENS: tl.constexpr, SPLIT: tl.constexpr):
    """A split of a sequence's tokens for all heads of a KV head."""
    pair, split = tl.program_id(0), tl.program_id(1)
    row, head = pair // kv_heads, pair % kv_heads
    tokens = tl.load(context + row)
    share = tl.cdiv(tl.cdiv(tokens, splits), TOKENS) * TOKENS
    lanes, channel = tl.arange(0, 16), tl.arange(0, DIM)
    query = tl.load(queries + (pair * GROUP + lanes[:, None]) * DIM + channel[None, :],
                    mask=lanes[:, None] < GROUP, other=0.0)
    peak = tl.full([16], float("-inf"), tl.float32)
    total = tl.zeros([16], tl.float32)
    out = tl.zeros([16, DIM], tl.float32)
    for start in range(split * share, tl.minimum(tokens, (split + 1) * share), TOKENS):
        token = start + tl.arange(0, TOKENS)
        real = token < tokens
        block = tl.load(table + row * table_blocks + token // BLOCK_TOKENS, mask=real, other=0)
        at = ((block.to(tl.int64) * kv_heads + head) * BLOCK_TOKENS + token % BLOCK_TOKENS) * DIM
        peak, total, out = _attend(
            query, keys, values, at, real, real, channel, scale, peak, total, out)
    _finish(result, partial, stats, pair, split, splits, lanes, channel, peak, total, out,
            GROUP, DIM, SPLIT)


@triton.jit
def sparse_kernel(queries, keys, values, table, context, indices, result, partial, stats, kv_heads,
                  table_blocks, splits, scale, top, page_tokens, GROUP: tl.constexpr,
                  DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr, TOKENS: tl.constexpr,
                  SPLIT: tl.constexpr):
    """A split of the chosen pages and the tail page, every touched block read whole.

    ``indices`` [pairs, top] are pages; a page lies in block ``page * page_tokens // BLOCK_TOKENS``.
    All tokens of a touched block are loaded; those outside the chosen page are masked, so that a
    block of two chosen pages counts each token once.
    """
    pair, split = tl.program_id(0), tl.program_id(1)
    row, head = pair // kv_heads, pair % kv_heads
    tokens = tl.load(context + row)
    lanes, channel = tl.arange(0, 16), tl.arange(0, DIM)
    query = tl.load(queries + (pair * GROUP + lanes[:, None]) * DIM + channel[None, :],
                    mask=lanes[:, None] < GROUP, other=0.0)
    peak = tl.full([16], float("-inf"), tl.float32)
    total = tl.zeros([16], tl.float32)
    out = tl.zeros([16, DIM], tl.float32)
    slots = TOKENS // BLOCK_TOKENS
    for start in range(split * slots, top + 1, slots * splits):
        lane = tl.arange(0, TOKENS)
        slot = start + lane // BLOCK_TOKENS
        page = tl.load(indices + pair * top + slot, mask=slot < top, other=-1)
        page = tl.where(slot == top, (tokens - 1) // page_tokens, page)
        there = page >= 0
        first = page * page_tokens
        token = first // BLOCK_TOKENS * BLOCK_TOKENS + lane % BLOCK_TOKENS
        block = tl.load(table + row * table_blocks + first // BLOCK_TOKENS, mask=there, other=0)
        at = ((block.to(tl.int64) * kv_heads + head) * BLOCK_TOKENS + lane % BLOCK_TOKENS) * DIM
        real = there & (token >= first) & (token < first + page_tokens) & (token < tokens)
        peak, total, out = _attend(
            query, keys, values, at, there, real, channel, scale, peak, total, out)
    _finish(result, partial, stats, pair, split, splits, lanes, channel, peak, total, out,
            GROUP, DIM, SPLIT)


@triton.jit
def join_kernel(partial, stats, result, splits, GROUP: tl.constexpr, DIM: tl.constexpr,
                SPLITS: tl.constexpr):
    """Join the splits of one head."""
    pair, head = tl.program_id(0), tl.program_id(1)
    split, channel = tl.arange(0, SPLITS), tl.arange(0, DIM)
    base = (pair * splits + split) * GROUP + head
    real = split < splits
    peak = tl.load(stats + base * 2, mask=real, other=float("-inf"))
    total = tl.load(stats + base * 2 + 1, mask=real, other=0.0)
    weight = tl.exp2(peak - tl.max(peak, 0))
    part = tl.load(partial + base[:, None] * DIM + channel[None, :], mask=real[:, None], other=0.0)
    out = tl.sum(part * weight[:, None], 0) / tl.sum(total * weight, 0)
    tl.store(result + (pair * GROUP + head) * DIM + channel, out.to(result.dtype.element_ty))


@dataclass
class PagedCache:
    """Keys and values of one layer.

    keys, values [blocks, kv_heads, block_tokens, head_dim]; table int32 [batch, table_blocks];
    context int32 [batch], the current token included.
    """

    keys: torch.Tensor
    values: torch.Tensor
    table: torch.Tensor
    context: torch.Tensor

    @property
    def block_tokens(self) -> int:
        """Tokens a block."""
        return int(self.keys.shape[2])


@dataclass
class Attention:
    """Decode attention over a cache; sparse where ``indices`` are given.

    Attributes
    ----------
    queries
        BF16 [batch, kv_heads, group, head_dim].
    splits
        Programs a (sequence, KV head); the second kernel runs where there are several.
    indices
        int32 [batch, kv_heads, top], -1 for none; the tail page is added.
    """

    queries: torch.Tensor
    cache: PagedCache
    splits: int
    indices: torch.Tensor | None = None
    page_tokens: int = 4
    tokens_step: int = 64
    num_warps: int = 4
    num_stages: int = 3

    def __post_init__(self) -> None:
        batch, kv_heads, group, dim = self.queries.shape
        if self.tokens_step % self.cache.block_tokens and self.indices is not None:
            raise InputError("attention: the step must be a multiple of the block")
        parts = (batch * kv_heads, self.splits, group)
        self.result = torch.full_like(self.queries, float("nan"))
        self.partial = torch.empty((*parts, dim), dtype=torch.float32)
        self.stats = torch.empty((*parts, 2), dtype=torch.float32)

    def __call__(self) -> None:
        """Launch on the current stream."""
        batch, kv_heads, group, dim = self.queries.shape
        cache, pairs, scale = self.cache, batch * kv_heads, dim**-0.5 * LOG2E
        rest = (kv_heads, cache.table.shape[1], self.splits, scale)
        outputs = (self.result, self.partial, self.stats)
        inputs = (self.queries, cache.keys, cache.values, cache.table, cache.context)
        shape = (group, dim, cache.block_tokens, self.tokens_step, self.splits > 1)
        if self.indices is None:
            dense_kernel[(pairs, self.splits)](
                *inputs, *outputs, *rest, *shape, num_warps=self.num_warps,
                num_stages=self.num_stages)
        else:
            sparse_kernel[(pairs, self.splits)](
                *inputs, self.indices, *outputs, *rest, self.indices.shape[-1], self.page_tokens,
                *shape, num_warps=self.num_warps, num_stages=2)
        if self.splits > 1:
            join_kernel[(pairs, group)](
                self.partial, self.stats, self.result, self.splits, group, dim,
                triton.next_power_of_2(self.splits), num_warps=2)


def dense_attention(queries: torch.Tensor, cache: PagedCache, tokens: int) -> Attention:
    """Dense attention, tuned for ``tokens``: two waves over the SMs, two steps a program."""
    pairs, step = queries.shape[0] * queries.shape[1], 128
    splits = max(1, min(2 * SMS // pairs, tokens // (2 * step), 128))
    return Attention(queries, cache, splits, tokens_step=step)


def sparse_attention(
    queries: torch.Tensor, cache: PagedCache, indices: torch.Tensor, page_tokens: int = 4
) -> Attention:
    """Sparse attention, tuned: one step where the tokens fit and SMs are idle, else splits."""
    pairs, block = queries.shape[0] * queries.shape[1], cache.block_tokens
    slots = (indices.shape[-1] + 1) * block
    if slots <= 256 and pairs <= SMS:
        step = max(64, triton.next_power_of_2(slots))
        return Attention(queries, cache, 1, indices, page_tokens, step, 8)
    splits = max(1, min(8, 4 * SMS // pairs, slots // 128))
    return Attention(queries, cache, splits, indices, page_tokens, 128, 4)


def random_cache(
    batch: int, tokens: int, *, kv_heads: int = 8, dim: int = 128, block_tokens: int = 32,
    contiguous: bool = False, dtype: torch.dtype = torch.bfloat16,
) -> PagedCache:
    """A cache of random tokens whose blocks lie in random order, or in order."""
    blocks = -(-tokens // block_tokens)
    shape = (batch * blocks, kv_heads, block_tokens, dim)
    order = torch.arange(batch * blocks) if contiguous else torch.randperm(batch * blocks)
    return PagedCache(
        torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype),
        order.reshape(batch, blocks).int(), torch.full((batch,), tokens, dtype=torch.int32))


def random_pages(batch: int, kv_heads: int, pages: int, top: int) -> torch.Tensor:
    """Different random pages for each KV head, int32 [batch, kv_heads, top], -1 for none."""
    order = torch.rand(batch, kv_heads, pages).argsort(dim=-1)[..., :top].int()
    return torch.nn.functional.pad(order, (0, top - order.shape[-1]), value=-1).contiguous()
