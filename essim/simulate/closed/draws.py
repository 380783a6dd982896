"""A mean step in each draw of its prices' errors, at few contexts: `uncertainty` on arrays."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, reduce

import numpy as np
from numpy.typing import NDArray

from essim.simulate.closed.decode import Decode
from essim.simulate.closed.drawn import some_contexts, span_shares
from essim.simulate.closed.lines import Tokens, Values
from essim.simulate.uncertainty import DRAWS, STEPS, held_out_factors, price_factors
from essim.step.price import STRICT_SOURCES, Price


def drawn_steps_s(run: Decode, seed: int) -> Values | None:
    """Return the mean step of runs in each draw, shape [batches, runs, `DRAWS`].

    NaN where no price of a run has an error that is known, None where none has at all.
    """
    steps, runs = run.steps, run.runs
    contexts = some_contexts(runs.merged(), 9 if steps.drawn else 17)
    prices = steps.prices(contexts)
    known = held_out_factors(steps.profile, prices, seed)
    found = {k: price_factors(p, p.rank, known.get(k), seed) for k, p in prices.items()}
    factors = {kind: factor for kind, factor in found.items() if factor is not None}
    if not factors:
        return None
    usual_s = steps.step_s(prices, {kind: np.ones((1, 1, 1)) for kind in factors})
    drawn_s = steps.step_s(prices, factors)
    shape = (len(steps.batches), len(contexts))
    usual_s, drawn_s = (np.broadcast_to(s, (*shape, s.shape[-1])) for s in (usual_s, drawn_s))
    sampled = _sampled(run, contexts)
    mean_s = (run.total_s / runs.steps)[:, :, None]
    jitter = np.stack([_jitter(seed, int(n)) for n in runs.steps])
    # Two steps say nothing of how steps differ.
    share = np.where(runs.steps > 2, 1 / np.sqrt(runs.steps), 0.0)[:, None]
    ratio = (sampled @ drawn_s) / (sampled @ usual_s)
    draws_s = mean_s * ratio + run.call_s[:, :, None] * (jitter * share)
    draws_s[~_are_known(prices, known, sampled, shape)] = np.nan
    return np.asarray(draws_s)


def _are_known(
    prices: Mapping[str, Price],
    known: Mapping[str, Values],
    sampled: Values,
    shape: tuple[int, int],
) -> NDArray[np.bool_]:
    """Return of which runs some price has an error that is known, shape [batches, runs]."""
    if known or any(price.error for price in prices.values()):
        return np.ones((shape[0], len(sampled)), dtype=bool)
    worst = reduce(np.maximum, (np.broadcast_to(p.rank, shape) for p in prices.values()))
    unsure = (worst >= len(STRICT_SOURCES)).astype(np.float64)
    return np.asarray(unsure @ sampled.T > 0.0)


def _sampled(run: Decode, contexts: Tokens) -> Values:
    """Return the shares of contexts in a mean over some steps of each run, [runs, contexts]."""
    steps = run.runs.steps
    at = np.linspace(0, steps - 1, STEPS, axis=-1).astype(np.int64)
    asked = (run.runs.first[:, None] + at).ravel()
    shares = span_shares(contexts, asked, asked).reshape(len(steps), STEPS, -1)
    return np.asarray(shares.mean(axis=1))


@lru_cache(maxsize=4096)
def _jitter(seed: int, steps: int) -> Values:
    return np.random.default_rng([seed, steps, 1]).standard_normal(DRAWS)
