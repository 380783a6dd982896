"""A mean step in each draw of its prices' errors, at few contexts: `uncertainty` on arrays."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from essim.simulate.closed.decode import Decode
from essim.simulate.closed.lines import Lines, Values
from essim.simulate.uncertainty import DRAWS, SAMPLED_STEPS, held_out_factors, price_ranks
from essim.step.errors import error_factors
from essim.step.price import Price, error_of

# Pieces shorter than this are not looked at on their own, and batches so many draws at once.
_SHORT_TOKENS = 64


def drawn_steps_s(run: Decode, seed: int) -> Values | None:
    """Return the mean step of runs in each draw, shape [batches, runs, `DRAWS`].

    None where no price has an error that is known.
    """
    steps, runs = run.steps, run.runs
    lines = Lines.over(_coarse(run.pieces, runs.merged()), 1)
    prices = steps.prices(lines.contexts)
    known = held_out_factors(steps.profile, prices, seed)
    factors = {kind: _factors(price, known.get(kind), seed) for kind, price in prices.items()}
    factors = {kind: factor for kind, factor in factors.items() if factor is not None}
    if not factors:
        return None
    drawn = steps.step_s(prices, factors)
    usual = steps.step_s(prices, {kind: np.ones((1, 1, 1)) for kind in factors})
    count, share = len(steps.batches), _sampled(run, lines)
    drawn = np.broadcast_to(drawn, (count, len(lines.contexts), DRAWS))
    usual = np.broadcast_to(usual, (count, len(lines.contexts), 1))
    mean_s = (run.total_s / runs.steps)[:, :, None]
    jitter = np.stack([_jitter(seed, int(n)) for n in runs.steps])
    call_s = run.call_s[:, :, None] * jitter / np.sqrt(runs.steps)[:, None]
    # Two steps say nothing of how steps differ.
    call_s = np.where((runs.steps > 2)[:, None], call_s, 0.0)
    return np.asarray(mean_s * ((share @ drawn) / (share @ usual)) + call_s)


def _coarse(
    pieces: list[tuple[int, int]], spans: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Return spans in pieces, short ones as one."""
    found = []
    for first, last in spans:
        at = first
        inside = [p for p in pieces if first <= p[0] and p[1] <= last]
        for a, b in [p for p in inside if p[1] - p[0] >= _SHORT_TOKENS]:
            found += [(at, a - 1), (a, b)]
            at = b + 1
        found.append((at, last))
    return [(a, b) for a, b in found if a <= b]


def _sampled(run: Decode, lines: Lines) -> Values:
    """Return the shares of contexts in a mean over steps of each run, shape [runs, contexts]."""
    found = []
    for first, steps in zip(run.runs.first.tolist(), run.runs.steps.tolist(), strict=True):
        at = np.linspace(0, steps - 1, min(steps, SAMPLED_STEPS)).astype(np.int64)
        contexts = first + np.unique(at)
        found.append(lines.weights(contexts, contexts).mean(axis=0))
    return np.stack(found)


@lru_cache(maxsize=4096)
def _jitter(seed: int, steps: int) -> Values:
    return np.random.default_rng([seed, steps, 1]).standard_normal(DRAWS)


def _factors(price: Price, known: Values | None, seed: int) -> Values | None:
    """Return what each draw multiplies a price by, shape [batches, contexts, draws] or ones."""
    ranks = np.unique(price.rank)
    names = [price.error or error_of(int(rank), price.family) for rank in ranks]
    if known is None and not any(names):
        return None
    by_rank = np.stack([
        error_factors(name, price_ranks(name, seed)) if name else np.ones(DRAWS) for name in names
    ])
    if known is not None:
        by_rank = by_rank * known
    if len(ranks) == 1:
        return by_rank[None, :, :]
    return np.asarray(by_rank[np.searchsorted(ranks, price.rank)])
