"""Drawn calls without drawing them: a step's time at strata of the calls' distribution.

A run draws each call of each layer, from 64 strata that it goes through in turn. Layers add up: the
mean over all calls is that over steps whose calls all lie in one stratum, and the variance of a
step is that of such steps over the number of layers. Strata are narrow where times are long, and
each stands at its mean. A step's time is convex in the calls', so only a stratum in which the main
stream begins to wait adds an error.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from essim.hardware.distribution import Distribution
from essim.simulate.jitter import STRATA, all_quantiles

Values = NDArray[np.float64]

# Times are computed at this many parts of a distribution, and strata are of so many parts each: of
# the first kind that is drawn and of the second. Further kinds take their mean.
_PARTS = 256
FINE = ((12,) * 18 + (8, 8, 8, 8, 4, 2, 1, 1), (128, 64, 32, 16, 8, 4, 2, 1, 1))
COARSE = ((96, 96, 48, 16), (240, 16))
Strata = tuple[tuple[int, ...], tuple[int, ...]]
# Standard deviations that a run's draws are taken to stay within.
_DEVIATIONS = 4.0


@lru_cache(maxsize=1)
def _parts() -> tuple[Values, Values]:
    """Return mean and variance of the standard normal quantiles in each part."""
    z = all_quantiles().reshape(_PARTS, -1)
    return z.mean(axis=1), z.var(axis=1)


def _parts_s(distribution: Distribution) -> Values:
    """Return the mean time in each part of a distribution, as a first axis.

    In a part the logarithm is linear in z, with slope b: the logarithm of the mean is that at the
    mean of z, and b^2 / 2 times the variance of z more.
    """
    z, variance = _parts()
    known = np.array(distribution.z)
    at = np.clip(np.searchsorted(known, z) - 1, 0, len(known) - 2)
    shape = (-1, *(1 for _ in distribution.log_s.shape[1:]))
    slopes = np.diff(distribution.log_s, axis=0) / np.diff(known).reshape(shape)
    log_s = distribution.log_s[at] + slopes[at] * (z - known[at]).reshape(shape)
    return np.asarray(np.exp(log_s + slopes[at] ** 2 * variance.reshape(shape) / 2))


def times_s(distribution: Distribution, strata: Strata, kind: int) -> Values:
    """Return the mean time in each pair of strata of two kinds, as a last axis.

    Parameters
    ----------
    kind
        Which of the kinds that are drawn, from 0.
    """
    parts = _parts_s(distribution)
    sizes = np.array(strata[kind] if kind < len(strata) else (_PARTS,))
    firsts = np.cumsum(sizes) - sizes
    means = np.add.reduceat(parts, firsts) / sizes.reshape((-1, *(1 for _ in parts.shape[1:])))
    means = np.moveaxis(means, 0, -1)
    if kind == 0:
        return np.repeat(means, len(strata[1]), axis=-1)
    return np.tile(means, len(strata[0])) if kind == 1 else means


def shares(strata: Strata) -> Values:
    """Return how likely each pair of strata is."""
    first, second = (np.array(sizes) / _PARTS for sizes in strata)
    return np.asarray(np.outer(first, second).ravel())


def within_s(distribution: Distribution) -> Values:
    """Return the standard deviation of a call within its one of 64 strata."""
    parts = _parts_s(distribution)
    strata = parts.reshape(STRATA, -1, *parts.shape[1:])
    return np.asarray(np.sqrt(strata.var(axis=1).mean(axis=0)))


def off_s(between_s: Values, inside_s: Values, steps: Values) -> Values:
    """Return how far the mean over drawn steps may be from the expected one.

    Every 64 steps a layer sees each stratum once. The steps left over see some of them.

    Parameters
    ----------
    between_s, inside_s
        Standard deviations of a step: of all, and of what lies within strata.
    """
    left = steps % STRATA
    variance = steps * inside_s**2 + left * (STRATA - left) / (STRATA - 1) * between_s**2
    return np.asarray(_DEVIATIONS * np.sqrt(variance) / steps)
