"""A time that varies from call to call, as a distribution through known percentiles."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

# Standard normal quantiles of the percentile columns.
Z = {
    "p5_s": -1.6448536269514729,
    "p50_s": 0.0,
    "p95_s": 1.6448536269514722,
    "p99_s": 2.3263478740408408,
}
# Midpoints of equal shares of a standard normal, to average over a distribution.
_Z_NODES = np.array([NormalDist().inv_cdf((i + 0.5) / 512) for i in range(512)])


@dataclass(frozen=True)
class Spread:
    """A time as a distribution: its logarithm is linear in z between known percentiles.

    With a median and a 99th percentile alone this is a log-normal.

    Attributes
    ----------
    z
        Standard normal quantiles of the known percentiles, ascending.
    log_s
        Logarithms of the times there, shape (percentiles, lanes).
    """

    z: tuple[float, ...]
    log_s: Values

    def times_s(self, z: Values) -> Values:
        """Return the times at standard normal quantiles `z` (one per lane, or broadcast)."""
        slopes = [
            (self.log_s[i + 1] - self.log_s[i]) / (self.z[i + 1] - self.z[i])
            for i in range(len(self.z) - 1)
        ]
        result = self.log_s[0] + slopes[0] * (z - self.z[0])
        for i in range(1, len(slopes)):
            beyond = self.log_s[i] + slopes[i] * (z - self.z[i])
            result = np.where(z > self.z[i], beyond, result)
        times: Values = np.exp(result)
        return times

    def mean_s(self) -> Values:
        """Return the mean: exact for a log-normal, else over 512 equal shares."""
        if len(self.z) == 2:
            sigma = (self.log_s[1] - self.log_s[0]) / (self.z[1] - self.z[0])
            mean: Values = np.exp(self.log_s[0] - sigma * self.z[0] + sigma**2 / 2)
            return mean
        columns = Spread(self.z, self.log_s[..., None]).times_s(_Z_NODES)
        return np.asarray(columns.mean(axis=-1))

    def scaled_to(self, mean_s: Values) -> Spread:
        """Return this distribution stretched to have mean `mean_s`."""
        return Spread(self.z, self.log_s + np.log(mean_s / self.mean_s()))
