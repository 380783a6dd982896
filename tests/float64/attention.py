"""Decode attention in float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from float64.errors import floats
from measure.kernels.attention.launch import Attention, PagedCache
from measure.kernels.numbers import Floats


def sequence(cache: PagedCache, row: int) -> tuple[Floats, Floats]:
    """Keys and values of a sequence in order, [tokens, kv_heads, head_dim] each."""
    blocks, tokens = cache.table[row].long(), int(cache.context[row])
    ordered = [floats(pool[blocks]).transpose(0, 2, 1, 3) for pool in (cache.keys, cache.values)]
    keys, values = (x.reshape(-1, *x.shape[2:])[:tokens] for x in ordered)
    return keys, values


def attended(
    chosen: npt.NDArray[np.integer], tokens: int, page_tokens: int
) -> npt.NDArray[np.int64]:
    """Tokens of the chosen pages and of the tail page, ascending."""
    pages = np.append(chosen[chosen >= 0], (tokens - 1) // page_tokens)
    every = (np.unique(pages)[:, None] * page_tokens + np.arange(page_tokens)).ravel()
    kept: npt.NDArray[np.int64] = every[every < tokens].astype(np.int64)
    return kept


def attention(op: Attention) -> Floats:
    """What ``op`` should give, [batch, kv_heads, group, head_dim]."""
    queries = floats(op.queries)
    out = np.empty_like(queries)
    for row in range(len(queries)):
        keys, values = sequence(op.cache, row)
        for head in range(queries.shape[1]):
            rows = np.arange(len(keys))
            if op.indices is not None:
                chosen = op.indices[row, head].cpu().numpy()
                rows = attended(chosen, len(keys), op.page_tokens)
            scores = queries[row, head] @ keys[rows, head].T / np.sqrt(queries.shape[-1])
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[row, head] = weights @ values[rows, head] / weights.sum(axis=1, keepdims=True)
    return out
