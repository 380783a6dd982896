"""Shipped tables are those of the kernels that are here, though these have moved since."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from essim.hardware.kernels import HASHES, stale_tables
from essim.hardware.profile import load_profile
from measure import kernels
from measure.harness.hashes import current_hashes
from measure.kernels.build import code_hash

ROOT = Path(__file__).parents[2]
# What the same sources hashed to: files with their names, and what is compiled of them.
PAIRS = ROOT / "tests" / "data" / "kernel_hashes.csv"


def rows(file: Path) -> list[dict[str, str]]:
    with file.open() as stream:
        return list(csv.DictReader(stream))


@pytest.mark.filterwarnings("ignore:.*faster than a smaller one")
@pytest.mark.parametrize(
    ("name", "stale"),
    # The CPU router has changed since; of an H200 its routes were measured anew.
    [("h200-sxm", ["cpu_update"]), ("cpu-2core", ["cpu_route", "cpu_update"])],
)
def test_a_profile_names_the_kernels_that_its_rows_were_measured_with(
    name: str, stale: list[str]
) -> None:
    code_of = {row["source_hash"]: row["code_hash"] for row in rows(PAIRS)}
    profile = load_profile(ROOT / "hardware_profiles" / f"{name}.yaml")
    for table, spec in profile.spec.tables.items():
        made = {row["source_hash"] for row in rows(profile.file.with_suffix("") / f"{table}.csv")}
        assert {code_of[source] for source in made} == {spec.kernel_hash}, table
    assert stale_tables(profile) == stale


def test_moving_and_documenting_code_keeps_its_hash_and_changing_it_does_not(
    tmp_path: Path,
) -> None:
    first, moved = tmp_path / "a.py", tmp_path / "b.py"
    first.write_text('"""A."""\nimport os\n\ndef f(x):\n    """Twice."""\n    return 2 * x\n')
    moved.write_text("from os import path\n# Why.\ndef f(x):\n    return 2 * x\n")
    assert code_hash([first]) == code_hash([moved])
    moved.write_text("def f(x):\n    return 3 * x\n")
    assert code_hash([first]) != code_hash([moved])
    header, source = tmp_path / "c.h", tmp_path / "d.h"
    header.write_text('#include "e.h"\n// Why.\nint twice(int x) { return 2 * x; }\n')
    source.write_text("int twice(int x) { return 2 * x; }\n")
    assert code_hash([header]) == code_hash([source])
    source.write_text("#include <cmath>\nint twice(int x) { return 2 * x; }\n")
    assert code_hash([header]) != code_hash([source])


def test_the_hashes_that_travel_with_essim_are_those_of_the_sources() -> None:
    """After a change of a kernel: ``python -m measure.harness.hashes``."""
    assert json.loads(HASHES.read_text()) == current_hashes()


def test_a_folder_of_kernels_that_is_added_is_found_with_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "later"
    folder.mkdir()
    (folder / "router.py").write_text("def route(query):\n    return query\n")
    sources = (str(folder / "router.py"),)
    (folder / "__init__.py").write_text(f"GPU_TABLES = {{'gpu_route_later': {sources}}}\n")
    monkeypatch.setattr(kernels, "__path__", [*kernels.__path__, str(tmp_path)])
    added = current_hashes()
    assert added.pop("gpu_route_later") == [code_hash([folder / "router.py"])]
    assert added == json.loads(HASHES.read_text())
