"""Where a table's times jump: each side follows its own ticks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from h200 import H200
from hypothesis import given
from hypothesis import strategies as st

from essim.hardware.interpolation import Grid
from essim.hardware.table import read_table


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
        # Before a first tick that jumps the line behind the jump goes on, past a last one that
        # stands alone the whole last interval's.
        ([1, 9, 10], [1], [0.5, 0.9, 1, 1.5, 2], [0.5, 0.9, 1, 8.5, 9]),
        ([1, 9], [1], [0.5, 1, 1.5, 2, 3], [-3, 1, 9, 9, 17]),
        ([1, 2, 10], [2], [3, 4, 6], [10, 18, 34]),
        ([1, 2, 10, 12], [2, 3], [4, 5], [12, 14]),
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


def test_along_two_axes() -> None:
    axes = np.array([1.0, 2, 3]), np.array([10.0, 20, 30, 40])
    values = np.array([[1.0, 2, 12, 13], [3, 4, 14, 15], [23, 24, 34, 35]])
    grid = Grid(axes, {"mean_s": values}, (frozenset({2.0}), frozenset({20.0})))
    found = grid.at([[1.5, 1.5, 2.5, 2.5], [15, 25, 15, 25]]).mean_s
    assert found == pytest.approx([2.5, 12.5, 23.5, 33.5])


def test_percentiles_stay_in_order_where_their_lines_cross() -> None:
    values = {"p50_s": np.array([1.0, 8, 12]), "p99_s": np.array([2.0, 9, 30])}
    grid = Grid((np.array([1.0, 2, 3]),), values, (frozenset({1.0}),))
    spread = grid.at([[1.01]]).distribution
    assert spread is not None
    median, tail = spread.times_s(np.array([0.0, 2.3263478740408408]))
    assert median == pytest.approx(4.04)
    assert tail == pytest.approx(4.04)


def test_a_distribution_jumps_whole(tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text("batch,p50_s,p99_s\n1,1e-6,2e-6\n2,10e-6,40e-6\n3,12e-6,48e-6\n")
    found = read_table(file, "t", (), ("batch",), {"batch": [1]}).grids[()].at([1.5])
    assert found.distribution is not None
    assert found.distribution.times_s(np.array([0.0, 2.3263478740408408])) == pytest.approx(
        [9e-6, 36e-6]
    )


@pytest.mark.parametrize("batch", [1, 8, 16])
def test_the_shipped_stepwise_router_goes_on_before_its_first_tick(batch: int) -> None:
    tokens = np.array([2048, 4000, 4095, 4096])
    times = H200.tables["gpu_route_stepwise"].grids[()].at([batch, tokens]).mean_s
    assert (np.diff(times) > 0).all()
    assert times[1] == pytest.approx(times[3], rel=0.02)
    assert times[0] > 0.5 * times[3]
