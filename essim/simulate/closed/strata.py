"""Drawn calls in few lanes: how a step's time answers to other prices, not how long it is.

All calls of a step lie in one stratum, so that its layers stay alike. Strata are narrow where times
are long, and each stands at its mean.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from essim.hardware.distribution import Distribution
from essim.simulate.jitter import all_quantiles

Values = NDArray[np.float64]

# Times are computed at this many parts of a distribution, and strata are of so many parts each: of
# the first kind that is drawn and of the second. Further kinds take their mean.
_PARTS = 256
_STRATA = ((96, 96, 48, 16), (240, 16))


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


def times_s(distribution: Distribution, kind: int) -> Values:
    """Return the mean time in each pair of strata of two kinds, as a last axis.

    Parameters
    ----------
    kind
        Which of the kinds that are drawn, from 0.
    """
    parts = _parts_s(distribution)
    sizes = np.array(_STRATA[kind] if kind < len(_STRATA) else (_PARTS,))
    firsts = np.cumsum(sizes) - sizes
    means = np.add.reduceat(parts, firsts) / sizes.reshape((-1, *(1 for _ in parts.shape[1:])))
    means = np.moveaxis(means, 0, -1)
    if kind == 0:
        return np.repeat(means, len(_STRATA[1]), axis=-1)
    return np.tile(means, len(_STRATA[0])) if kind == 1 else means


def shares() -> Values:
    """Return how likely each pair of strata is."""
    first, second = (np.array(sizes) / _PARTS for sizes in _STRATA)
    return np.asarray(np.outer(first, second).ravel())
