"""Kernels of decode attention, in Triton; see `attention`."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


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
def _finish(
    result,
    partial,
    stats,
    pair,
    split,
    splits,
    lanes,
    channel,
    peak,
    total,
    out,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    SPLIT: tl.constexpr,
):
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
def dense_kernel(
    queries,
    keys,
    values,
    table,
    context,
    result,
    partial,
    stats,
    kv_heads,
    table_blocks,
    splits,
    scale,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    TOKENS: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """A split of a sequence's tokens for all heads of a KV head."""
    pair, split = tl.program_id(0), tl.program_id(1)
    row, head = pair // kv_heads, pair % kv_heads
    tokens = tl.load(context + row)
    share = tl.cdiv(tl.cdiv(tokens, splits), TOKENS) * TOKENS
    lanes, channel = tl.arange(0, 16), tl.arange(0, DIM)
    query = tl.load(
        queries + (pair * GROUP + lanes[:, None]) * DIM + channel[None, :],
        mask=lanes[:, None] < GROUP,
        other=0.0,
    )
    peak = tl.full([16], float("-inf"), tl.float32)
    total = tl.zeros([16], tl.float32)
    out = tl.zeros([16, DIM], tl.float32)
    for start in range(split * share, tl.minimum(tokens, (split + 1) * share), TOKENS):
        token = start + tl.arange(0, TOKENS)
        real = token < tokens
        block = tl.load(table + row * table_blocks + token // BLOCK_TOKENS, mask=real, other=0)
        at = ((block.to(tl.int64) * kv_heads + head) * BLOCK_TOKENS + token % BLOCK_TOKENS) * DIM
        peak, total, out = _attend(
            query, keys, values, at, real, real, channel, scale, peak, total, out
        )
    _finish(
        result,
        partial,
        stats,
        pair,
        split,
        splits,
        lanes,
        channel,
        peak,
        total,
        out,
        GROUP,
        DIM,
        SPLIT,
    )


@triton.jit
def sparse_kernel(
    queries,
    keys,
    values,
    table,
    context,
    indices,
    result,
    partial,
    stats,
    kv_heads,
    table_blocks,
    splits,
    scale,
    top,
    page_tokens,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    TOKENS: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """A split of the chosen pages and the tail page, every touched block read whole.

    ``indices`` [pairs, top] are pages; a page lies in block ``page * page_tokens // BLOCK_TOKENS``.
    All tokens of a touched block are loaded; those outside the chosen page are masked, so that a
    block of two chosen pages counts each token once.
    """
    pair, split = tl.program_id(0), tl.program_id(1)
    row, head = pair // kv_heads, pair % kv_heads
    tokens = tl.load(context + row)
    lanes, channel = tl.arange(0, 16), tl.arange(0, DIM)
    query = tl.load(
        queries + (pair * GROUP + lanes[:, None]) * DIM + channel[None, :],
        mask=lanes[:, None] < GROUP,
        other=0.0,
    )
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
            query, keys, values, at, there, real, channel, scale, peak, total, out
        )
    _finish(
        result,
        partial,
        stats,
        pair,
        split,
        splits,
        lanes,
        channel,
        peak,
        total,
        out,
        GROUP,
        DIM,
        SPLIT,
    )


@triton.jit
def join_kernel(
    partial, stats, result, splits, GROUP: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr
):
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
