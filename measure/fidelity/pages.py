"""Pages of keys: their min/max summaries, and token masks of chosen pages."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def summaries(keys: Tensor, page: int) -> tuple[Tensor, Tensor]:
    """Return element-wise min and max of each whole page of keys [G, S, D], [G, S // page, D]."""
    groups, tokens, dim = keys.shape
    whole = keys[:, : tokens // page * page].view(groups, -1, page, dim)
    return whole.amin(2), whole.amax(2)


def tail_summaries(keys: Tensor, page: int, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return min and max over the tokens of a position's page that are before it, [G, T, D].

    Where a position begins a page there are none: min is +inf and max -inf.
    """
    at = positions // page * page
    low = keys.new_full((len(keys), len(positions), keys.shape[-1]), math.inf)
    high = -low
    for offset in range(page - 1):
        there = at + offset < positions
        token = keys[:, at[there] + offset]
        low[:, there] = torch.minimum(low[:, there], token)
        high[:, there] = torch.maximum(high[:, there], token)
    return low, high


def best(scores: Tensor, count: int, eligible: Tensor) -> Tensor:
    """Return a mask of the `count` best of the last axis, among those that are `eligible`."""
    scores = scores.masked_fill(~eligible, -math.inf)
    chosen = torch.zeros_like(scores, dtype=torch.bool)
    if count > 0:
        index = scores.topk(min(count, scores.shape[-1]), dim=-1, sorted=False).indices
        chosen.scatter_(-1, index, True)
    return chosen & eligible


def tokens_of(pages: Tensor, page: int, tokens: int) -> Tensor:
    """Return page masks [*, T, P] as masks of tokens [*, T, tokens]."""
    spread = pages.repeat_interleave(page, dim=-1)
    missing = max(0, tokens - spread.shape[-1])
    return torch.nn.functional.pad(spread, (0, missing))[..., :tokens]
