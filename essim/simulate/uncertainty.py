"""How sure a predicted decode rate is: errors of its tables, and calls that differ.

Each table is off by one error in a whole run, drawn from what it was off by at its held-out
points. Where a table has exact keys (a GEMM's shape), each has held-out points of its own, and all
are drawn at the same rank: where one shape's error is large, so are the others'. Prices that no
held-out point stands behind (rooflines, constants) are taken as they are: the interval is of the
tables.
"""

from __future__ import annotations

from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from essim.engines import Finish
from essim.engines.graph import Graph
from essim.hardware.profile import HardwareProfile
from essim.simulate.replay import Picoseconds, Run
from essim.text.units import PS_PER_S

DRAWS = 256
# Steps of a run that stand for all of it.
_STEPS = 12
PERCENTILES = (5, 50, 95)

Values = NDArray[np.float64]


def drawn_steps_s(
    run: Run, profile: HardwareProfile, finish: Finish, steps: int, seed: int
) -> Values | None:
    """Return the mean step over the first `steps` steps in each draw, in seconds.

    Returns
    -------
    array or None
        [`DRAWS`]; the same draw of two runs has the same errors of their tables. None where no
        price has a held-out point.
    """
    factors = _factors(run, profile, seed)
    if not factors:
        return None
    at = np.unique(np.linspace(0, steps - 1, min(steps, _STEPS)).astype(np.int64))
    # The first step of a draw runs twice: what it finds still busy is then its own draw's.
    rows = _rows(run, np.concatenate((at[:1], at)), factors)
    (ends,) = finish(run.ops, rows, [Graph.of(run.ops).last_main])
    drawn = ends.reshape(DRAWS, -1)[:, 1:].mean(axis=1) / run.step_ps[at].mean()
    mean_ps = run.step_ps[:steps].mean()
    # Steps differ from one to the next by the router's calls: their mean does so less.
    call_ps = np.diff(run.step_ps[:steps]).std() / np.sqrt(2) if steps > 2 else 0.0
    jitter = np.random.default_rng([seed, steps, 1]).standard_normal(DRAWS)
    means: Values = (mean_ps * drawn + jitter * call_ps / np.sqrt(steps)) / PS_PER_S
    return means


def _factors(run: Run, profile: HardwareProfile, seed: int) -> dict[tuple[str, ...], Values]:
    """Return a factor a draw for every table and keys that price an op and have held-out points.

    A table's draws depend on its name and the seed alone, so all points of a sweep share them.
    """
    origins = sorted({price.origin for price in run.prices.values()} & set(profile.heldout))
    return {
        origin: np.quantile(profile.heldout[origin], _ranks(origin[0], seed), method="inverted_cdf")
        for origin in origins
    }


def _ranks(table: str, seed: int) -> Values:
    """Return where between the least and the largest error of a table each draw is, 0 to 1."""
    return np.random.default_rng([seed, crc32(table.encode())]).random(DRAWS)


def _rows(
    run: Run, at: NDArray[np.int64], factors: dict[tuple[str, ...], Values]
) -> list[Picoseconds]:
    """Return each op's durations: the steps `at` of the first draw, of the second, ..."""
    made: dict[tuple[int, tuple[str, ...]], Picoseconds] = {}
    rows = []
    for op, durations in zip(run.ops, run.durations_ps, strict=True):
        origin = run.prices[op.kind].origin
        key = id(durations), origin  # ops of a kind share a row
        if key not in made:
            factor = factors.get(origin, np.ones(DRAWS))
            made[key] = np.rint(np.outer(factor, durations[at])).astype(np.int64).ravel()
        rows.append(made[key])
    return rows
