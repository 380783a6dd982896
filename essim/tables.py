"""Measured tables: a CSV of times over axes, multilinear between its points."""

from __future__ import annotations

import csv
import io
import itertools
import math
import statistics
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from essim.errors import InputError
from essim.spread import Spread, Z
from essim.yamlfile import nearest_hint, read_text

Values = NDArray[np.float64]

# Statistic columns a table may have, in seconds. Sums want means, so `mean_s` or `p50_s` must be
# there; `p50_s` and `p99_s` together make the price a distribution.
STATISTICS = ("mean_s", "p5_s", "p50_s", "p95_s", "p99_s")
# Columns that describe how a row was measured; prices do not depend on them.
DESCRIPTIONS = (
    *("kind", "dtype", "cache_state", "calls", "rejected", "iqr_frac", "unstable"),
    *("bytes_moved", "bytes_per_s", "source_hash"),
)
# Axes along which work grows, and how much a time may fall along them before it is worth a word:
# kernels switch algorithms with size, so steps down of a fifth are normal.
GROWING = ("rows", "batch", "context_tokens", "selected_tokens")
FALL_FRAC = 1 / 3
# What two streams cost each other is no work: it falls where the router spreads otherwise.
SLOWDOWN = "gpu_side_slowdown"


@dataclass(frozen=True)
class Lookup:
    """What a table says about points: the time, and whether they are on, between or off its grid.

    Off the grid the time continues the last interval's line; it may be nonsense, even negative,
    and whoever uses it must bound it and say so. `far` is more than twice the last tick of an
    axis. `least_s` is the time where points past a last tick are taken back to it, `most_s` where
    those before a first tick are taken forward to it; infinite where there is none.
    """

    mean_s: Values
    spread: Spread | None
    on_grid: NDArray[np.bool_]
    inside: NDArray[np.bool_]
    far: NDArray[np.bool_]
    least_s: Values
    most_s: Values


@dataclass(frozen=True)
class Grid:
    """Values of one key group on a full rectangular grid of its axes."""

    axes: tuple[Values, ...]
    values: Mapping[str, Values]

    @property
    def size(self) -> int:
        """Return the number of points."""
        return math.prod(len(axis) for axis in self.axes)

    def fallen_cells(self, axes: Sequence[str]) -> int:
        """Return how many cells take clearly less time than a smaller one along an axis."""
        times = self.values.get("mean_s", self.values.get("p50_s"))
        fallen = 0
        for i, axis in enumerate(axes):
            if axis in GROWING and times is not None:
                along = np.moveaxis(times, i, 0)
                fallen += int((along[1:] < (1 - FALL_FRAC) * along[:-1]).sum())
        return fallen

    def at(self, coordinates: Sequence[ArrayLike]) -> Lookup:
        """Interpolate every statistic at one or many points (coordinates broadcast)."""
        points = np.broadcast_arrays(*(np.asarray(c, dtype=np.float64) for c in coordinates))
        clamped = [np.clip(p, a[0], a[-1]) for p, a in zip(points, self.axes, strict=True)]
        pairs = list(zip(points, clamped, self.axes, strict=True))
        inside = np.all([p == c for p, c, _ in pairs], axis=0)
        on_grid = np.all([np.isin(p, axis) for p, _, axis in pairs], axis=0)
        found = {k: _multilinear(self.axes, grid, points) for k, grid in self.values.items()}
        spread = self._spread(clamped)
        mean = found.get("mean_s", found.get("p50_s"))
        if spread is not None:
            inside_mean = spread.mean_s()
            if "mean_s" not in found:
                # Off the grid the median's line says how much more the whole distribution takes.
                mean = inside_mean * found["p50_s"] / np.exp(spread.log_s[spread.z.index(0.0)])
        assert mean is not None
        far = np.any([p > 2 * axis[-1] for p, _, axis in pairs], axis=0)
        back = [np.minimum(p, axis[-1]) for p, _, axis in pairs]
        ahead = [np.maximum(p, axis[0]) for p, _, axis in pairs]
        least, most = (self._moved(points, to, at) for to, at in ((back, -np.inf), (ahead, np.inf)))
        return Lookup(mean, spread, on_grid, inside, far, least, most)

    def _moved(self, points: Sequence[Values], to: Sequence[Values], unmoved: float) -> Values:
        """Return the times of points that are moved, and `unmoved` for those that stay."""
        moved = np.any([p != q for p, q in zip(points, to, strict=True)], axis=0)
        return np.where(moved, self.at(to).mean_s if moved.any() else unmoved, unmoved)

    def _spread(self, clamped: Sequence[Values]) -> Spread | None:
        """Return the distribution at points of the grid, None where the table has none."""
        if "p50_s" not in self.values or "p99_s" not in self.values:
            return None
        known = [name for name in Z if name in self.values]
        times = [_multilinear(self.axes, self.values[name], clamped) for name in known]
        # Interpolated percentiles may cross by rounding; a distribution's may not.
        ordered = np.maximum.accumulate(np.log(np.array(times)), axis=0)
        return Spread(tuple(Z[name] for name in known), ordered)


def _multilinear(axes: Sequence[Values], grid: Values, points: Sequence[Values]) -> Values:
    """Interpolate `grid` at `points`: a table that is linear in each axis comes back exactly.

    An axis of one tick is constant. Beyond the first or last tick the nearest interval's line
    goes on.
    """
    corners: list[tuple[NDArray[np.intp], NDArray[np.intp], Values]] = []
    for axis, point in zip(axes, points, strict=True):
        low = np.clip(np.searchsorted(axis, point, side="right") - 1, 0, max(len(axis) - 2, 0))
        high = np.minimum(low + 1, len(axis) - 1)
        width = np.where(high > low, axis[high] - axis[low], 1.0)
        corners.append((low, high, np.where(high > low, (point - axis[low]) / width, 0.0)))
    result = np.zeros(points[0].shape)
    for sides in itertools.product((0, 1), repeat=len(axes)):
        at = tuple(c[side] for c, side in zip(corners, sides, strict=True))
        share = np.ones(points[0].shape)
        for (_, _, weight), side in zip(corners, sides, strict=True):
            share = share * (weight if side else 1.0 - weight)
        result += share * grid[at]
    return result


@dataclass(frozen=True)
class Table:
    """One op kind's measured times.

    Attributes
    ----------
    keys
        Columns that must match exactly (such as n, k, dtype of a GEMM).
    axes
        Columns that are interpolated.
    source_hashes
        Hashes of the kernels that were timed, where the rows say so.
    """

    name: str
    keys: tuple[str, ...]
    axes: tuple[str, ...]
    grids: Mapping[tuple[str, ...], Grid]
    source_hashes: frozenset[str] = frozenset()

    def grid(self, point: Mapping[str, object]) -> Grid | None:
        """Return the grid whose keys equal those of `point`, if the table has one."""
        return self.grids.get(tuple(str(point.get(key)) for key in self.keys))

    def has(self, some: Mapping[str, object]) -> bool:
        """Return whether some grid has all these keys."""
        wanted = {(key, str(value)) for key, value in some.items()}
        return any(wanted <= set(zip(self.keys, keys, strict=True)) for keys in self.grids)


def read_table(file: Path, name: str, keys: Sequence[str], axes: Sequence[str]) -> Table:
    """Read and check a table.

    Raises
    ------
    InputError
        With file and line: columns that are not those of the profile, cells that are missing, not
        numbers, not finite or not positive, and grids with holes.
    """
    columns, lines = read_lines(file, [*keys, *axes])
    if not lines:
        raise InputError("the table has no rows", file=file, line=1)
    # A percentile that too few calls allow to claim is an empty column.
    columns = [c for c in columns if c == "p50_s" or any(row[c] for _, row in lines)]
    rows: dict[tuple[str, ...], dict[tuple[float, ...], list[dict[str, float]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for line, row in lines:
        number = {c: positive(row[c], c, file, line) for c in [*axes, *columns]}
        percentiles = [number[c] for c in columns if c != "mean_s"]
        if percentiles != sorted(percentiles):
            raise InputError("percentiles must not fall", file=file, line=line)
        point = tuple(number[axis] for axis in axes)
        rows[tuple(row[k] for k in keys)][point].append({c: number[c] for c in columns})
    grids = {key: _grid(file, name, key, axes, points, columns) for key, points in rows.items()}
    for key, grid in grids.items():
        fallen = 0 if name == SLOWDOWN else grid.fallen_cells(axes)
        if fallen:
            where = f"{file} {' '.join(key)}".strip()
            message = f"{where}: {fallen} cells are faster than a smaller one; kept"
            warnings.warn(message, stacklevel=2)
    hashes = frozenset(row["source_hash"] for _, row in lines if row.get("source_hash"))
    return Table(name, tuple(keys), tuple(axes), grids, hashes)


def read_lines(
    file: Path, required: Sequence[str]
) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Return which statistics a table has, and its rows by line and column, without outer spaces.

    Raises
    ------
    InputError
        With file and line: a required column that is missing, unknown ones, rows of another length.
    """
    text = read_text(file)
    csv.field_size_limit(max(len(text), 1))
    reader = csv.reader(io.StringIO(text, newline=""))
    header = [cell.strip() for cell in next(reader, [])]
    columns = _check_header(file, header, required)
    lines: list[tuple[int, dict[str, str]]] = []
    for cells in filter(None, reader):
        if len(cells) != len(header):
            message = f"{len(cells)} cells in a row of {len(header)} columns"
            raise InputError(message, file=file, line=reader.line_num)
        values = (cell.strip() for cell in cells)
        lines.append((reader.line_num, dict(zip(header, values, strict=True))))
    return columns, lines


def _check_header(file: Path, header: Sequence[str], required: Sequence[str]) -> list[str]:
    """Return the statistic columns present, or raise for missing and unknown columns."""
    for column in required:
        if column not in header:
            raise InputError(
                f"the table has no column {column!r}",
                nearest_hint(column, header),
                file=file,
                line=1,
            )
    known = [*required, *STATISTICS, *DESCRIPTIONS]
    if len(set(header)) < len(header):
        raise InputError("a column is there twice", "Delete one", file=file, line=1)
    for column in header:
        if column not in known:
            raise InputError(
                f"unknown column {column!r}", nearest_hint(column, known), file=file, line=1
            )
    present = [column for column in STATISTICS if column in header]
    if "mean_s" not in present and "p50_s" not in present:
        raise InputError("the table has neither mean_s nor p50_s", file=file, line=1)
    return present


def positive(cell: str, column: str, file: Path, line: int) -> float:
    """Return a cell's number, or raise `InputError` unless it is finite and above zero."""
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise InputError(
            f"{cell!r} is not a finite number above zero",
            "Delete the row or measure it again",
            file=file,
            line=line,
            key=column,
        )
    return value


def _grid(
    file: Path,
    name: str,
    key: tuple[str, ...],
    axes: Sequence[str],
    points: Mapping[tuple[float, ...], list[dict[str, float]]],
    columns: Sequence[str],
) -> Grid:
    """Arrange the points of one key on a full grid; several rows of a point become their median."""
    doubled = [point for point, found in points.items() if len(found) > 1]
    if doubled:
        warnings.warn(f"{file}: {len(doubled)} points are there twice; medians used", stacklevel=2)
    ticks = [np.array(sorted({point[i] for point in points})) for i in range(len(axes))]
    values = {column: np.empty([len(t) for t in ticks]) for column in columns}
    for index in np.ndindex(*(len(t) for t in ticks)):
        point = tuple(float(t[i]) for t, i in zip(ticks, index, strict=True))
        if point not in points:
            where = ", ".join(f"{a}={v:g}" for a, v in zip(axes, point, strict=True))
            raise InputError(
                f"the grid of {name} {' '.join(key)} has a hole at {where}".replace("  ", " "),
                "Measure that point, or delete the rows that need it",
                file=file,
            )
        for column in columns:
            values[column][index] = statistics.median(row[column] for row in points[point])
    return Grid(tuple(ticks), values)
