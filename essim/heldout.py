"""How far a profile's tables are off at measured points that are not in them."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from essim.errors import InputError
from essim.tables import Table

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
        With file and line, where a row is not a time at a point.
    """
    found: dict[tuple[str, ...], list[list[float]]] = defaultdict(list)
    with file.open(newline="", encoding="utf-8") as stream:
        reader = csv.DictReader(stream)
        for row in reader:
            if table.grid(row) is None or not wanted(row):
                continue
            try:
                point = [float(row[column]) for column in (*table.axes, "mean_s")]
            except (KeyError, TypeError, ValueError) as error:
                message = f"not a time at a point of {', '.join(table.axes)}: {error}"
                raise InputError(message, file=file, line=reader.line_num) from None
            found[tuple(row[key] for key in table.keys)].append(point)
    columns = {keys: np.array(points).T for keys, points in found.items()}
    return {
        keys: at[-1] / table.grids[keys].at(list(at[:-1])).mean_s for keys, at in columns.items()
    }
