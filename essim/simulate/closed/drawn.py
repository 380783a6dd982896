"""Drawn calls of a run: how much longer its steps take because not every call takes its mean.

The calls of a run's first steps are those that it draws; later steps are taken to be, on average,
like these. They are looked at in a few contexts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from essim.simulate.closed.lines import Tokens, Values
from essim.simulate.closed.steps import Steps
from essim.simulate.jitter import STRATA, normals

# Steps whose calls are drawn, and contexts at which they are.
_LANES, _CONTEXTS = 4 * STRATA, 9
# Standard deviations, known from four blocks only, that a run is taken to stay within.
_DEVIATIONS = 8.0


@dataclass(frozen=True)
class Drawn:
    """What drawn calls add to runs, each of shape [batches, runs].

    Attributes
    ----------
    more_s
        To all steps.
    off_s
        How far that may be off, for each step.
    call_s
        Standard deviation of a step, shape [batches, 1].
    """

    more_s: Values
    off_s: Values
    call_s: Values


def drawn(
    steps: Steps, spans: list[tuple[int, int]], first: Tokens, last: Tokens, seed: int
) -> Drawn:
    """Return what drawn calls add to runs from their first to their last contexts."""
    contexts = some_contexts(spans)
    z = normals(seed, sum(steps.drawn.values()), _LANES)
    mean_s = steps.step_s(steps.prices(contexts))[:, :, 0]
    lanes_s = steps.drawn_s(contexts, z) - mean_s[:, :, None]
    number = (last - first + 1).astype(np.float64)
    # Each lane is taken to be at all contexts of its run.
    share = span_shares(contexts, first, last)
    sums_s = np.cumsum(share @ lanes_s, axis=-1)
    few = np.minimum(number, _LANES).astype(np.int64)
    seen_s = np.take_along_axis(sums_s, (few - 1)[None, :, None], axis=-1)[:, :, 0]
    unseen = number - few
    more_s = seen_s + unseen * sums_s[:, :, -1] / _LANES
    call_s = lanes_s.std(axis=-1).max(axis=1, keepdims=True)
    off_s = _sampling_s(lanes_s, number, unseen) + _between_s(contexts, lanes_s)
    return Drawn(more_s, off_s, call_s)


def some_contexts(spans: list[tuple[int, int]], count: int = _CONTEXTS) -> Tokens:
    """Return contexts over spans: their ends, and some between in the longest."""
    each = max(2, count // len(spans))
    found = [np.linspace(a, b, each).astype(np.int64) for a, b in spans]
    return np.unique(np.concatenate(found))


def span_shares(contexts: Tokens, first: Tokens, last: Tokens) -> Values:
    """Return the shares of contexts in means over spans, lines between them; [spans, contexts]."""
    found = np.zeros((len(first), len(contexts)))
    if len(contexts) == 1:
        return found + 1.0
    low, high = contexts[:-1], contexts[1:].copy()
    high[-1] += 1  # the last context belongs to the last line
    begin = np.clip(first[:, None], low, high)
    end = np.clip(last[:, None] + 1, low, high)
    number = end - begin
    rise = number * ((begin + end - 1) / 2.0 - low) / (contexts[1:] - low)
    found[:, :-1] += number - rise
    found[:, 1:] += rise
    return np.asarray(found / found.sum(axis=1, keepdims=True))


def _sampling_s(lanes_s: Values, number: Values, unseen: Values) -> Values:
    """Return how far a mean step may be off because later calls were not drawn.

    Every 64 steps a layer sees each stratum of its calls once: what blocks of 64 differ by is what
    the sampling leaves open, and what the steps beside whole blocks do.
    """
    blocks = lanes_s.reshape(*lanes_s.shape[:2], -1, STRATA).mean(axis=-1)
    block_s = blocks.std(axis=-1, ddof=1).max(axis=1, keepdims=True)
    step_s = lanes_s.std(axis=-1).max(axis=1, keepdims=True)
    both = 1.0 / blocks.shape[-1] + STRATA / np.maximum(unseen, STRATA)
    left = unseen % STRATA
    beside = np.sqrt(left * (STRATA - left) / (STRATA - 1)) / number
    off = block_s * np.sqrt(both) * unseen / number + step_s * beside
    return np.asarray(_DEVIATIONS * off)


def _between_s(contexts: Tokens, lanes_s: Values) -> Values:
    """Return how far every second context is from the line through those beside it."""
    means = lanes_s.mean(axis=-1)
    if len(contexts) < 3:
        return np.zeros((len(means), 1))
    share = span_shares(contexts[::2], contexts[1:-1:2], contexts[1:-1:2])
    line = means[:, ::2] @ share.T
    return np.asarray(np.abs(line - means[:, 1:-1:2]).max(axis=1, keepdims=True))
