"""Kernels of the stepwise GPU router, in Triton; see `router_stepwise`.

Summaries are e5m2 codes in uint8, paged: [blocks, kv_heads, block_pages, 2 (min, max), head_dim].
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def decode_e5m2(code):
    """Values of codes: the top byte of an fp16."""
    return (code.to(tl.uint16) << 8).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def encode_e5m2(value):
    """Round BF16 values to nearest even; they are exact in fp16 within its range."""
    value = tl.minimum(tl.maximum(value.to(tl.float32), -57344.0), 57344.0)
    half = value.to(tl.float16).to(tl.uint16, bitcast=True).to(tl.uint32)
    code = (half + 0x7F + ((half >> 8) & 1)) >> 8
    return tl.where(code == 0x80, 0, code).to(tl.uint8)


@triton.jit
def _summary_at(
    pool,
    table,
    row,
    page,
    head,
    kv_heads,
    table_blocks,
    BLOCK_PAGES: tl.constexpr,
    DIM: tl.constexpr,
):
    """Address of a page's min row; its max row follows."""
    block = tl.load(table + row * table_blocks + page // BLOCK_PAGES).to(tl.int64)
    return pool + ((block * kv_heads + head) * BLOCK_PAGES + page % BLOCK_PAGES) * 2 * DIM


@triton.jit
def update_kernel(
    keys,
    pool,
    table,
    context,
    kv_heads,
    table_blocks,
    page_tokens,
    BLOCK_PAGES: tl.constexpr,
    DIM: tl.constexpr,
):
    """Take the current token's key into the tail page's min and max."""
    row, head = tl.program_id(0), tl.program_id(1)
    last = tl.load(context + row) - 1
    channel = tl.arange(0, DIM)
    code = encode_e5m2(tl.load(keys + (row * kv_heads + head) * DIM + channel))
    at = (
        _summary_at(
            pool, table, row, last // page_tokens, head, kv_heads, table_blocks, BLOCK_PAGES, DIM
        )
        + channel
    )
    opens = last % page_tokens == 0
    low, high = tl.load(at), tl.load(at + DIM)
    value = decode_e5m2(code)
    tl.store(at, tl.where(opens | (value < decode_e5m2(low)), code, low))
    tl.store(at + DIM, tl.where(opens | (value > decode_e5m2(high)), code, high))


@triton.jit
def filter_kernel(queries, filtered, scales, channels, GROUP: tl.constexpr, DIM: tl.constexpr):
    """Zero all but the top channels by summed |q|; the scale of each head's scores."""
    pair = tl.program_id(0)
    head, channel = tl.arange(0, GROUP), tl.arange(0, DIM)
    at = (pair * GROUP + head[:, None]) * DIM + channel[None, :]
    query = tl.load(queries + at).to(tl.float32)
    size = tl.sum(tl.abs(query), 0)
    # The same sums laid out along the other axis, to compare all with all.
    across = tl.sum(tl.where(channel[:, None] == channel[None, :], size[None, :], 0.0), 1)
    before = (size[None, :] > across[:, None]) | (
        (size[None, :] == across[:, None]) & (channel[None, :] < channel[:, None])
    )
    rank = tl.sum(before.to(tl.int32), 1)
    rank = tl.sum(tl.where(channel[:, None] == channel[None, :], rank[:, None], 0), 0)
    kept = tl.where(rank[None, :] < channels, query, 0.0)
    chosen, total = tl.sum(tl.abs(kept), 1), tl.sum(tl.abs(query), 1)
    scale = tl.where(chosen > 0, 1.0 / tl.sqrt(DIM * chosen / total), 1.0)
    tl.store(filtered + at, kept.to(tl.bfloat16))
    tl.store(scales + pair * GROUP + head, scale)


@triton.jit
def score_kernel(
    queries,
    scales,
    pool,
    table,
    context,
    scores,
    kv_heads,
    table_blocks,
    page_tokens,
    row_pages,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_PAGES: tl.constexpr,
    PAGES: tl.constexpr,
):
    """Score every page before the tail page, ``PAGES`` at a time, one after the other."""
    row, head = tl.program_id(0), tl.program_id(1)
    pages = (tl.load(context + row) - 1) // page_tokens
    pair = row * kv_heads + head
    lanes, channel = tl.arange(0, 16), tl.arange(0, DIM)
    at = (pair * GROUP + lanes[:, None]) * DIM + channel[None, :]
    query = tl.load(queries + at, mask=lanes[:, None] < GROUP, other=0.0)
    # Queries and summaries are exact in fp16.
    query = query.to(tl.float16)
    upper = tl.sum(query.to(tl.float32), 0) > 0
    scale = tl.load(scales + pair * GROUP + lanes, mask=lanes < GROUP, other=0.0)
    for start in range(0, pages, PAGES):
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
        low = tl.load(source, mask=real[:, None], other=0)
        high = tl.load(source + DIM, mask=real[:, None], other=0)
        chosen = decode_e5m2(tl.where(upper[None, :], high, low)).to(tl.float16)
        score = tl.dot(query, tl.trans(chosen)) * scale[:, None]
        target = scores + (pair * GROUP + lanes[:, None]) * row_pages + page[None, :]
        tl.store(target, score, mask=(lanes[:, None] < GROUP) & real[None, :])


@triton.jit
def softmax_kernel(
    scores, probabilities, context, heads, page_tokens, row_pages, BLOCK: tl.constexpr
):
    """Softmax over pages in three passes, one program a head."""
    head, row = tl.program_id(0), tl.program_id(1)
    pages = (tl.load(context + row) - 1) // page_tokens
    base = (row * heads + head) * row_pages
    lane = tl.arange(0, BLOCK)
    most = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, pages, BLOCK):
        at = start + lane
        most = tl.maximum(most, tl.load(scores + base + at, mask=at < pages, other=float("-inf")))
    peak = tl.max(most, 0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, pages, BLOCK):
        at = start + lane
        score = tl.load(scores + base + at, mask=at < pages, other=float("-inf"))
        total += tl.exp(score - peak)
    inverse = 1.0 / tl.sum(total, 0)
    for start in range(0, pages, BLOCK):
        at = start + lane
        score = tl.load(scores + base + at, mask=at < pages, other=float("-inf"))
        tl.store(probabilities + base + at, tl.exp(score - peak) * inverse, mask=at < pages)


@triton.jit
def reduce_kernel(
    probabilities,
    sums,
    context,
    kv_heads,
    page_tokens,
    row_pages,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sum over the heads of a group."""
    row, head = tl.program_id(0), tl.program_id(1)
    pages = (tl.load(context + row) - 1) // page_tokens
    pair = row * kv_heads + head
    for start in range(0, pages, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total = tl.zeros([BLOCK], tl.float32)
        for member in tl.static_range(GROUP):
            source = probabilities + (pair * GROUP + member) * row_pages + at
            total += tl.load(source, mask=at < pages, other=0.0)
        tl.store(sums + pair * row_pages + at, total, mask=at < pages)


@triton.jit
def top_kernel(sums, indices, context, kv_heads, page_tokens, row_pages, top, BLOCK: tl.constexpr):
    """Top pages, ascending (ties: the lowest), by radix over the bits of the sums.

    Positive floats sort like their bits; four histograms of a byte each find the threshold.
    """
    row, head = tl.program_id(0), tl.program_id(1)
    pages = (tl.load(context + row) - 1) // page_tokens
    pair = row * kv_heads + head
    at = tl.arange(0, BLOCK)
    real = at < pages
    bits = tl.load(sums + pair * row_pages + at, mask=real, other=0.0).to(tl.int32, bitcast=True)
    wanted = tl.minimum(top, pages)
    threshold = 0
    live = real
    bins = tl.arange(0, 256)
    for step in tl.static_range(4):
        shift = 24 - 8 * step
        digit = (bits >> shift) & 0xFF
        counts = tl.histogram(digit, 256, mask=live)
        above = tl.sum(counts, 0) - tl.cumsum(counts, 0)
        # The digit of the threshold: fewer than `wanted` lie above it, enough from it on.
        found = (above < wanted) & (above + counts >= wanted)
        chosen = tl.sum(tl.where(found, bins, 0), 0)
        wanted -= tl.sum(tl.where(found, above, 0), 0)
        threshold += chosen << shift
        live = live & (digit == chosen)
    tied = real & (bits == threshold)
    kept = (real & (bits > threshold)) | (tied & (tl.cumsum(tied.to(tl.int32), 0) <= wanted))
    slot = tl.cumsum(kept.to(tl.int32), 0) - 1
    tl.store(indices + pair * top + slot, at, mask=kept)


@triton.jit
def offset_kernel(
    indices,
    table,
    offsets,
    context,
    kv_heads,
    table_blocks,
    page_tokens,
    top,
    BLOCK_PAGES: tl.constexpr,
    TOP: tl.constexpr,
):
    """Offset in pages of each chosen page in the KV pool, through the block table; -1 for none."""
    head, row = tl.program_id(0), tl.program_id(1)
    pages = (tl.load(context + row) - 1) // page_tokens
    slot = tl.arange(0, TOP)
    base = (row * kv_heads + head) * top
    there = slot < tl.minimum(top, pages)
    page = tl.load(indices + base + slot, mask=there, other=0)
    block = tl.load(table + row * table_blocks + page // BLOCK_PAGES, mask=there, other=0)
    offset = block * BLOCK_PAGES + page % BLOCK_PAGES
    tl.store(offsets + base + slot, tl.where(there, offset, -1), mask=slot < top)
