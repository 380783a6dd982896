"""Lines over a number of tokens: an integer value and an integer slope for each cell of tokens."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

# A line goes on for so many tokens; its integer slope is off by less than a picosecond a token.
CELL_TOKENS = 128

Picoseconds = NDArray[np.int64]


def ends_of_cells(cells: int) -> Picoseconds:
    """Return the first and the last token count of each cell: 1, 128, 129, 256, ..."""
    first = 1 + CELL_TOKENS * np.arange(cells, dtype=np.int64)
    return np.stack([first, first + CELL_TOKENS - 1], axis=1).ravel()


class Cells:
    """Lines over a number of tokens, a cell each: from `values` at the ends of cells 0, 1, ..."""

    def __init__(self, values: Picoseconds) -> None:
        ends = values.reshape(-1, 2)
        self.base: list[int] = ends[:, 0].tolist()
        self.slope: list[int] = ((ends[:, 1] - ends[:, 0]) // (CELL_TOKENS - 1)).tolist()

    def line(self, tokens: int) -> tuple[int, int]:
        """Return (value, slope) at so many tokens."""
        cell, inside = divmod(tokens - 1, CELL_TOKENS)
        slope = self.slope[cell]
        return self.base[cell] + slope * inside, slope


class LazyCells:
    """Lines over a number of tokens, each made when it is first needed."""

    def __init__(self, value: Callable[[int], int]) -> None:
        self.value, self.lines = value, dict[int, tuple[int, int]]()

    def at(self, tokens: int) -> int:
        """Return the value at so many tokens; there is none at 0."""
        if not tokens:
            return 0
        cell, inside = divmod(tokens - 1, CELL_TOKENS)
        if cell not in self.lines:
            first, last = (self.value(cell * CELL_TOKENS + i) for i in (1, CELL_TOKENS))
            self.lines[cell] = first, (last - first) // (CELL_TOKENS - 1)
        base, slope = self.lines[cell]
        return base + slope * inside
