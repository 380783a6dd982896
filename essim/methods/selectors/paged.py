"""Tokens attended to and read when a step takes routed pages and the most recent page."""

from __future__ import annotations

import numpy as np

from essim.methods.selectors.base import Tokens, Values


def attended_tokens(context: Tokens, page: int, routed: int) -> Tokens:
    """Return min(S, k p + ((S-1) mod p) + 1): k routed pages of p tokens and the tail page."""
    return np.minimum(context, routed * page + _tail_tokens(context, page))


def read_tokens(context: Tokens, page: int, routed: int, block: int) -> Values:
    """Return expected tokens read when the routed pages lie scattered over the KV blocks.

    Every touched block is read whole. A block of q pages stays untouched with probability
    C(N-q, k)/C(N, k) for k of N pages chosen at random: the worst case for blocks larger than
    a page, since real selections cluster.
    """
    tail = _tail_tokens(context, page)
    pages = np.maximum((context - tail) // page, 1).astype(np.float64)
    chosen = np.minimum(routed, pages)
    untouched = np.ones_like(pages)
    for i in range(block // page):
        untouched *= np.clip((pages - chosen - i) / np.maximum(pages - i, 1.0), 0.0, 1.0)
    # Rounded, so that pages of a block each come back as whole tokens.
    touched_tokens = np.round(pages * page * (1.0 - untouched), 6)
    read: Values = np.minimum(np.asarray(context, dtype=np.float64), touched_tokens + tail)
    return read


def check_block(page: int | None, block: int | None) -> None:
    """Raise `ValueError` unless KV blocks hold whole pages."""
    if page and block and block % page:
        raise ValueError(f"kv_block_tokens ({block}) must be a multiple of page_tokens ({page})")


def _tail_tokens(context: Tokens, page: int) -> Tokens:
    """Tokens in the most recent page, the current one included."""
    tail: Tokens = (context - 1) % page + 1
    return tail
