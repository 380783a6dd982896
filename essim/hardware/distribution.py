"""A time that varies from call to call, as a distribution through known percentiles."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

# Standard normal quantiles of the columns of a table: 5 % of the samples are below `low_s`, and 5 %
# above `high_s`. Only where there are samples for a 99th percentile do they make a distribution.
Z = {
    "low_s": -1.6448536269514729,
    "p50_s": 0.0,
    "high_s": 1.6448536269514722,
    "p99_s": 2.3263478740408408,
}
_erf = np.frompyfunc(math.erf, 1, 1)


def _normal_cdf(z: Values) -> Values:
    """Return the share of a standard normal below `z`."""
    share: Values = 0.5 + 0.5 * np.asarray(_erf(z / math.sqrt(2)), dtype=np.float64)
    return share


@dataclass(frozen=True)
class Distribution:
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
        """Return the mean.

        On each piece the time is exp(a + b z), whose part of the mean between z = l and u is
        exp(a + b^2 / 2) (Phi(u - b) - Phi(l - b)). The outer pieces go on beyond the percentiles.
        """
        mean: Values = np.zeros(self.log_s.shape[1:])
        last = len(self.z) - 2
        for i in range(last + 1):
            slope = (self.log_s[i + 1] - self.log_s[i]) / (self.z[i + 1] - self.z[i])
            below = 0.0 if i == 0 else _normal_cdf(self.z[i] - slope)
            above = 1.0 if i == last else _normal_cdf(self.z[i + 1] - slope)
            start = self.log_s[i] - slope * self.z[i]
            mean += np.exp(start + slope**2 / 2) * (above - below)
        return mean

    def scaled_to(self, mean_s: Values) -> Distribution:
        """Return this distribution stretched to have mean `mean_s`."""
        return Distribution(self.z, self.log_s + np.log(mean_s / self.mean_s()))
