"""``essim published`` and ``essim rank``."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from typer.testing import CliRunner

from essim.cli.app import app
from essim.validate.published import table

RUNNER = CliRunner()


def test_published_writes_its_rows_and_page_and_fails_where_an_error_grew(
    tmp_path: Path, monkeypatch
) -> None:
    numbers = list(table.comparisons(table.Simulator()))[:130]
    monkeypatch.setattr(table, "comparisons", lambda simulator: iter(numbers))
    out, html = tmp_path / "p.csv", tmp_path / "p.html"
    done = RUNNER.invoke(app, ["published", "--out", str(out), "--html", str(html)])
    assert done.exit_code == 1
    assert "gone." in done.stderr
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 130
    assert {row["kind"] for row in rows[:120]} == {"table"}
    assert "EarlySelectKV, Figure 12" in html.read_text()
    monkeypatch.setattr(table, "grown", lambda found: [])
    done = RUNNER.invoke(app, ["published", "--json"])
    assert done.exit_code == 0
    assert len(json.loads(done.stdout)["rows"]) == 130


def test_rank_answers_for_a_sweep_of_selectors(scenario_file, tmp_path: Path) -> None:
    sweep = "sweep: {selector: [{kind: dense}, {kind: snapkv}]}\n"
    file, html = scenario_file(more=sweep), tmp_path / "r.html"
    done = RUNNER.invoke(
        app, ["rank", str(file), "--set", "routing=gpu-target", "--html", str(html)]
    )
    assert done.exit_code == 0, done.output
    assert "input tokens: snapkv (none)" in done.stdout
    assert "decodes faster than dense attention" in html.read_text()
    done = RUNNER.invoke(app, ["rank", str(file), "--set", "routing=gpu-target", "--at", "7"])
    assert done.exit_code == 2
    assert "--at: 7 is no input length of the sweep" in done.stderr
