"""Measured tables: a CSV of times over axes, read and checked."""

from __future__ import annotations

import csv
import io
import math
import statistics
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from essim.errors import InputError
from essim.hardware.interpolation import Grid
from essim.text.yaml import nearest_hint, read_text

# Statistic columns a table may have, in seconds. Sums want means, so `mean_s` or `p50_s` must be
# there; `p50_s` and `p99_s` together make the price a distribution (`Grid.varies`: `p50_s` alone).
STATISTICS = ("mean_s", "low_s", "p50_s", "high_s", "p99_s")
# What columns were called in older files. Of 8 to 10 samples neither is a percentile to rely on.
OLD_NAMES = {"p5_s": "low_s", "p95_s": "high_s"}
# Columns that describe how a row was measured; prices do not depend on them.
DESCRIPTIONS = (
    *("kind", "dtype", "cache_state", "calls", "rejected", "iqr_frac", "unstable"),
    *("bytes_moved", "bytes_per_s", "source_hash"),
)
# What two streams cost each other is no work: it falls where the router spreads otherwise.
SLOWDOWN = "gpu_side_slowdown"


@dataclass(frozen=True)
class Table:
    """One op kind's measured times.

    Attributes
    ----------
    keys
        Columns that must match exactly (such as n, k, dtype of a GEMM).
    axes
        Columns that are interpolated.
    """

    name: str
    keys: tuple[str, ...]
    axes: tuple[str, ...]
    grids: Mapping[tuple[str, ...], Grid]

    def grid(self, point: Mapping[str, object], *, rising: bool = False) -> Grid | None:
        """Return the grid whose keys equal those of `point`, if the table has one.

        With `rising`, no time in it is less than one with less work.
        """
        grids = self._rising if rising else self.grids
        return grids.get(tuple(str(point.get(key)) for key in self.keys))

    @cached_property
    def _rising(self) -> dict[tuple[str, ...], Grid]:
        return {key: grid.rising(self.axes) for key, grid in self.grids.items()}


def read_table(
    file: Path,
    name: str,
    keys: Sequence[str],
    axes: Sequence[str],
    jumps: Mapping[str, Sequence[float]] | None = None,
    *,
    varies: bool = False,
) -> Table:
    """Read and check a table; `jumps` and `varies` are those of `Grid`.

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
    places: dict[tuple[tuple[str, ...], tuple[float, ...]], int] = {}
    for line, row in lines:
        number = {c: positive(row[c], c, file, line) for c in [*axes, *columns]}
        percentiles = [number[c] for c in columns if c != "mean_s"]
        if percentiles != sorted(percentiles):
            raise InputError("percentiles must not fall", file=file, line=line)
        point = tuple(number[axis] for axis in axes)
        key = tuple(row[k] for k in keys)
        places.setdefault((key, point), line)
        rows[key][point].append({c: number[c] for c in columns})
    after = tuple(frozenset((jumps or {}).get(axis, ())) for axis in axes)
    grids = {
        key: replace(_grid(file, name, key, axes, points, columns), jumps=after, varies=varies)
        for key, points in rows.items()
    }
    table = Table(name, tuple(keys), tuple(axes), grids)
    _warn_of_falls(file, table, places)
    return table


def _warn_of_falls(
    file: Path, table: Table, places: Mapping[tuple[tuple[str, ...], tuple[float, ...]], int]
) -> None:
    """Warn of times that fall along an axis along which work grows, at the first one's line."""
    points = {key: grid.fallen_points(table.axes) for key, grid in table.grids.items()}
    fallen = {key: found for key, found in points.items() if found}
    if fallen and table.name != SLOWDOWN:
        where = " ".join(*fallen) if len(fallen) == 1 else f"in {len(fallen)} grids"
        line = min(places[key, point] for key, found in fallen.items() for point in found)
        count = sum(map(len, fallen.values()))
        message = f"{f'{file}:{line} {where}'.strip()}: {count} cells are faster than a "
        warnings.warn(f"{message}smaller one; kept", stacklevel=3)


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
    header = [OLD_NAMES.get(cell.strip(), cell.strip()) for cell in next(reader, [])]
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
