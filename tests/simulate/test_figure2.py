"""Figure 2: shares as published, to a hundredth of a per cent, and both variants."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from command import essim

from essim.results.tables import FIGURE2_COLUMNS
from essim.simulate.figure2 import figure2

SHARES = {
    "Quest": [11.11, 20.00, 33.33, 50.00, 66.67],
    "SparQ": [20.00, 33.33, 50.00, 66.67, 80.00],
    "Loki": [23.81, 38.46, 55.56, 71.43, 83.33],
    "HSA": [43.86, 52.59, 62.79, 73.91, 83.78],
}


def shares(rows: list[dict], method: str) -> list[float]:
    return [round(100 * row["route_share_frac"], 2) for row in rows if row["method"] == method]


def test_the_published_shares() -> None:
    rows = figure2()
    assert len(rows) == 20
    assert {method: shares(rows, method) for method in SHARES} == SHARES
    for row in rows:
        assert list(row) == list(FIGURE2_COLUMNS)
        assert row["budget_tokens"] * row["compression"] == row["context_tokens"] == 8192


def test_hsa_has_pages_and_channels_of_the_policy() -> None:
    found = [(r["page_tokens"], r["channels"]) for r in figure2() if r["method"] == "HSA"]
    assert found == [(2, 100), (2, 71), (3, 81), (3, 68), (3, 62)]


def test_macs_by_hand_at_a_compression_of_16() -> None:
    rows = {row["method"]: row for row in figure2() if row["compression"] == 16}
    assert {row["sparse_macs"] for row in rows.values()} == {2 * 32 * 512 * 128}
    assert rows["Quest"]["route_macs"] == 32 * 512 * 128
    assert rows["SparQ"]["route_macs"] == 32 * 8192 * 16
    assert rows["Loki"]["route_macs"] == 32 * (8192 * 16 + 2 * 128 * 128)
    # Pages are not rounded: 8192/3 of them.
    assert rows["HSA"]["route_macs"] == pytest.approx(32 * 8192 / 3 * 81)


def test_a_scan_of_what_stage_1_keeps_is_a_third_at_every_compression() -> None:
    rows = figure2(hsa_scan="stage1")
    assert shares(rows, "HSA") == [33.39, 33.48, 33.25, 33.37, 33.48]
    assert shares(rows, "Loki") == SHARES["Loki"]


def test_cached_projections_make_loki_cheaper() -> None:
    rows = figure2(loki="cached")
    assert shares(rows, "Loki") == [20.31, 33.76, 50.48, 67.1, 80.31]
    (at_16,) = (r for r in rows if r["method"] == "Loki" and r["compression"] == 16)
    assert at_16["route_macs"] == 32 * 128 * 16 + 8 * 128 * 16 + 32 * 8192 * 16
    assert shares(rows, "HSA") == SHARES["HSA"]


def test_the_command_prints_and_writes_twenty_rows(tmp_path: Path) -> None:
    out, html = tmp_path / "f.csv", tmp_path / "f.html"
    done = essim("figure2", "--out", str(out), "--html", str(html))
    assert (done.returncode, done.stderr) == (0, f"wrote {out}\nwrote {html}\n")
    assert len([line for line in done.stdout.splitlines() if "%" in line]) == 20
    with out.open() as file:
        written = list(csv.DictReader(file))
    assert [float(row["route_share_frac"]) for row in written] == [
        row["route_share_frac"] for row in figure2()
    ]
    about = json.loads((tmp_path / "f.csv.manifest.json").read_text())
    assert (about["rows"], about["loki"], about["hsa_scan"]) == (20, "pca", "all")
    assert about["columns"]["sparse_macs"] == "MAC"


def test_the_command_takes_variants_and_json() -> None:
    done = essim("figure2", "--loki", "cached", "--hsa-scan", "stage1", "--json")
    found = json.loads(done.stdout)
    assert found["rows"] == figure2("cached", "stage1")
    assert (found["manifest"]["loki"], found["manifest"]["hsa_scan"]) == ("cached", "stage1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--loki", "full"), "--loki: 'full' is not one of 'pca', 'cached'"),
        (("--out", "f.xlsx"), "ends in neither .csv nor .parquet"),
        (("--html", "f.csv"), "--html: f.csv does not end in .html"),
        (("--html", "/dev/null/f.html"), "/dev/null/f.html: cannot be written"),
    ],
)
def test_bad_options_are_a_message(tmp_path: Path, arguments, message: str) -> None:
    done = essim("figure2", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []
