"""The Pareto frontier of a result: tokens/s for each user against tokens/s for each GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from essim.results.column import Row, plain
from essim.results.columns import ResultRow, differing

# What a deployment chooses, all else equal. Selectors, budgets and dtypes change the output, too.
CHOICES = (
    *("hardware", "tp", "routing", "batch", "where", "anchor", "mix", "kernel"),
    *("projection_rank", "channels", "cpu_threads"),
)
# What says nothing of how fast a point is.
_NO_CHOICE = ("name", "baseline")

FASTEST, KNEE, MOST = "fastest for a user", "knee", "most for a GPU"


@dataclass(frozen=True)
class _Point:
    """A point that runs: how fast one user and one GPU get tokens."""

    row: ResultRow
    user: float
    gpu: float


def frontier(rows: Sequence[ResultRow], across: Sequence[str] = ()) -> list[Row]:
    """Return the points that none of the same setting beats for both users and GPUs.

    A user gets ``decode_tokens_per_s / batch``, a GPU ``decode_tokens_per_s / tp``.

    Parameters
    ----------
    across
        Columns besides `CHOICES` that points of one frontier may differ in.

    Returns
    -------
    list of Row
        Fastest for a user first: `setting` (what else differs), the choices that differ,
        ``user_tokens_per_s gpu_tokens_per_s measured_frac``, and `point`: what is named. The knee
        is the point farthest above the line between the two ends of a frontier, each axis scaled
        by their distance (Satopaa et al., "Finding a Kneedle in a Haystack", 2011).
    """
    differ = [key for key in differing(rows) if key not in _NO_CHOICE]
    choices = [key for key in differ if key in CHOICES or key in across]
    others = [key for key in differ if key not in choices]
    settings: dict[str, list[_Point]] = {}
    for row in rows:
        rate = row["decode_tokens_per_s"]
        if rate:
            setting = ", ".join(f"{other} {plain(row, other)}" for other in others)
            point = _Point(row, rate / row["batch"], rate / (row["tp"] or 1))
            settings.setdefault(setting, []).append(point)
    found: list[Row] = []
    for setting, points in settings.items():
        best = _unbeaten(points)
        for point, name in zip(best, _names(best), strict=True):
            found.append(
                {
                    "setting": setting,
                    **{choice: plain(point.row, choice) for choice in choices},
                    "user_tokens_per_s": point.user,
                    "gpu_tokens_per_s": point.gpu,
                    "measured_frac": point.row["measured_frac"],
                    "point": name,
                }
            )
    return found


def _unbeaten(points: Sequence[_Point]) -> list[_Point]:
    """Return the points that no other is at least as good as in both, fastest user first."""
    best: list[_Point] = []
    for point in sorted(points, key=lambda point: (-point.user, -point.gpu)):
        if not best or point.gpu > best[-1].gpu:
            best.append(point)
    return best


def _names(best: Sequence[_Point]) -> list[str | None]:
    """Return what each point of a frontier is called, None for most."""
    names: list[str | None] = [None] * len(best)
    names[0], names[-1] = FASTEST, MOST
    if len(best) == 1:
        return [f"{FASTEST}, {MOST}"]
    first, last = best[0], best[-1]
    above = [
        (p.user - last.user) / (first.user - last.user)
        + (p.gpu - first.gpu) / (last.gpu - first.gpu)
        - 1
        for p in best
    ]
    knee = max(range(len(best)), key=above.__getitem__)
    if above[knee] > 0 and names[knee] is None:
        names[knee] = KNEE
    return names
