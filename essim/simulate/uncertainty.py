"""How sure a predicted decode rate is: errors of its prices, and calls that differ.

Each table is off by one error in a whole run, drawn from what it was off by at its held-out
points. Where a table has exact keys (a GEMM's shape), each has held-out points of its own, and all
are drawn at the same rank: where one shape's error is large, so are the others'. A price from
beside or beyond a table has the error of its source too (`essim.step.errors`), one for all prices
of that source and family. What was off one way at a few points may be off the other way
elsewhere: errors are drawn either way, so that a run as it is priced is the draw in which each is
in the middle.
"""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from essim.engines import Finish
from essim.engines.graph import Graph
from essim.hardware.profile import HardwareProfile
from essim.simulate.replay import Picoseconds, Run
from essim.step.errors import error_factors, error_of
from essim.step.price import SOURCES, Price
from essim.text.units import PS_PER_S

DRAWS = 256
# Steps of a run that stand for all of it.
STEPS = 12
PERCENTILES = (5, 50, 95)

Values = NDArray[np.float64]


def drawn_steps_s(
    run: Run, profile: HardwareProfile, finish: Finish, steps: int, seed: int
) -> Values | None:
    """Return the mean step over the first `steps` steps in each draw, in seconds.

    Returns
    -------
    array or None
        [`DRAWS`]; the same draw of two runs has the same errors of their prices. None where no
        price has an error that is known.
    """
    at = np.unique(np.linspace(0, steps - 1, min(steps, STEPS)).astype(np.int64))
    # The first step of a draw runs twice: what it finds still busy is then its own draw's.
    twice = np.concatenate((at[:1], at))
    known = held_out_factors(profile, run.prices, seed)
    found = {k: price_factors(p, p.rank[twice], known.get(k), seed) for k, p in run.prices.items()}
    factors = {kind: factor for kind, factor in found.items() if factor is not None}
    if not factors:
        return None
    rows = _rows(run, twice, factors)
    (ends,) = finish(run.ops, rows, [Graph.of(run.ops).last_main])
    drawn = ends.reshape(DRAWS, -1)[:, 1:].mean(axis=1) / run.step_ps[at].mean()
    mean_ps = run.step_ps[:steps].mean()
    # Steps differ from one to the next by the router's calls: their mean does so less.
    call_ps = np.diff(run.step_ps[:steps]).std() / np.sqrt(2) if steps > 2 else 0.0
    jitter = np.random.default_rng([seed, steps, 1]).standard_normal(DRAWS)
    means: Values = (mean_ps * drawn + jitter * call_ps / np.sqrt(steps)) / PS_PER_S
    return means


def price_factors(
    price: Price, rank: NDArray[np.int8], known: Values | None, seed: int
) -> Values | None:
    """Return what each draw multiplies a price by, None where no error of it is known.

    Parameters
    ----------
    rank
        Of the price's source, in the lanes that are asked for.
    known
        Factors of its table's held-out points, if it has some.

    Returns
    -------
    array
        Shape [*lanes, `DRAWS`]; with ones for lanes where all have one source.
    """
    ranks = np.unique(rank)
    names = [price.error or error_of(SOURCES[one], price.family) for one in ranks]
    if known is None and not any(names):
        return None
    one = np.ones(DRAWS)
    own = [error_factors(name, price_ranks(name, seed)) if name else one for name in names]
    by_rank = np.stack(own) if known is None else np.stack(own) * known
    if len(ranks) == 1:
        return by_rank.reshape((*(1 for _ in rank.shape), DRAWS))
    return np.asarray(by_rank[np.searchsorted(ranks, rank)])


def held_out_factors(
    profile: HardwareProfile, prices: Mapping[str, Price], seed: int
) -> dict[str, Values]:
    """Return a factor a draw for every op kind whose table was off at held-out points."""
    heldout = {**profile.heldout, **(profile.reference.heldout if profile.reference else {})}
    found: dict[str, Values] = {}
    for kind, price in prices.items():
        if price.origin in heldout:
            ratios, ranks = heldout[price.origin], price_ranks(price.origin[0], seed)
            either = np.concatenate((ratios, 1 / ratios))
            found[kind] = np.quantile(either, ranks, method="inverted_cdf")
    return found


def price_ranks(name: str, seed: int) -> Values:
    """Return where between the least and the largest error each draw is, 0 to 1."""
    return np.random.default_rng([seed, crc32(name.encode())]).random(DRAWS)


def _rows(run: Run, at: NDArray[np.int64], factors: dict[str, Values]) -> list[Picoseconds]:
    """Return each op's durations: the steps `at` of the first draw, of the second, ..."""
    made: dict[tuple[int, str], Picoseconds] = {}
    rows = []
    for op, durations in zip(run.ops, run.durations_ps, strict=True):
        key = id(durations), op.kind  # ops of a kind share a row
        if key not in made:
            factor = factors.get(op.kind, np.ones((1, DRAWS)))
            made[key] = np.rint(factor.T * durations[at]).astype(np.int64).ravel()
        rows.append(made[key])
    return rows


def percentiles(draws: Values) -> tuple[float, float, float]:
    """Return the 5th, 50th and 95th percentile of the draws."""
    low, middle, high = (float(np.percentile(draws, p)) for p in PERCENTILES)
    return low, middle, high
