"""Results read back: what was written, folders as one file, and what is no result."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import essim
from essim.errors import InputError
from essim.results.columns import COLUMNS, differing
from essim.results.files import result_files
from essim.results.reading import read_result
from essim.text.files import write_files

POINT: dict[str, Any] = dict.fromkeys(COLUMNS) | {
    **{"name": "n", "model": "m", "hardware": "h", "selector": "dense", "routing": "none"},
    **{"batch": 1, "status": "ok"},
}


def write(file: Path, *rows: dict[str, Any], **manifest: Any) -> Path:
    write_files(result_files([POINT | row for row in rows], file, manifest))
    return file


VALUES = {
    float: st.floats(allow_nan=False, allow_infinity=False),
    int: st.integers(0, 2**53),
    str: st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1),
}
ROWS = st.fixed_dictionaries(
    {
        name: VALUES[column.kind] if POINT[name] else st.none() | VALUES[column.kind]
        for name, column in COLUMNS.items()
        if name != "settings"
    }
)


@settings(max_examples=20, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=3))
def test_what_is_written_is_read_in_both_formats(rows: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for ending in ("csv", "parquet"):
            found = read_result(write(Path(folder) / f"r.{ending}", *rows, seed=3))
            assert found.rows == [POINT | row for row in rows]
            assert found.manifests[0]["seed"] == 3


def test_a_folder_is_read_as_one_file(tmp_path: Path) -> None:
    write(tmp_path / "b.csv", {"batch": 2, "settings": '{"model.ffn": 64}'}, seed=2)
    write(tmp_path / "a.parquet", {"batch": 1}, {"step_s": 0.5, "batch": 8}, seed=1)
    write(tmp_path / ".draft.csv", {"batch": 9})
    (tmp_path / "notes.txt").write_text("no result")
    found = read_result(tmp_path)
    assert [row["batch"] for row in found.rows] == [1, 8, 2]
    assert [row["model.ffn"] for row in found.rows] == [None, None, 64]
    assert [about["seed"] for about in found.manifests] == [1, 2]
    assert differing(found.rows) == ["batch"]
    frame = essim.read(tmp_path)
    assert list(frame.columns) == ["model.ffn", *COLUMNS]
    assert list(frame["batch"]) == [1, 8, 2]
    assert frame["step_s"].max() == 0.5
    assert [about["seed"] for about in frame.attrs["files"]] == [1, 2]


def test_only_what_is_asked_for_is_read(tmp_path: Path) -> None:
    write(tmp_path / "r.parquet", {"step_s": 0.5, "tpot_s": 0.5})
    (row,) = read_result(tmp_path, ["step_s"]).rows
    assert (row["step_s"], row["tpot_s"], row["name"]) == (0.5, None, "n")


def test_what_a_sweep_wrote_draws_the_same_figures(scenario_file, tmp_path: Path) -> None:
    more = "sweep:\n  routing: [gpu-target, cpu-mid]\n  workload.batch: [1, 4]\n"
    frame = essim.sweep(scenario_file(more=more))
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    write(tmp_path / "r.csv", *rows)
    read = essim.plot(essim.read(tmp_path / "r.csv"))
    assert [figure.to_json() for figure in read] == [f.to_json() for f in essim.plot(frame)]
    write(tmp_path / "s.csv", *rows, {"baseline": "cpu-in"})
    with pytest.raises(InputError, match="frame: gains against gpu-target and cpu-in"):
        essim.plot(essim.read(tmp_path / "s.csv"))


def csv(header: str, *lines: str) -> str:
    return "\n".join((header, *lines)) + "\n"


HEADER = "name,model,hardware,selector,routing,batch,status,step_s,settings"
BAD = {
    "no column": (csv("name,model", "n,m"), "r.csv: there is no column 'hardware'. Give a .csv"),
    "count": (csv(HEADER, "n,m,h,dense,none,1.5,ok,,"), "r.csv:2: batch: '1.5' is not a count"),
    "number": (csv(HEADER, "n,m,h,dense,none,1,ok,inf,"), "2: step_s: 'inf' is not a finite n"),
    "settings": (csv(HEADER, "n,m,h,dense,none,1,ok,1,[]"), "2: settings: '[]' is not a JSON obj"),
    "short": (csv(HEADER, "n,m"), "r.csv:2: a row without 9 cells"),
    "empty": ("", "r.csv: there is no column 'name'"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_result_is_said_with_its_place(tmp_path: Path, case: str) -> None:
    text, message = BAD[case]
    (tmp_path / "r.csv").write_text(text)
    with pytest.raises(InputError) as error:
        read_result(tmp_path)
    assert message in str(error.value)


def test_folders_without_a_result_or_with_one_twice_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no \.csv or \.parquet in this folder"):
        read_result(tmp_path)
    write(tmp_path / "r.csv", {})
    write(tmp_path / "r.parquet", {})
    with pytest.raises(InputError, match=r"r\.csv and r\.parquet would count twice\. Keep one"):
        read_result(tmp_path)
    with pytest.raises(InputError, match=r"none\.parquet: does not exist\. Give a \.csv"):
        read_result(tmp_path / "none.parquet")
    (tmp_path / "r.parquet").write_text("no parquet")
    with pytest.raises(InputError, match=r"r\.parquet: is no Parquet file"):
        read_result(tmp_path / "r.parquet")
