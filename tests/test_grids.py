"""Where a table's times jump: each side follows its own ticks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from essim.errors import InputError
from essim.grids import Grid
from essim.tables import read_table


def line(times_us: list[float], *jumps: float) -> Grid:
    """Times at 1, 2, 3, ... of one axis."""
    ticks, values = np.arange(1.0, 1 + len(times_us)), np.array(times_us)
    return Grid((ticks,), {"mean_s": values}, (frozenset(jumps),))


@pytest.mark.parametrize(
    ("times", "jumps", "at", "expected"),
    [
        # Up to the jump the ticks before it, past it the line of those behind it.
        ([1, 2, 10, 12], [2], [1.5, 2, 2.5, 3, 3.5], [1.5, 2, 9, 10, 11]),
        # Never below the tick before, nor above the one behind.
        ([1, 2, 10, 30], [2], [2.5], [6]),
        ([1, 2, 10, 8], [2], [2.5], [10]),
        # A tick alone between two jumps is a constant, and so is the last one.
        ([1, 2, 10, 12], [2, 3], [2.25, 3, 3.5], [10, 10, 12]),
        ([1, 2, 10], [2], [2.25], [10]),
        # Behind the last tick there is nothing to follow.
        ([1, 2], [2], [1.5, 3], [1.5, 3]),
    ],
)
def test_each_side_of_a_jump_follows_its_own_ticks(times, jumps, at, expected) -> None:
    assert line(times, *jumps).at([at]).mean_s == pytest.approx(expected)


def test_a_jump_adds_no_point_that_was_measured() -> None:
    grid = line([1, 2, 10, 12], 2)
    assert grid.size == 4
    assert grid.at([[2, 2.5, 3]]).on_grid.tolist() == [True, False, True]


@given(st.floats(1, 9), st.floats(1000, 5000))
def test_two_planes_come_back_exactly(batch: float, tokens: float) -> None:
    def plane(b, s):
        return 5 + b * s * 1e-3 + np.where(s > 2000, 7 + 2 * b, 0)

    axes = np.array([1.0, 3, 9]), np.array([1000.0, 1500, 2000, 3000, 5000])
    values = plane(*np.meshgrid(*axes, indexing="ij"))
    grid = Grid(axes, {"mean_s": values}, (frozenset(), frozenset({2000.0})))
    assert grid.at([batch, tokens]).mean_s == pytest.approx(plane(batch, tokens), rel=1e-9)


def test_a_distribution_jumps_whole(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("batch,p50_s,p99_s\n1,1e-6,2e-6\n2,10e-6,40e-6\n3,12e-6,48e-6\n")
    found = read_table(file, "t", (), ("batch",), {"batch": [1]}).grids[()].at([1.5])
    assert found.spread is not None
    assert found.spread.times_s(np.array([0.0, 2.3263478740408408])) == pytest.approx([9e-6, 36e-6])


def test_a_jump_that_is_no_tick_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("batch,mean_s\n1,1e-6\n2,10e-6\n")
    with pytest.raises(InputError, match=r"t\.csv: a jump at batch=3, which is no tick"):
        read_table(file, "t", (), ("batch",), {"batch": [1, 3]})
