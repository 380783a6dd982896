"""A campaign: every table of a profile, point by point, resumable; some points are held out."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from measure.harness.table import Progress, ResultTable, fill
from measure.harness.timing import Axis, Measurement, Spec, measure

Place = Mapping[str, Axis]


@dataclass(frozen=True)
class Ready:
    """A point set up to be timed.

    Attributes
    ----------
    sample
        Makes one call and returns its seconds.
    bytes_moved
        Least bytes a call reads and writes.
    calls
        Samples to take.
    most_windows
        Windows of samples after which warming up ends, steady or not.
    """

    sample: Callable[[], float]
    bytes_moved: int | None = None
    calls: int = 200
    most_windows: int = 50


@dataclass(frozen=True)
class Bench:
    """How one table is measured.

    Attributes
    ----------
    axes, keys
        Columns that are interpolated, and that must match exactly.
    points, heldout
        The table's full grid, and interior points that are measured but never in the table: how
        well they are predicted is the table's held-out error.
    prepare
        Sets a point up; called once a point.
    holds_for
        Settings the table was measured with.
    jumps
        Ticks of an axis right after which the kernel does more at once.
    """

    table: str
    axes: tuple[str, ...]
    points: tuple[Place, ...]
    heldout: tuple[Place, ...]
    prepare: Callable[[Place], Ready]
    dtype: str
    source_hash: str
    reference: str
    keys: tuple[str, ...] = ()
    holds_for: Mapping[str, Sequence[Axis]] = field(default_factory=dict)
    jumps: Mapping[str, Sequence[int]] = field(default_factory=dict)


def grid(**ticks: Sequence[Axis]) -> tuple[Place, ...]:
    """Return every combination of ticks."""
    return tuple(dict(zip(ticks, at, strict=True)) for at in itertools.product(*ticks.values()))


def held_out(
    seed: int, ticks: Mapping[str, Sequence[int]], units: Mapping[str, int] | None = None
) -> tuple[Place, ...]:
    """Return a random quarter (at least two) of the grid's cells, a point inside each.

    The point is the geometric middle of the cell, where interpolation is worst; on an axis with a
    unit a multiple of it. Where there is no room between two ticks it is the lower one, but for
    points that would be on the grid.
    """
    inside = {axis: _inside(at, (units or {}).get(axis, 1)) for axis, at in ticks.items()}
    cells = [cell for cell in grid(**inside) if cell not in grid(**ticks)]
    count = min(len(cells), max(2, round(len(cells) / 4)))
    return tuple(random.Random(seed).sample(cells, count))


def _inside(ticks: Sequence[int], unit: int) -> list[int]:
    """Return a value for each interval of the ticks, see `held_out`."""
    if len(ticks) == 1:
        return list(ticks)
    middles = [(a, b, round(math.sqrt(a * b) / unit) * unit) for a, b in itertools.pairwise(ticks)]
    return [m if a < m < b else a for a, b, m in middles]


def result_files(folder: Path, table: str) -> tuple[Path, Path]:
    """Return where a table lies, and where its held-out points do."""
    return folder / f"{table}.csv", folder / "heldout" / f"{table}.csv"


def run(
    benches: Sequence[Bench],
    folder: Path,
    on_progress: Callable[[str, Progress], None] = lambda table, progress: None,
    calls: int | None = None,
    peak_bytes_per_s: float | None = None,
) -> None:
    """Measure every point that `folder` does not have yet.

    Parameters
    ----------
    on_progress
        Called after each point with the table's name and state.
    calls
        Samples a point, instead of what each bench asks for.
    peak_bytes_per_s
        A bandwidth that no call can reach: faster samples are rejected.

    Raises
    ------
    InputError
        If a table there was measured with another source of its kernel.
    """
    for bench in benches:
        for file, places in zip(
            result_files(folder, bench.table), (bench.points, bench.heldout), strict=True
        ):
            if not places:
                continue
            keys = [key for key in bench.keys if key != "dtype"]
            table = ResultTable(file, (*keys, *bench.axes), bench.source_hash)

            def point(spec: Spec, bench: Bench = bench) -> Measurement:
                ready = bench.prepare({"dtype": spec.dtype, **spec.axes})
                spec = Spec(
                    *(spec.kind, spec.axes, spec.dtype, spec.cache_state, ready.bytes_moved),
                    spec.source_hash,
                )
                count = calls or ready.calls
                return measure(
                    spec,
                    ready.sample,
                    calls=count,
                    window_calls=max(5, min(20, count // 2)),
                    most_windows=ready.most_windows,
                    peak_bytes_per_s=peak_bytes_per_s,
                )

            def tell(progress: Progress, bench: Bench = bench) -> None:
                on_progress(bench.table, progress)

            specs = [_spec(bench, place) for place in places]
            fill(table, specs, point, tell)


def _spec(bench: Bench, place: Place) -> Spec:
    """Return what a place measures; a place may have a dtype of its own."""
    axes = {axis: value for axis, value in place.items() if axis != "dtype"}
    dtype = str(place.get("dtype", bench.dtype))
    return Spec(bench.table, axes, dtype, "cold", None, bench.source_hash)
