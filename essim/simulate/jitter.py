"""Random calls of a router: standard normals, stratified so that short runs have the right mean."""

from __future__ import annotations

from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

# Each layer sees every 1/64 of the distribution once in 64 steps, in random order.
STRATA = 64


@lru_cache(maxsize=1)
def all_quantiles() -> NDArray[np.float64]:
    """Return 64 x 64 normal quantiles: a row a stratum, a column a place inside it."""
    normal, n = NormalDist(), STRATA * STRATA
    z = np.array([normal.inv_cdf((i + 0.5) / n) for i in range(n)]).reshape(STRATA, STRATA)
    return z


@lru_cache(maxsize=4)
def _blocks(seed: int, layers: int, blocks: int) -> NDArray[np.float64]:
    order_rng, place_rng = (np.random.default_rng([seed, i]) for i in range(2))
    shape = (blocks, layers, STRATA)
    order = order_rng.permuted(np.broadcast_to(np.arange(STRATA), shape), axis=2)
    place = place_rng.integers(0, STRATA, shape)
    z = all_quantiles()[order, place]
    return np.ascontiguousarray(z.transpose(1, 0, 2).reshape(layers, blocks * STRATA))


def normals(seed: int, layers: int, steps: int) -> NDArray[np.float64]:
    """Return standard normals, shape (layers, steps), independent between layers.

    A shorter run with the same seed gets the first steps of a longer one.
    """
    return _blocks(seed, layers, -(-steps // STRATA))[:, :steps]
