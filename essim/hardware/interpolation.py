"""Times on a rectangular grid: multilinear between its points, but for where they jump."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from essim.hardware.distribution import Distribution, Z

Values = NDArray[np.float64]

# Axes along which work grows, and how much a time may fall along them before it is worth a word:
# kernels switch algorithms with size, so steps down of a fifth are normal.
GROWING = ("rows", "batch", "context_tokens", "selected_tokens")
FALL_FRAC = 1 / 3
# Axes along which times fall.
FALLING = ("threads",)


@dataclass(frozen=True)
class Lookup:
    """What a table says about points: the time, and whether they are on, between or off its grid.

    Off the grid the time continues the last interval's line and may be nonsense, even negative:
    `Grid.beyond_s` is for there. `past` is beyond the last tick of an axis,
    `far` beyond twice that. `edge_s` is the time at the nearest point of the grid.
    """

    mean_s: Values
    distribution: Distribution | None
    on_grid: NDArray[np.bool_]
    inside: NDArray[np.bool_]
    far: NDArray[np.bool_]
    past: NDArray[np.bool_]
    edge_s: Values


@dataclass(frozen=True)
class Grid:
    """Values of one key group on a full rectangular grid of its axes.

    Attributes
    ----------
    jumps
        Of each axis, or of none, the ticks right after which times jump: the interval behind such
        a tick goes on, backwards, as the one behind it.
    varies
        Whether times are a distribution through the percentiles there are, without a 99th too.
    """

    axes: tuple[Values, ...]
    values: Mapping[str, Values]
    jumps: tuple[frozenset[float], ...] = ()
    varies: bool = False

    @cached_property
    def _pieces(self) -> Grid:
        """The grid with one more tick, on the far side, for every jump."""
        pieces = Grid(self.axes, self.values)
        for i, jumps in enumerate(self.jumps):
            for jump in jumps - {self.axes[i][-1]}:
                pieces = _split(pieces, i, jump, jumps)
        return pieces

    def _between(self, names: Sequence[str], points: Sequence[Values]) -> dict[str, Values]:
        """Return statistics at points."""
        corners = _corners(self._pieces.axes, points)
        return {name: _weighted(self._pieces.values[name], corners) for name in names}

    @property
    def size(self) -> int:
        """Return the number of points."""
        return math.prod(len(axis) for axis in self.axes)

    def rising(self, axes: Sequence[str]) -> Grid:
        """Return the grid in which no time is less than one with less work.

        Kernels are switched with size, so a larger point may be the faster one. What is carried
        over from a grid to more work shall not be cheaper for it.
        """
        values = dict(self.values)
        for i, axis in enumerate(axes):
            if axis not in FALLING:
                values = {name: np.maximum.accumulate(v, axis=i) for name, v in values.items()}
        return replace(self, values=values)

    def beyond_s(self, coordinates: Sequence[ArrayLike], axes: Sequence[str]) -> Values:
        """Return times at points off a grid whose times rise (`rising`); they rise there too.

        Before a first tick the first interval's slope goes on, down to the grid's least time. Past
        a last one the last interval's does, as a share of the edge's time where several axes end;
        it is no less than that at smaller points of the other axes.
        """
        points = np.broadcast_arrays(*(np.asarray(c, dtype=np.float64) for c in coordinates))
        clamped = [np.clip(p, a[0], a[-1]) for p, a in zip(points, self.axes, strict=True)]
        edge_s = self.at(clamped).mean_s
        less_s, growth = np.zeros_like(edge_s), np.ones_like(edge_s)
        for i, axis in enumerate(self.axes):
            before, past = (np.maximum(d, 0.0) for d in (axis[0] - points[i], points[i] - axis[-1]))
            if len(axis) > 1 and before.any():
                less_s = less_s + self._slope(i, 0, axes, clamped) * before
            if len(axis) > 1 and past.any():
                growth = growth * (1.0 + self._slope(i, -2, axes, clamped) * past / edge_s)
        return np.asarray(np.maximum(edge_s - less_s, self.least_s) * growth)

    def _slope(self, i: int, at: int, axes: Sequence[str], clamped: Sequence[Values]) -> Values:
        """Return the slope along axis `i` of its interval that begins at tick `at`, not negative.

        Past the last tick it is no less than at smaller points of the other axes.
        """
        times = self.values.get("mean_s", self.values.get("p50_s"))
        assert times is not None
        rise = np.take(times, [at + 1], axis=i) - np.take(times, [at], axis=i)
        for j, other in enumerate(axes):
            if at and j != i and other not in FALLING:
                rise = np.maximum.accumulate(rise, axis=j)
        width = self.axes[i][at + 1] - self.axes[i][at]
        own = tuple(axis[:1] if j == i else axis for j, axis in enumerate(self.axes))
        return np.maximum(_multilinear(own, rise / width, clamped), 0.0)

    @property
    def least_s(self) -> float:
        """Return the least time of the grid."""
        times = self.values.get("mean_s", self.values.get("p50_s"))
        assert times is not None
        return float(times.min())

    def fallen_points(self, axes: Sequence[str]) -> list[tuple[float, ...]]:
        """Return the points that take clearly less time than a smaller one, once an axis."""
        times = self.values.get("mean_s", self.values.get("p50_s"))
        fallen: list[tuple[float, ...]] = []
        for i, axis in enumerate(axes):
            if axis in GROWING and times is not None:
                along = np.moveaxis(times, i, 0)
                falls = np.zeros(along.shape, dtype=bool)
                falls[1:] = along[1:] < (1 - FALL_FRAC) * along[:-1]
                at = np.argwhere(np.moveaxis(falls, 0, i))
                fallen += [
                    tuple(float(a[k]) for a, k in zip(self.axes, p, strict=True)) for p in at
                ]
        return fallen

    def at(self, coordinates: Sequence[ArrayLike]) -> Lookup:
        """Interpolate every statistic at one or many points (coordinates broadcast)."""
        points = np.broadcast_arrays(*(np.asarray(c, dtype=np.float64) for c in coordinates))
        clamped = [np.clip(p, a[0], a[-1]) for p, a in zip(points, self.axes, strict=True)]
        pairs = list(zip(points, clamped, self.axes, strict=True))
        inside = np.all([p == c for p, c, _ in pairs], axis=0)
        on_grid = np.all([_is_tick(p, axis) for p, _, axis in pairs], axis=0)
        found = self._between([n for n in ("mean_s", "p50_s") if n in self.values], points)
        distribution = self._distribution(clamped)
        mean = found.get("mean_s", found.get("p50_s"))
        if distribution is not None:
            inside_mean = distribution.mean_s()
            if "mean_s" not in found:
                # Off the grid the median's line says how much more the whole distribution takes.
                median = np.exp(distribution.log_s[distribution.z.index(0.0)])
                mean = inside_mean * found["p50_s"] / median
        assert mean is not None
        far = np.any([p > 2 * axis[-1] for p, _, axis in pairs], axis=0)
        past = np.any([p > axis[-1] for p, _, axis in pairs], axis=0)
        edge_s = mean if np.all(inside) else self.at(clamped).mean_s
        return Lookup(mean, distribution, on_grid, inside, far, past, edge_s)

    def _distribution(self, clamped: Sequence[Values]) -> Distribution | None:
        """Return the distribution at points of the grid, None where the table has none."""
        if "p50_s" not in self.values or not (self.varies or "p99_s" in self.values):
            return None
        known = [name for name in Z if name in self.values]
        times = list(self._between(known, clamped).values())
        # Interpolated percentiles may cross by rounding; a distribution's may not.
        ordered = np.maximum.accumulate(np.log(np.array(times)), axis=0)
        return Distribution(tuple(Z[name] for name in known), ordered)


def _is_tick(points: Values, axis: Values) -> NDArray[np.bool_]:
    """Return which points are ticks of an ascending axis."""
    at = np.minimum(np.searchsorted(axis, points), len(axis) - 1)
    return np.asarray(axis[at] == points)


def _split(grid: Grid, i: int, jump: float, jumps: frozenset[float]) -> Grid:
    """Insert a tick right after a jump along axis `i`.

    Its value lies on the line of the ticks behind it, within those at both ends of the interval.
    Where a piece has but one tick and is the first or last, one more tick is put outside, so that
    lines go on past the grid's edge: ahead with the slope behind the jump, at the end with that of
    the whole last interval.
    """
    axis = grid.axes[i]
    at = int(np.searchsorted(axis, jump)) + 1
    last = at + 1 == len(axis)
    alone = last or axis[at] in jumps
    ticks = [*axis[:at], np.nextafter(jump, np.inf), *axis[at:]]
    ticks = [axis[0] - 1, *ticks] if at == 1 else ticks
    ticks = [*ticks, axis[-1] + 1] if last else ticks
    values = {}
    for name, times in grid.values.items():
        along = np.moveaxis(times, i, 0)
        whole = (along[at] - along[at - 1]) / (axis[at] - jump)
        slope = whole if alone else (along[at + 1] - along[at]) / (axis[at + 1] - axis[at])
        ends = np.sort(along[at - 1 : at + 1], axis=0)
        line = along[at] if alone else np.clip(along[at] - slope * (axis[at] - jump), *ends)
        rows = [*along[:at], line, *along[at:]]
        rows = [along[0] - slope, *rows] if at == 1 else rows
        rows = [*rows, along[-1] + whole] if last else rows
        values[name] = np.moveaxis(np.array(rows), 0, i)
    axes = list(grid.axes)
    axes[i] = np.array(ticks)
    return Grid(tuple(axes), values)


def _multilinear(axes: Sequence[Values], grid: Values, points: Sequence[Values]) -> Values:
    """Interpolate `grid` at `points`: a table that is linear in each axis comes back exactly.

    An axis of one tick is constant. Beyond the first or last tick the nearest interval's line
    goes on.
    """
    return _weighted(grid, _corners(axes, points))


Corner = tuple[tuple[NDArray[np.intp], ...], Values]


def _corners(axes: Sequence[Values], points: Sequence[Values]) -> list[Corner]:
    """Return, for each corner of the cells around points, where in the grid it is and its share."""
    corners: list[tuple[NDArray[np.intp], NDArray[np.intp], Values]] = []
    for axis, point in zip(axes, points, strict=True):
        low = np.clip(np.searchsorted(axis, point, side="right") - 1, 0, max(len(axis) - 2, 0))
        high = np.minimum(low + 1, len(axis) - 1)
        width = np.where(high > low, axis[high] - axis[low], 1.0)
        corners.append((low, high, np.where(high > low, (point - axis[low]) / width, 0.0)))
    found = []
    for sides in itertools.product((0, 1), repeat=len(axes)):
        at = tuple((low, high)[side] for (low, high, _), side in zip(corners, sides, strict=True))
        share = np.ones(points[0].shape)
        for (_, _, weight), side in zip(corners, sides, strict=True):
            share = share * (weight if side else 1.0 - weight)
        found.append((at, np.asarray(share)))
    return found


def _weighted(grid: Values, corners: Sequence[Corner]) -> Values:
    """Return the values of a grid at corners, by their shares."""
    result = np.zeros(corners[0][1].shape)
    for at, share in corners:
        result += share * grid[at]
    return result
