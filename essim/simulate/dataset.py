"""Sweeps that survive: results as a folder of parts, each written whole or not at all."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from essim.errors import InputError
from essim.results.columns import COLUMNS
from essim.results.files import columns_bytes
from essim.simulate.plan import WORKLOAD, Grid
from essim.simulate.rows import add_swept
from essim.simulate.workers import Work

MANIFEST = "manifest.json"
# Points of a part at most, and parts of a sweep at least, about.
_POINTS, _PARTS = 1 << 14, 16


@dataclass(frozen=True)
class Sweep:
    """A sweep in parts: what a worker needs to make any of them.

    Attributes
    ----------
    engine
        ``closed``, or an engine that simulates every step.
    manifest
        What the result comes from, as JSON.
    part_points
        Points of a part; the last may have fewer.
    """

    grid: Grid
    engine: str
    strict: bool
    seed: int
    manifest: str
    part_points: int

    @staticmethod
    def of(grid: Grid, engine: str, strict: bool, seed: int, about: Mapping[str, Any]) -> Sweep:
        """Return the sweep of a grid; parts hold whole blocks of the last keys' points."""
        grid.check()
        points = _part_points(grid)
        columns = {name: column.unit for name, column in COLUMNS.items()}
        text = json.dumps({"columns": columns, "part_points": points, **about}, indent=2)
        return Sweep(grid, engine, strict, seed, text, points)

    @property
    def parts(self) -> int:
        """How many parts there are."""
        return -(-math.prod(self.grid.shape) // self.part_points)

    def span(self, part: int) -> tuple[int, int]:
        """Return the first point of a part and the first of the next one."""
        first = part * self.part_points
        return first, min(first + self.part_points, math.prod(self.grid.shape))

    def content(self, part: int) -> bytes:
        """Return the Parquet file of a part: the same bytes whoever makes it, and when."""
        first, stop = self.span(part)
        if self.engine == "closed":
            from essim.simulate.closed.part import part_columns

            cells = part_columns(
                self.grid, _closed_form(self.manifest, self.strict, self.seed), first, stop
            )
        else:
            cells = self._row_by_row(first, stop)
        return columns_bytes(cells, self.manifest)

    def _row_by_row(self, first: int, stop: int) -> dict[str, list[Any]]:
        """Return the columns of points whose every step is simulated."""
        from essim.simulate.sweep import Simulator

        points = []
        for indices in np.stack(
            np.unravel_index(range(first, stop), self.grid.shape), axis=1
        ).tolist():
            point = self.grid.point(indices)
            if self.grid.has(point, indices):
                points.append(point)
        rows = Simulator(engine=self.engine, strict=self.strict, seed=self.seed).rows(points)
        add_swept(self.grid.base, points, rows)
        return {name: [row.get(name) for row in rows] for name in COLUMNS}


def _part_points(grid: Grid) -> int:
    """Return the points of a part: whole blocks of the last keys' points, if they fit.

    Points that differ in workload alone share most of their work.
    """
    keys, points = list(grid.base.sweep), 1
    most = min(_POINTS, math.prod(grid.shape) // _PARTS)
    for key, size in zip(reversed(keys), reversed(grid.shape), strict=True):
        if points * size > (_POINTS if key in WORKLOAD else most):
            break
        points *= size
    return points * max(1, most // points)


@lru_cache(maxsize=1)
def _closed_form(manifest: str, strict: bool, seed: int) -> Any:
    """Return a worker's own: parts of one sweep share what their blocks have in common."""
    from essim.simulate.closed.table import ClosedForm

    return ClosedForm(strict=strict, seed=seed)


def run(
    sweep: Sweep,
    folder: Path,
    work: Work,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Make the parts of a sweep that a folder does not have yet.

    `progress` takes how many points are done, and of how many.

    Raises
    ------
    InputError
        If the folder holds something else, or the sweep of another scenario, profile or version.
    """
    _begin(sweep, folder)
    missing = [part for part in range(sweep.parts) if not _file(folder, part).exists()]
    total = math.prod(sweep.grid.shape)
    done = total - sum(b - a for a, b in map(sweep.span, missing))
    progress(done, total)
    for part, content in work(sweep, missing):
        _write(_file(folder, part), content)
        first, stop = sweep.span(part)
        done += stop - first
        progress(done, total)
    _write_manifest(folder, sweep, complete=True)


def _file(folder: Path, part: int) -> Path:
    return folder / f"part-{part:06}.parquet"


def _begin(sweep: Sweep, folder: Path) -> None:
    """Make the folder, or check that what is there is of the same sweep."""
    if not folder.exists():
        folder.mkdir(parents=True)
    for left in folder.glob(".*.unfinished"):
        left.unlink()
    file = folder / MANIFEST
    if not file.exists():
        if any(folder.iterdir()):
            hint = "Give --out a new folder"
            raise InputError("the folder holds something else", hint, file=folder)
        _write_manifest(folder, sweep, complete=False)
        return
    before, now = json.loads(file.read_text(encoding="utf-8")), json.loads(sweep.manifest)
    changed = [key for key in now if before.get(key) != now[key]]
    if changed:
        raise InputError(
            f"this folder's sweep had another {_listed(changed, before, now)}",
            "Give --out a new folder, or go back to what it was made with",
            file=folder,
        )


def _listed(changed: list[str], before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return what differs, in words."""
    names = []
    for key in changed:
        if key == "profiles":
            old = before.get(key) or {}
            names += [f"profile {p}" for p in {**old, **now[key]} if old.get(p) != now[key].get(p)]
        else:
            names.append(key.replace("_", " "))
    return ", ".join(names)


def _write_manifest(folder: Path, sweep: Sweep, *, complete: bool) -> None:
    """Write what the folder's parts come from."""
    about = json.loads(sweep.manifest) | {
        "complete": complete,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    _write(folder / MANIFEST, (json.dumps(about, indent=2) + "\n").encode())


def _write(file: Path, content: bytes) -> None:
    """Write a file that is there whole or not at all, whatever ends the process or the machine."""
    unfinished = file.with_name(f".{file.name}.unfinished")
    try:
        with unfinished.open("wb") as out:
            out.write(content)
            out.flush()
            os.fsync(out.fileno())
        unfinished.replace(file)
    finally:
        unfinished.unlink(missing_ok=True)
