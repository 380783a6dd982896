"""Campaigns and calibration: grids, held-out points, resuming, the profile that comes out."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from essim.errors import InputError
from essim.hardware.spec import TableSpec
from measure.harness import campaign
from measure.harness import profile as calibrate
from measure.harness.campaign import Bench, Ready, grid, held_out, result_files


def linear_bench(calls: list[object], table: str = "norm", source_hash: str = "a") -> Bench:
    """A kernel whose time is exactly linear in batch and in tokens."""
    axes = {"batch": (1, 4, 8), "context_tokens": (100, 400, 900)}

    def prepare(place) -> Ready:
        calls.append(dict(place))
        assert place["dtype"] == "fp32"
        seconds = 1e-3 * (1 + 2 * place["batch"] + place["context_tokens"] / 100)
        return Ready(lambda: seconds, bytes_moved=1000, calls=5)

    return Bench(
        table=table,
        axes=tuple(axes),
        points=grid(**axes),
        heldout=held_out(0, axes),
        prepare=prepare,
        dtype="fp32",
        source_hash=source_hash,
        reference="a formula",
        holds_for={"hidden": [64]},
    )


def test_a_grid_is_every_combination() -> None:
    assert grid(a=(1, 2), b=("x",)) == ({"a": 1, "b": "x"}, {"a": 2, "b": "x"})


def test_held_out_points_lie_inside_cells_and_never_on_the_grid() -> None:
    axes = {"batch": (1, 4, 16), "tokens": (100, 400, 1600, 6400)}
    points = held_out(3, axes)
    # 6 cells: a quarter rounds to 2.
    assert len(points) == 2
    for point in points:
        assert point["batch"] in (2, 8)
        assert point["tokens"] in (200, 800, 3200)
    assert held_out(3, axes) == points
    assert len({str(held_out(seed, axes)) for seed in range(8)}) > 1
    assert held_out(0, {"batch": (1, 2)}) == ()
    assert held_out(0, {"tokens": (4096, 8192)}, {"tokens": 64}) == ({"tokens": 5824},)
    assert held_out(0, {"tokens": (100, 130)}, {"tokens": 64}) == ({"tokens": 128},)
    assert held_out(0, {"tokens": (100, 120)}, {"tokens": 64}) == ()
    # Batches without room between them are held out between contexts.
    close = held_out(0, {"batch": (1, 2, 3, 7), "tokens": (100, 400)})
    assert {(p["batch"], p["tokens"]) for p in close} <= {(1, 200), (2, 200), (5, 200)}
    assert {
        p["batch"] for s in range(9) for p in held_out(s, {"batch": (1, 2), "tokens": (1, 9)})
    } == {1}


def test_a_campaign_writes_tables_and_held_out_points_apart(tmp_path: Path) -> None:
    calls: list[object] = []
    bench = linear_bench(calls)
    told: list[tuple[str, int, int]] = []
    campaign.run([bench], tmp_path, lambda table, s: told.append((table, s.done, s.total)))
    file, heldout = result_files(tmp_path, "norm")
    assert len(calibrate.read_rows(file)) == 9
    assert len(calibrate.read_rows(heldout)) == len(bench.heldout) == 2
    assert told[:9] == [("norm", i, 9) for i in range(1, 10)]
    row = calibrate.read_rows(file)[0]
    assert (row["batch"], row["context_tokens"], row["calls"]) == ("1", "100", "5")
    assert float(row["mean_s"]) == pytest.approx(4e-3)
    assert float(row["bytes_per_s"]) == pytest.approx(1000 / 4e-3)


def test_a_killed_campaign_goes_on_where_it_stopped(tmp_path: Path) -> None:
    bench = linear_bench([])
    campaign.run([bench], tmp_path)
    file, _ = result_files(tmp_path, "norm")
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:4]) + lines[4][:7])
    again: list[object] = []
    campaign.run([linear_bench(again)], tmp_path)
    assert len(again) == 6
    assert sorted(file.read_text().splitlines()) == sorted("".join(lines).splitlines())


def test_another_kernel_does_not_go_on_with_old_rows(tmp_path: Path) -> None:
    campaign.run([linear_bench([])], tmp_path)
    with pytest.raises(InputError, match="measured with source a, now it is b"):
        campaign.run([linear_bench([], source_hash="b")], tmp_path)


def test_the_held_out_error_of_a_linear_kernel_is_zero(tmp_path: Path) -> None:
    bench = linear_bench([])
    campaign.run([bench], tmp_path)
    errors = calibrate.held_out_error(bench, tmp_path)
    assert errors == {"points": 2, "median_frac": 0.0, "worst_frac": 0.0}


def test_what_another_run_held_out_is_not_counted(tmp_path: Path) -> None:
    bench = linear_bench([])
    campaign.run([bench], tmp_path)
    fewer = replace(bench, heldout=bench.heldout[:1])
    errors = calibrate.held_out_error(fewer, tmp_path)
    assert errors is not None
    assert errors["points"] == 1


def test_samples_beyond_the_peak_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Each call takes at least"):
        campaign.run([linear_bench([])], tmp_path, peak_bytes_per_s=1.0)


def test_a_wrong_table_shows_in_its_held_out_error(tmp_path: Path) -> None:
    bench = linear_bench([])
    campaign.run([bench], tmp_path)
    file, _ = result_files(tmp_path, "norm")
    rows = file.read_text().splitlines()
    column = rows[0].split(",").index("mean_s")
    doubled = [rows[0]]
    for row in rows[1:]:
        cells = row.split(",")
        cells[column] = str(2 * float(cells[column]))
        doubled.append(",".join(cells))
    file.write_text("\n".join(doubled) + "\n")
    errors = calibrate.held_out_error(bench, tmp_path)
    assert errors is not None
    assert errors["median_frac"] == errors["worst_frac"] == 1.0


def test_table_specs_are_what_a_profile_takes(tmp_path: Path) -> None:
    bench = linear_bench([])
    campaign.run([bench], tmp_path)
    (spec,) = calibrate.table_specs([bench], tmp_path, "2026-11-29").values()
    table = TableSpec.model_validate(spec)
    assert table.axes == ["batch", "context_tokens"]
    assert table.holds_for == {"hidden": [64]}
    assert table.heldout is not None
    assert table.heldout.points == 2
    keys = [set(place) for place in itertools.chain(bench.points, bench.heldout)]
    assert all(key == {"batch", "context_tokens"} for key in keys)
