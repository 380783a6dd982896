"""How sure a share is: the exact binomial interval."""

from __future__ import annotations

import math
from collections.abc import Callable


def clopper_pearson(inside: int, cells: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the exact binomial interval of a share."""
    tail = (1 - confidence) / 2
    low = high = 0.0
    if inside:
        low = _root(lambda share: 1 - _at_most(inside - 1, cells, share) - tail)
    high = 1.0 if inside == cells else _root(lambda share: tail - _at_most(inside, cells, share))
    return low, high


def _at_most(count: int, cells: int, share: float) -> float:
    """Return the chance of `count` or fewer successes in `cells` draws."""
    ways = [
        math.lgamma(cells + 1) - math.lgamma(i + 1) - math.lgamma(cells - i + 1)
        for i in range(count + 1)
    ]
    return math.fsum(
        math.exp(way + i * math.log(share) + (cells - i) * math.log1p(-share))
        for i, way in enumerate(ways)
    )


def _root(rising: Callable[[float], float]) -> float:
    """Return where a function that rises from 0 to 1 crosses zero."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return (low + high) / 2
