"""The time of a GEMM of any shape, fitted on the shapes that a table has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from essim.hardware.table import Table

Values = NDArray[np.float64]

# Up to so many rows a GEMM reads weights; beyond, it multiplies.
FEW_ROWS = 64
# Where a fit starts: fixed_s, input_s, bandwidth_frac, flops_frac, power.
_START = (2.5e-6, 0.5e-6, 0.95, 0.95, 3.0)
_LEAST = np.array([1e-8, 1e-9, 0.3, 0.3, 1.0])
_MOST = np.array([2e-5, 1e-5, 1.2, 1.2, 8.0])
_UNIT_INPUTS = 4096
_ITERATIONS = 30


@dataclass(frozen=True)
class Peaks:
    """What a device can do at most: bytes and FLOPs a second."""

    bytes_per_s: float
    flops_per_s: float


@dataclass(frozen=True)
class GemmForm:
    """``fixed + input k / 4096 + ((bytes / (a BW))^p + (FLOPs / (c peak))^p)^(1/p)``.

    What is fixed or grows with the inputs k alone is latency: launch, and the chain of additions.
    It does not depend on the device's peaks. Each term grows with outputs, inputs and rows.

    Attributes
    ----------
    values
        fixed_s, input_s, bandwidth_frac (a), flops_frac (c), power (p).
    errors
        Natural logarithms of measured over predicted time, each shape predicted by a fit on shapes
        of other groups.
    """

    values: tuple[float, ...]
    errors: Values

    def time_s(self, work: GemmWork, peaks: Peaks) -> Values:
        """Return seconds."""
        return _time_s(np.array(self.values), work, peaks)

    def slowed(self, ratio: float) -> GemmForm:
        """Return the form of a device whose clock is so many times slower: latency is longer."""
        fixed, per_input, *rest = self.values
        return GemmForm((ratio * fixed, ratio * per_input, *rest), self.errors)


@dataclass(frozen=True)
class GemmWork:
    """GEMMs of n outputs and k inputs over some rows; arrays of one shape, or numbers."""

    n: ArrayLike
    k: ArrayLike
    rows: ArrayLike
    weight_bytes: float
    activation_bytes: float = 2.0

    @property
    def byte_count(self) -> Values:
        """Weights, inputs and outputs, each once."""
        n, k, rows = (np.asarray(part, dtype=np.float64) for part in (self.n, self.k, self.rows))
        return np.asarray(n * k * self.weight_bytes + rows * (n + k) * self.activation_bytes)

    @property
    def flops(self) -> Values:
        """Multiply-adds times two."""
        return np.asarray(2.0 * np.asarray(self.n) * np.asarray(self.k) * np.asarray(self.rows))


def _time_s(values: Values, work: GemmWork, peaks: Peaks) -> Values:
    fixed, per_input, bandwidth, flops, power = values
    read_s = work.byte_count / (bandwidth * peaks.bytes_per_s)
    compute_s = work.flops / (flops * peaks.flops_per_s)
    busy_s = (read_s**power + compute_s**power) ** (1 / power)
    return np.asarray(fixed + per_input * np.asarray(work.k) / _UNIT_INPUTS + busy_s)


def fit_forms(
    tables: Mapping[str, Table], dtype: str, weight_bytes: float, peaks: Peaks
) -> tuple[GemmForm, GemmForm] | None:
    """Return the forms up to `FEW_ROWS` rows and beyond, None where no shape was measured.

    Parameters
    ----------
    tables
        Tables of GEMMs with keys n, k and dtype, over rows.
    dtype
        Of the weights; times of other dtypes say nothing about it.
    """
    points = _points(tables, dtype)
    if not len(points):
        return None
    few = points[:, 2] <= FEW_ROWS
    if not few.any() or few.all():
        one = _fitted(points, weight_bytes, peaks)
        return one, one
    return _fitted(points[few], weight_bytes, peaks), _fitted(points[~few], weight_bytes, peaks)


def _points(tables: Mapping[str, Table], dtype: str) -> Values:
    """Return n, k, rows and seconds of every measured GEMM of a dtype, a row each."""
    found: list[tuple[float, float, float, float]] = []
    for table in tables.values():
        for key, grid in table.grids.items():
            named = dict(zip(table.keys, key, strict=True))
            if named.get("dtype", dtype) == dtype:
                times = grid.at([grid.axes[0]]).mean_s
                shape = float(named["n"]), float(named["k"])
                found += [
                    (*shape, float(m), float(t)) for m, t in zip(grid.axes[0], times, strict=True)
                ]
    return np.array(found)


def _fitted(points: Values, weight_bytes: float, peaks: Peaks) -> GemmForm:
    """Fit all points; and for the errors each fifth of the shapes by the others."""
    shapes = np.unique(points[:, :2], axis=0)
    group = {tuple(shape): i % min(5, len(shapes)) for i, shape in enumerate(shapes)}
    of = np.array([group[tuple(point[:2])] for point in points])
    errors = np.empty(len(points))
    for fold in set(of.tolist()):
        out = of == fold
        kept = points[~out] if len(shapes) > 1 else points
        values = _least_squares(kept, weight_bytes, peaks)
        errors[out] = _log_errors(values, points[out], weight_bytes, peaks)
    return GemmForm(tuple(_least_squares(points, weight_bytes, peaks)), errors)


def _log_errors(values: Values, points: Values, weight_bytes: float, peaks: Peaks) -> Values:
    n, k, rows, measured_s = points.T
    predicted_s = _time_s(values, GemmWork(n, k, rows, weight_bytes), peaks)
    return np.asarray(np.log(measured_s / predicted_s))


def _least_squares(points: Values, weight_bytes: float, peaks: Peaks) -> Values:
    """Return the values with the least weighted squares of log errors (Levenberg-Marquardt).

    A kernel that was badly chosen for one shape is far off: its weight falls with its error.
    """
    values, damping = np.array(_START), 1e-2

    def cost(errors: Values) -> float:
        return float(np.log1p((errors / 0.05) ** 2).sum())

    errors = _log_errors(values, points, weight_bytes, peaks)
    for _ in range(_ITERATIONS):
        steps = values * 1e-4
        slopes = np.array(
            [
                (_log_errors(values + step, points, weight_bytes, peaks) - errors) / step.sum()
                for step in np.diag(steps)
            ]
        ).T
        weight = 1 / (1 + (errors / 0.05) ** 2)
        normal = slopes.T @ (weight[:, None] * slopes)
        scale = np.diag(normal) + 1e-12 * np.trace(normal)
        move = np.linalg.solve(normal + damping * np.diag(scale), slopes.T @ (weight * errors))
        tried = np.clip(values - move, _LEAST, _MOST)
        found = _log_errors(tried, points, weight_bytes, peaks)
        if cost(found) < cost(errors):
            values, errors, damping = tried, found, damping / 3
        else:
            damping *= 4
    return values
