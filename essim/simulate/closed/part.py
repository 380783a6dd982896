"""Rows of a part of a grid as columns, in the grid's order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from essim.errors import EssimError
from essim.results.columns import COLUMNS
from essim.simulate.closed.table import ENGINE, ClosedForm
from essim.simulate.closed.times import Block
from essim.simulate.plan import WORKLOAD, Grid
from essim.simulate.rows import settings_of
from essim.simulate.scenario import Scenario

Places = NDArray[np.intp]


def part_columns(grid: Grid, closed: ClosedForm, start: int, stop: int) -> dict[str, Any]:
    """Return the columns of the points from `start` up to `stop`, counted in the grid's order."""
    part = _Part(grid, closed, np.stack(np.unravel_index(np.arange(start, stop), grid.shape)))
    for rows in part.families():
        part.fill(rows)
    kept = np.flatnonzero(part.kept)
    return {name: values[kept] for name, values in part.columns.items()}


class _Part:
    """Columns that are being filled in.

    Parameters
    ----------
    indices
        Which value of each swept key a point has, shape [keys, points].
    """

    def __init__(self, grid: Grid, closed: ClosedForm, indices: Places) -> None:
        self.grid, self.closed, self.indices = grid, closed, indices
        self.keys, count = list(grid.base.sweep), indices.shape[1]
        self.kept = np.ones(count, dtype=bool)
        self.columns: dict[str, Any] = {
            name: np.full(count, np.nan) if column.kind is float else np.full(count, None, object)
            for name, column in COLUMNS.items()
        }

    def families(self) -> list[Places]:
        """Return the points that differ in workload alone, in order of their first one."""
        others = [i for i, key in enumerate(self.keys) if key not in WORKLOAD]
        if not others:
            return [np.arange(self.indices.shape[1])]
        shape = tuple(self.grid.shape[i] for i in others)
        codes = np.ravel_multi_index(tuple(self.indices[others]), shape)
        _, first, of_point = np.unique(codes, return_index=True, return_inverse=True)
        return [np.flatnonzero(of_point == i) for i in np.argsort(first)]

    def fill(self, rows: Places) -> None:
        """Fill in the rows of one family."""
        indices = self.indices[:, rows[0]].tolist()
        loads = [self._load(i, rows) for i in range(3)]
        try:
            point = self.grid.point(indices)
        except EssimError as error:
            self._put(rows, self._refused(indices, error) | dict(zip(_LOADS, loads, strict=True)))
            return
        if not self.grid.has(point, indices):
            self.kept[rows] = False
            return
        self._put(
            rows, self._of_block(point, loads) | {"settings": settings_of(self.grid.base, point)}
        )

    def _load(self, i: int, rows: Places) -> NDArray[np.int64]:
        """Return the batch, or the input or output length, of rows."""
        key = WORKLOAD[i]
        if key not in self.keys:
            own = getattr(self.grid.base.workload, key.split(".")[1])
            return np.full(len(rows), own, dtype=np.int64)
        values = np.array(self.grid.base.sweep[key], dtype=np.int64)
        return np.asarray(values[self.indices[self.keys.index(key), rows]])

    def _of_block(self, point: Scenario, loads: list[NDArray[np.int64]]) -> dict[str, Any]:
        batches, batch = np.unique(loads[0], return_inverse=True)
        pairs, run = np.unique(np.stack(loads[1:], axis=1), axis=0, return_inverse=True)
        block = Block(point, batches, pairs)
        found = self.closed.columns(block)
        return {
            name: np.broadcast_to(value, block.shape)[batch, run.ravel()]
            if isinstance(value, np.ndarray)
            else value
            for name, value in found.items()
        }

    def _refused(self, indices: list[int], error: EssimError) -> dict[str, Any]:
        """Return what is known of points that make no sense."""
        base = self.grid.base
        values = {k: v[i] for (k, v), i in zip(base.sweep.items(), indices, strict=True)}
        known = {"model": base.model.name, "hardware": base.hardware, "routing": base.routing.name}
        named = {key: _name(values[key]) if key in values else own for key, own in known.items()}
        selector = values.get("selector", base.selector.kind)
        return named | {
            "name": base.name,
            "selector": selector["kind"] if isinstance(selector, Mapping) else selector,
            "baseline": base.compare.baseline,
            "status": "infeasible",
            "reason": str(error),
            "engine": ENGINE,
            "seed": self.closed.seed,
        }

    def _put(self, rows: Places, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            column = self.columns.get(name)
            if column is None:
                continue
            if column.dtype == object and isinstance(value, np.ndarray) and value.dtype.kind == "f":
                missing, value = np.isnan(value), value.astype(object)
                value[missing] = None
            column[rows] = np.nan if value is None and column.dtype != object else value


_LOADS = ("batch", "input_tokens", "output_tokens")


def _name(value: object) -> str:
    """Return what a swept value is called."""
    if isinstance(value, Mapping):
        return str(value.get("name") or value.get("preset") or dict(value))
    return str(value)
