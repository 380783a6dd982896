import csv
import json
import math
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import essim
from essim.errors import InputError
from essim.results import files as results
from essim.results.columns import COLUMNS
from essim.results.files import result_files
from essim.results.tables import FIGURE2_COLUMNS, PAIR_COLUMNS, column
from essim.text.files import write_files

ROW = dict.fromkeys(COLUMNS) | {"name": "x", "batch": 2, "step_s": 0.005, "reason": "a, b"}


def test_csv_has_every_column_and_empty_cells_for_none(tmp_path: Path) -> None:
    write_files(result_files([ROW], tmp_path / "deep" / "r.csv", {"seed": 3}))
    with (tmp_path / "deep" / "r.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert list(row) == list(COLUMNS)
    assert (row["batch"], row["step_s"], row["reason"], row["tpot_s"]) == ("2", "0.005", "a, b", "")


def test_the_manifest_lies_beside_it(tmp_path: Path) -> None:
    write_files(result_files([ROW], tmp_path / "r.csv", {"seed": 3}))
    manifest = json.loads((tmp_path / "r.csv.manifest.json").read_text())
    assert (manifest["rows"], manifest["seed"]) == (1, 3)
    assert manifest["columns"]["step_s"] == "s"


def test_parquet_says_what_its_columns_are_and_where_it_comes_from(tmp_path: Path) -> None:
    write_files(result_files([ROW, ROW | {"batch": None}], tmp_path / "r.parquet", {"seed": 3}))
    table = pq.read_table(tmp_path / "r.parquet")
    step = table.schema.field("step_s").metadata
    assert step == {b"unit": b"s", b"description": b"mean decode step"}
    assert table.schema.field("batch").metadata[b"unit"] == b""
    assert table["batch"].to_pylist() == [2, None]
    assert table["step_s"].to_pylist() == [0.005, 0.005]
    beside = (tmp_path / "r.parquet.manifest.json").read_bytes()
    assert table.schema.metadata[b"essim"] == beside
    assert json.loads(beside)["seed"] == 3


SWEPT = "sweep: {memory.reserve_frac: [0.05, 0.1]}\n"
SIMULATED = {
    "measured": ({}, ""),
    "roofline": ({"hardware": "a100-sxm-80gb", "routing": "gpu-target"}, ""),
    "infeasible": ({"workload.batch": 100000}, ""),
    "no decode step": ({"workload.output_tokens": 1}, ""),
    "dense": ({"selector": {"kind": "dense"}}, ""),
    "swept": ({}, SWEPT),
}


def test_every_result_has_one_schema(scenario_file, tmp_path: Path) -> None:
    tables = []
    for i, (changes, more) in enumerate(SIMULATED.values()):
        frame = essim.sweep(scenario_file(more=more), set=changes)
        rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
        file = tmp_path / f"{i}.parquet"
        write_files(result_files(rows, file, {}))
        tables.append(pq.read_table(file))
    assert tables[0].column_names == list(COLUMNS)
    for table in tables[1:]:
        assert table.schema.equals(tables[0].schema, check_metadata=False)
    assert pa.concat_tables(tables).num_rows == 7
    types = {name: str(tables[0].schema.field(name).type) for name in COLUMNS}
    of_unit = {"s": "double", "1": "double", "tokens/s": "double", "bytes": "int64"}
    for name, own in COLUMNS.items():
        assert types[name] == of_unit.get(own.unit, types[name])
    wanted = {"max_batch": "int64", "status": "string", "reason": "string", "seed": "int64"}
    assert {name: types[name] for name in wanted} == wanted
    assert tables[-1]["settings"].to_pylist() == [
        '{"memory.reserve_frac": 0.05}',
        '{"memory.reserve_frac": 0.1}',
    ]


@pytest.mark.parametrize("columns", [PAIR_COLUMNS, FIGURE2_COLUMNS, COLUMNS])
def test_a_table_without_a_row_has_its_columns(tmp_path: Path, columns: dict) -> None:
    write_files(result_files([], tmp_path / "r.parquet", {}, columns))
    schema = pq.read_schema(tmp_path / "r.parquet")
    assert schema.names == list(columns)
    assert "null" not in map(str, schema.types)


def test_numbers_that_are_not_finite_become_empty(tmp_path: Path) -> None:
    row = ROW | {"step_s": math.nan, "tpot_s": math.inf}
    write_files(result_files([row], tmp_path / "r.csv", {}))
    with (tmp_path / "r.csv").open() as file:
        (found,) = csv.DictReader(file)
    assert (found["step_s"], found["tpot_s"]) == ("", "")


def test_other_endings_and_unwritable_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"ends in neither \.csv nor \.parquet"):
        write_files(result_files([ROW], tmp_path / "r.xlsx", {}))
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        write_files(result_files([ROW], tmp_path / "file" / "r.csv", {}))
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_files_are_written_together_or_not_at_all(tmp_path: Path) -> None:
    good, blocked = tmp_path / "new" / "a.csv", tmp_path / "file" / "b.csv"
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"b.csv: cannot be written"):
        write_files({good: b"a", blocked: b"b"})
    assert not good.exists()
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match="is a folder, not a file"):
        write_files({good: b"a", tmp_path / "folder.csv": b"b"})
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder.csv", "new"]
    write_files({good: b"a"})
    write_files({good: b"again"})
    assert good.read_bytes() == b"again"


def test_a_checkout_that_is_not_installed_has_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == "essim":
            raise PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(results, "version", version)
    found = results.versions()
    assert (found["essim"], found["libraries"]["numpy"]) == (None, "1.0")


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("decode_gain_frac", 0.3468, "+34.7%"),
        ("decode_gain_frac_p5", 0.3468, "+34.7%"),
        ("decode_tokens_per_s_p95", 221.04, "221.0"),
        ("measured_frac", 0.5, "50.0%"),
    ],
)
def test_a_percentile_is_shown_as_what_it_is_of(key: str, value: float, shown: str) -> None:
    assert column(key).brief(value) == shown
