"""One measurement: what was timed, the raw samples, and the statistics that they allow."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from essim.errors import InputError

CacheState = Literal["cold", "hot"]
Axis = int | float | str

P99_CALLS = 2000
"""Calls below which a p99 is not claimed: at 2,000 it rests on the 20 slowest."""
IQR_LIMIT_FRAC = 0.10
"""Spread above which a measurement is flagged."""


@dataclass(frozen=True)
class Spec:
    """What is timed; samples are kept apart from it.

    Parameters
    ----------
    kind
        Kind of op, which is also the name of its table.
    axes
        The point: name -> value.
    cache_state
        ``cold`` where the data comes from memory (weights in rotation), ``hot`` where it was just
        used.
    bytes_moved
        Bytes read and written a call, if known.
    source_hash
        Hash of the kernel's source.
    """

    kind: str
    axes: Mapping[str, Axis]
    dtype: str
    cache_state: CacheState
    bytes_moved: int | None = None
    source_hash: str = ""


@dataclass(frozen=True)
class Measurement:
    """Valid samples of a spec, in the order they were taken, and how many were rejected."""

    spec: Spec
    samples_s: tuple[float, ...]
    rejected: int = 0

    @property
    def n(self) -> int:
        """Number of valid samples."""
        return len(self.samples_s)

    @cached_property
    def mean_s(self) -> float:
        """Arithmetic mean: what sums of op times use."""
        return math.fsum(self.samples_s) / self.n

    def quantile_s(self, frac: float) -> float:
        """Quantile by linear interpolation between the sorted samples."""
        return float(np.quantile(self.samples_s, frac))

    @property
    def low_s(self) -> float:
        """5 % of the samples are below; of few, a time between the least two."""
        return self.quantile_s(0.05)

    @property
    def p50_s(self) -> float:
        """Median."""
        return self.quantile_s(0.50)

    @property
    def high_s(self) -> float:
        """5 % of the samples are above; of few, a time between the largest two."""
        return self.quantile_s(0.95)

    @property
    def p99_s(self) -> float | None:
        """99th percentile, None below `P99_CALLS` samples."""
        return self.quantile_s(0.99) if self.n >= P99_CALLS else None

    @property
    def iqr_frac(self) -> float:
        """Interquartile range over the median."""
        return (self.quantile_s(0.75) - self.quantile_s(0.25)) / self.p50_s

    @property
    def unstable(self) -> bool:
        """Whether the spread is above `IQR_LIMIT_FRAC`."""
        return self.iqr_frac > IQR_LIMIT_FRAC

    @property
    def bytes_per_s(self) -> float | None:
        """Achieved bandwidth at the mean, None where the bytes are not known."""
        return None if self.spec.bytes_moved is None else self.spec.bytes_moved / self.mean_s


def least_time_s(spec: Spec, peak_bytes_per_s: float | None) -> float:
    """Time that no call can beat: bytes over peak bandwidth; 0 where either is unknown."""
    if spec.bytes_moved is None or peak_bytes_per_s is None:
        return 0.0
    return spec.bytes_moved / peak_bytes_per_s


def from_samples(
    spec: Spec, samples_s: Sequence[float], peak_bytes_per_s: float | None = None
) -> Measurement:
    """A measurement without the samples that cannot be true.

    Rejected are samples that are not finite, not positive, or faster than ``bytes_moved /
    peak_bytes_per_s``: they timed something else, for example a graph that captured nothing.

    Raises
    ------
    InputError
        Where no sample is left.
    """
    least = least_time_s(spec, peak_bytes_per_s)
    valid = tuple(float(x) for x in samples_s if math.isfinite(x) and x > 0 and x >= least)
    if not valid:
        raise InputError(
            f"{spec.kind}: none of {len(samples_s)} samples is possible",
            f"Each call takes at least {least:.3g} s" if least else "Each must be positive",
        )
    return Measurement(spec, valid, len(samples_s) - len(valid))


def warm_up(
    sample: Callable[[], float],
    *,
    window_calls: int = 20,
    tolerance_frac: float = 0.02,
    most_windows: int = 50,
) -> int:
    """Call until the medians of two windows in a row agree; returns the number of calls."""
    previous = math.inf
    for done in range(1, most_windows + 1):
        median = float(np.median([sample() for _ in range(window_calls)]))
        if abs(median - previous) <= tolerance_frac * median:
            return done * window_calls
        previous = median
    return most_windows * window_calls


def measure(
    spec: Spec,
    sample: Callable[[], float],
    *,
    calls: int = 100,
    peak_bytes_per_s: float | None = None,
    window_calls: int = 20,
    most_windows: int = 50,
) -> Measurement:
    """Warm up until stable, then take ``calls`` samples.

    Parameters
    ----------
    sample
        Makes one call and returns its seconds, by whatever clock suits it: GPU events, a
        timer inside C++. It also sets the cache state that the spec claims.
    """
    warm_up(sample, window_calls=window_calls, most_windows=most_windows)
    return from_samples(spec, [sample() for _ in range(calls)], peak_bytes_per_s)
