"""Pieces of top-k kernels, in Triton: a threshold by bisecting the bits of a row's values."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

LOWEST = tl.constexpr(-(1 << 31))
"""Key of what is not there: below every real one."""
BIN_SHIFT, BINS = tl.constexpr(20), tl.constexpr(256)
"""Bits of a value below its bin: eight bins for each of 32 powers of two."""


@triton.jit
def sort_keys(values):
    """Integers that sort like fp32 values."""
    bits = values.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def bin_of(bits, first_bin):
    """Bin of a positive fp32's bits: the larger the value, the lower its bin."""
    return tl.minimum(tl.maximum(first_bin - (bits >> BIN_SHIFT), 0), BINS - 1)


@triton.jit
def bounds(first, more, count, wanted, BLOCK: tl.constexpr):
    """Return ``low``, ``high`` and how many keys reach ``high``: fewer than ``wanted``.

    At least ``wanted`` reach ``low``; keys between the two are equal, or all of them are wanted.
    ``first`` [BLOCK] are the first keys, `LOWEST` where there are none; those past them, if
    ``count`` is larger, are at ``more``.
    """
    least = tl.min(tl.where(first == LOWEST, 0x7FFFFFFF, first), 0)
    most = tl.max(first, 0)
    for start in range(BLOCK, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        keys = tl.load(more + at, mask=at < count, other=LOWEST)
        least = tl.minimum(least, tl.min(tl.where(keys == LOWEST, 0x7FFFFFFF, keys), 0))
        most = tl.maximum(most, tl.max(keys, 0))
    low, high, reached, above = least, most + 1, count, 0
    while (reached > wanted) & (low < high - 1):
        # The mean of two integers whose sum may overflow.
        middle = (low & high) + ((low ^ high) >> 1)
        found = tl.sum((first >= middle).to(tl.int32), 0)
        for start in range(BLOCK, count, BLOCK):
            at = start + tl.arange(0, BLOCK)
            keys = tl.load(more + at, mask=at < count, other=LOWEST)
            found += tl.sum((keys >= middle).to(tl.int32), 0)
        enough = found >= wanted
        low, reached = tl.where(enough, middle, low), tl.where(enough, found, reached)
        high, above = tl.where(enough, high, middle), tl.where(enough, above, found)
    return low, high, above


@triton.jit
def place(target, keys, items, low, high, sure_slot, tied_slot, end):
    """Store the items whose keys reach ``high``, and of those that reach ``low`` up to ``end``.

    They go to ``target`` from ``sure_slot`` and ``tied_slot`` on. Return the next two slots.
    """
    sure = keys >= high
    tied = (keys >= low) & (keys < high)
    # Two prefix sums in one: blocks have fewer than 2**15 keys.
    packed = tl.cumsum(sure.to(tl.int32) + (tied.to(tl.int32) << 16), 0)
    sure_at = sure_slot + (packed & 0xFFFF) - 1
    tied_at = tied_slot + (packed >> 16) - 1
    tl.store(target + tl.where(sure, sure_at, tied_at), items, mask=sure | (tied & (tied_at < end)))
    sure_slot += tl.sum(sure.to(tl.int32), 0)
    return sure_slot, tied_slot + tl.sum(tied.to(tl.int32), 0)


@triton.jit
def pad(target, start, top, TOP: tl.constexpr):
    """Store -1 from slot ``start`` to ``top``."""
    slot = tl.arange(0, TOP)
    tl.store(target + slot, -1, mask=(slot >= start) & (slot < top))
