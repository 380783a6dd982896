"""How far a profile's tables are off at measured points that are not in them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from essim.hardware.table import Table, positive, read_lines

Ratios = NDArray[np.float64]


def heldout_file(table_file: Path) -> Path:
    """Return where a table's held-out points lie: in ``heldout/`` beside it."""
    return table_file.parent / "heldout" / table_file.name


def ratios(
    table: Table,
    file: Path,
    wanted: Callable[[Mapping[str, str]], bool] = lambda row: True,
) -> dict[tuple[str, ...], Ratios]:
    """Return measured over predicted time at a table's held-out points, by its keys.

    Parameters
    ----------
    wanted
        Says which rows count; rows with keys that the table has not do not.

    Raises
    ------
    InputError
        With file and line: other columns than those of a table, a row that is no time at a point.
    """
    found: dict[tuple[str, ...], list[list[float]]] = defaultdict(list)
    for line, row in read_lines(file, [*table.keys, *table.axes, "mean_s"])[1]:
        if table.grid(row) is None or not wanted(row):
            continue
        point = [positive(row[name], name, file, line) for name in (*table.axes, "mean_s")]
        found[tuple(row[key] for key in table.keys)].append(point)
    columns = {keys: np.array(points).T for keys, points in found.items()}
    return {
        keys: at[-1] / table.grids[keys].at(list(at[:-1])).mean_s for keys, at in columns.items()
    }
