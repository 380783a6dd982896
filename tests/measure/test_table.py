"""The result table: rows, resume after a kill, refusal of another source."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

from essim.errors import InputError
from measure.harness.table import Progress, ResultTable, fill
from measure.harness.timing import Measurement, Spec, from_samples

AXES = ("m", "n")


def spec(m: int, source: str = "abc") -> Spec:
    return Spec("gemm", {"m": m, "n": 8}, "bf16", "cold", 1000, source)


def one(point: Spec) -> Measurement:
    return from_samples(point, [0.5, 0.5, 0.5])


def test_a_row_is_written_as_it_is_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "gemm.csv"
    table = ResultTable(path, AXES, "abc")
    table.append(one(spec(1)))
    assert path.read_text() == (
        "kind,m,n,dtype,cache_state,calls,rejected,mean_s,low_s,p50_s,high_s,p99_s,iqr_frac,unstable,"
        "bytes_moved,bytes_per_s,source_hash\n"
        "gemm,1,8,bf16,cold,3,0,0.5,0.5,0.5,0.5,,0.0,False,1000,2000.0,abc\n"
    )
    assert spec(1) in table
    assert spec(2) not in table


def test_a_resumed_run_skips_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "gemm.csv"
    ResultTable(path, AXES, "abc").append(one(spec(1)))
    measured: list[Spec] = []

    def watch(point: Spec) -> Measurement:
        measured.append(point)
        return one(point)

    table = ResultTable(path, AXES, "abc")
    fill(table, [spec(1), spec(2), spec(3)], watch)
    assert [point.axes["m"] for point in measured] == [2, 3]
    assert len(ResultTable(path, AXES, "abc")) == 3


def test_a_table_with_the_old_names_of_its_columns_is_resumed(tmp_path: Path) -> None:
    path = tmp_path / "gemm.csv"
    ResultTable(path, AXES, "abc").append(one(spec(1)))
    path.write_text(path.read_text().replace("low_s", "p5_s").replace("high_s", "p95_s"))
    assert spec(1) in ResultTable(path, AXES, "abc")


KILLED = """
import os, signal, sys
from pathlib import Path
from measure.harness.table import ResultTable, fill
from measure.harness.timing import Spec, from_samples
points = [Spec("gemm", {"m": m, "n": 8}, "bf16", "cold", 1000, "abc") for m in range(5)]
def measure(point):
    if point.axes["m"] == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return from_samples(point, [0.5, 0.5, 0.5])
fill(ResultTable(Path(sys.argv[1]), ("m", "n"), "abc"), points, measure)
"""


def test_a_killed_run_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "gemm.csv"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(path)], check=False, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == -9
    table = ResultTable(path, AXES, "abc")
    assert [spec(m) in table for m in range(5)] == [True, True, True, False, False]


@pytest.mark.parametrize("torn", ["gemm,2,8,bf16,co", "g"])
def test_a_torn_row_is_cut_off(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "gemm.csv"
    ResultTable(path, AXES, "abc").append(one(spec(1)))
    whole = path.read_text()
    path.write_text(whole + torn)
    table = ResultTable(path, AXES, "abc")
    assert path.read_text() == whole
    table.append(one(spec(2)))
    with path.open(newline="") as file:
        assert [row["m"] for row in csv.DictReader(file)] == ["1", "2"]


def test_a_torn_header_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "gemm.csv"
    path.write_text("kind,m")
    assert len(ResultTable(path, AXES, "abc")) == 0
    assert path.read_text().endswith("source_hash\n")


def test_another_source_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gemm.csv"
    table = ResultTable(path, AXES, "abc")
    table.append(one(spec(1)))
    with pytest.raises(InputError, match="measured with source abc, now it is def"):
        ResultTable(path, AXES, "def")
    with pytest.raises(InputError, match="source def, the table has abc"):
        table.append(one(spec(2, "def")))


def test_other_columns_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "gemm.csv"
    ResultTable(path, AXES, "abc")
    with pytest.raises(InputError, match="other columns"):
        ResultTable(path, ("m", "k"), "abc")
    with pytest.raises(InputError, match="axes"):
        ResultTable(path, AXES, "abc").append(
            one(Spec("gemm", {"m": 1}, "bf16", "cold", source_hash="abc"))
        )


def test_progress_has_an_eta(tmp_path: Path) -> None:
    path = tmp_path / "gemm.csv"
    ResultTable(path, AXES, "abc").append(one(spec(1)))
    clock = iter([0.0, 1.0, 3.0, 5.0])
    seen: list[Progress] = []
    fill(
        ResultTable(path, AXES, "abc"),
        [spec(1), spec(2), spec(3)],
        one,
        seen.append,
        lambda: next(clock),
    )
    assert seen == [
        Progress(1, 3, 1, 1.0, None),
        Progress(2, 3, 1, 3.0, 3.0),
        Progress(3, 3, 1, 5.0, 0.0),
    ]
