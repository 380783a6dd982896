"""Standard errors, bootstrap intervals and trends of values along decode positions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_DRAWS = 1000
# Neighbouring tokens have much in common: a block of them counts once.
BLOCK_TOKENS = 16


def block_error(values: NDArray[np.floating]) -> float:
    """Return the standard error of the mean of [contexts, T], by means of blocks of 16 positions.

    NaN where there are fewer than two blocks.
    """
    blocks = values.shape[1] // BLOCK_TOKENS
    if len(values) * blocks < 2:
        return float("nan")
    whole = values[:, : blocks * BLOCK_TOKENS].reshape(len(values) * blocks, BLOCK_TOKENS)
    return float(whole.mean(1).std(ddof=1) / np.sqrt(len(whole)))


def interval(values: NDArray[np.floating]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean of a flat array."""
    source = np.random.default_rng(0)
    draws = source.integers(0, len(values), (_DRAWS, len(values)))
    low, high = np.percentile(values[draws].mean(1), [2.5, 97.5])
    return float(low), float(high)


def trend(
    positions: NDArray[np.floating], values: NDArray[np.floating]
) -> tuple[float, float, float]:
    """Return the least-squares slope of flat values over positions, and its 95 % interval."""
    source = np.random.default_rng(0)
    draws = source.integers(0, len(values), (_DRAWS, len(values)))
    x, y = positions[draws], values[draws]
    x, y = x - x.mean(1, keepdims=True), y - y.mean(1, keepdims=True)
    slopes = (x * y).sum(1) / (x * x).sum(1)
    low, high = np.percentile(slopes, [2.5, 97.5])
    return float(np.polyfit(positions, values, 1)[0]), float(low), float(high)
