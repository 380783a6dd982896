"""ES-Mix: which target layers may take the earlier anchor, and how far that carries over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from essim.errors import InputError
from essim.results.column import Row

Gaps = Mapping[str, NDArray[np.floating]]


def assignment(gaps: Sequence[NDArray[np.floating]], tau: float) -> list[str]:
    """Return ``in`` where the mean of mass(Mid) - mass(In) is at most tau, else ``mid``.

    Parameters
    ----------
    gaps
        A profile [L - 1] of each domain.
    """
    mean = np.mean(gaps, axis=0)
    return ["in" if gap <= tau else "mid" for gap in mean]


def held_out(gaps: Gaps, tau: float) -> dict[str, list[str]]:
    """Return for each domain the assignment of all others: nothing is judged by its own profile.

    Raises
    ------
    InputError
        If there is one domain alone.
    """
    if len(gaps) < 2:
        raise InputError("query mix needs two domains: one to profile, one to judge")
    return {
        domain: assignment([gap for other, gap in gaps.items() if other != domain], tau)
        for domain in gaps
    }


def stability(gaps: Gaps, tau: float) -> list[Row]:
    """Return for each pair of domains how alike their profiles and assignments are."""
    rows: list[Row] = []
    for first, second in combinations(gaps, 2):
        own, other = (assignment([gaps[domain]], tau) for domain in (first, second))
        same = sum(a == b for a, b in zip(own, other, strict=True)) / len(own)
        # What In would cost where the other domain's profile allows it.
        allowed = [i for i, anchor in enumerate(own) if anchor == "in"]
        rows.append(
            {
                "domain": first,
                "other_domain": second,
                "pearson": float(np.corrcoef(gaps[first], gaps[second])[0, 1]),
                "agreement_frac": same,
                "worst_gap_frac": max((float(gaps[second][i]) for i in allowed), default=None),
            }
        )
    return rows
