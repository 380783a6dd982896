from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from essim.errors import InputError
from essim.hardware.table import read_table


def table(folder: Path, text: str, keys=(), axes=("batch", "context_tokens")):
    file = folder / "t.csv"
    file.write_text(text)
    return read_table(file, "t", keys, axes)


def linear_table(folder: Path):
    rows = [
        f"{b},{s},{1e-6 + 2e-6 * b + 3e-9 * s + 1e-10 * b * s!r}"
        for b in (1, 4, 9)
        for s in (1000, 3000, 4000)
    ]
    return table(folder, "batch,context_tokens,mean_s\n" + "\n".join(rows))


@given(st.floats(1, 9), st.floats(1000, 4000))
def test_an_exactly_linear_table_comes_back_exactly(tmp_path_factory, b: float, s: float) -> None:
    found = linear_table(tmp_path_factory.mktemp("t")).grids[()].at([b, s])
    expected = 1e-6 + 2e-6 * b + 3e-9 * s + 1e-10 * b * s
    assert found.mean_s == pytest.approx(expected, rel=1e-9)
    assert found.inside.all()


def test_on_between_and_off_the_grid_are_told_apart(tmp_path: Path) -> None:
    found = linear_table(tmp_path).grids[()].at([4, np.array([3000, 3001, 4001, 999])])
    assert found.on_grid.tolist() == [True, False, False, False]
    assert found.inside.tolist() == [True, True, False, False]
    # Off the grid the last interval's line goes on.
    assert found.mean_s[2] == pytest.approx(1e-6 + 8e-6 + 3e-9 * 4001 + 4e-10 * 4001)


def test_an_axis_of_one_tick_is_constant(tmp_path: Path) -> None:
    grid = table(tmp_path, "batch,p50_s\n2,5e-6\n", axes=("batch",)).grids[()]
    found = grid.at([np.array([2, 3])])
    assert found.mean_s.tolist() == [5e-6, 5e-6]
    assert found.inside.tolist() == [True, False]


def test_median_and_99th_percentile_make_a_log_normal(tmp_path: Path) -> None:
    grid = table(tmp_path, "batch,p50_s,p99_s\n1,27e-6,64e-6\n", axes=("batch",)).grids[()]
    found = grid.at([np.array([1])])
    sigma = np.log(64 / 27) / 2.3263478740408408
    z = np.array([0.0, 1.0, 2.3263478740408408])
    assert found.distribution.times_s(z) == pytest.approx([27e-6, 27e-6 * np.exp(sigma), 64e-6])
    assert found.mean_s == pytest.approx(27e-6 * np.exp(sigma**2 / 2))


def test_more_percentiles_make_a_distribution_through_all_of_them(tmp_path: Path) -> None:
    text = "batch,mean_s,p5_s,p50_s,p95_s,p99_s\n1,11e-6,9e-6,10e-6,14e-6,30e-6\n"
    spread = table(tmp_path, text, axes=("batch",)).grids[()].at([np.array([1])]).distribution
    z = np.array([-1.6448536, 0.0, 1.6448536, 2.3263479])
    assert spread.times_s(z) == pytest.approx([9e-6, 10e-6, 14e-6, 30e-6], rel=1e-6)
    stretched = spread.scaled_to(np.array([11e-6]))
    assert stretched.mean_s() == pytest.approx(11e-6)
    rng = np.random.default_rng(0)
    assert stretched.times_s(rng.standard_normal(400_000)).mean() == pytest.approx(11e-6, rel=0.01)


def test_columns_that_describe_a_measurement_are_welcome(tmp_path: Path) -> None:
    text = "kind,batch,dtype,cache_state,calls,mean_s,p99_s,iqr_frac,source_hash\n"
    found = table(tmp_path, text + "act,1,bf16,cold,50,2e-6,3e-6,0.1,ab\n", axes=("batch",))
    assert found.grids[()].at([1]).mean_s == 2e-6


def test_keys_pick_the_grid(tmp_path: Path) -> None:
    text = "n,k,rows,p50_s\n64,32,1,1e-6\n64,16,1,2e-6\n"
    found = table(tmp_path, text, keys=("n", "k"), axes=("rows",))
    assert found.grid({"n": 64, "k": 16}).at([1]).mean_s == 2e-6
    assert found.grid({"n": 65, "k": 16}) is None


def test_doubled_points_become_their_median_with_a_warning(tmp_path: Path) -> None:
    text = "batch,p50_s\n1,1e-6\n1,9e-6\n1,2e-6\n"
    with pytest.warns(UserWarning, match="1 points are there twice"):
        found = table(tmp_path, text, axes=("batch",))
    assert found.grids[()].at([1]).mean_s == 2e-6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch,context_tokens,p50_s\n1,2,0\n", "t.csv:2: p50_s: '0' is not a finite number"),
        ("batch,context_tokens,p50_s\n1,2,-1e-6\n", "t.csv:2: p50_s: '-1e-6' is not"),
        ("batch,context_tokens,p50_s\n1,2,nan\n", "t.csv:2: p50_s: 'nan' is not"),
        ("batch,context_tokens,p50_s\n1,2,inf\n", "t.csv:2: p50_s: 'inf' is not"),
        ("batch,context_tokens,p50_s\n1,2,1\n1,3,\n", "t.csv:3: p50_s: '' is not"),
        ("batch,context_tokens,p50_s\n1,2\n", "t.csv:2: 2 cells in a row of 3 columns"),
        ("batch,context,p50_s\n1,2,1\n", "no column 'context_tokens'. Did you mean 'context'?"),
        ("batch,context_tokens,p50\n1,2,1\n", "unknown column 'p50'. Did you mean 'p50_s'?"),
        ("batch,context_tokens,p99_s\n1,2,1\n", "neither mean_s nor p50_s"),
        ("batch,context_tokens,p50_s\n", "the table has no rows"),
        ("", "no column 'batch'"),
        ("batch,batch,context_tokens,p50_s\n", "a column is there twice"),
        ("batch,context_tokens,p50_s,p99_s\n1,2,3,2\n", "t.csv:2: percentiles must not fall"),
        (
            "batch,context_tokens,p50_s\n1,2,1\n1,3,1\n2,2,1\n",
            "the grid of t has a hole at batch=2, context_tokens=3",
        ),
    ],
)
def test_unreadable_tables_are_refused_with_file_and_line(tmp_path, text, message: str) -> None:
    with pytest.raises(InputError) as error:
        table(tmp_path, text)
    assert message in str(error.value)


def test_an_empty_percentile_column_is_no_percentile(tmp_path: Path) -> None:
    text = "batch,mean_s,p50_s,p99_s\n1,2e-6,2e-6,\n2,3e-6,3e-6,\n"
    found = table(tmp_path, text, axes=("batch",)).grids[()].at([np.array([1])])
    assert found.distribution is None
    with pytest.raises(InputError, match=r"t.csv:3: p99_s: '' is not"):
        table(tmp_path, text.replace("2e-6,\n", "2e-6,9e-6\n"), axes=("batch",))


def test_cells_that_fall_along_a_growing_axis_are_kept_with_a_warning(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="1 cells are faster than a smaller one; kept"):
        found = table(tmp_path, "batch,p50_s\n1,5e-6\n2,3e-6\n3,5e-6\n", axes=("batch",))
    assert found.grids[()].at([2]).mean_s == 3e-6
    table(tmp_path, "threads,p50_s\n1,4e-6\n2,3e-6\n", axes=("threads",))


def test_past_an_edge_a_time_rises_with_the_last_slope_of_a_grid_that_rises(tmp_path: Path) -> None:
    text = "batch,mean_s\n2,3e-6\n4,5e-6\n8,4e-6\n16,9e-6\n"
    found = table(tmp_path, text, axes=("batch",))
    rising = found.grid({}, rising=True)
    assert rising is not None
    assert rising.values["mean_s"] == pytest.approx([3e-6, 5e-6, 5e-6, 9e-6])
    past = rising.beyond_s([np.array([16, 17, 24])], found.axes)
    assert past == pytest.approx([9e-6, 9.5e-6, 13e-6])
    # Before the first tick the first slope goes on, down to the least time.
    assert rising.beyond_s([np.array([1])], found.axes) == pytest.approx([3e-6])


def test_past_two_edges_the_slopes_multiply_and_none_is_less_than_at_smaller_points(
    tmp_path: Path,
) -> None:
    text = "batch,context_tokens,mean_s\n1,10,1e-6\n1,20,3e-6\n2,10,2e-6\n2,20,3e-6\n"
    found = table(tmp_path, text)
    grid = found.grid({}, rising=True)
    assert grid is not None
    # Along the context 2 us a tick at batch 1, so at batch 2 too, though 1 us was measured.
    assert grid.beyond_s([2, 30], found.axes) == pytest.approx(5e-6)
    assert grid.beyond_s([3, 30], found.axes) == pytest.approx(3e-6 * (1 + 1 / 3) * (1 + 2 / 3))


def test_what_streams_cost_each_other_may_fall(tmp_path: Path) -> None:
    file = tmp_path / "gpu_side_slowdown.csv"
    file.write_text("batch,mean_s\n1,5e-6\n2,3e-6\n")
    assert read_table(file, "gpu_side_slowdown", (), ("batch",)).grids[()].at([2]).mean_s == 3e-6
