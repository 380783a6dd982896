"""``essim pareto``, ``breakeven`` and ``diff``: tables, JSON, exit codes, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from firstday import FIRST_DAY
from typer.testing import CliRunner, Result

from essim.cli.app import app

SCENARIO = f"""\
name: using
model: llama-3.1-8b
hardware: {FIRST_DAY}
selector: {{kind: rocketkv, prompt_budget: 4096, page_tokens: 4, top_pages: 32, kv_block_tokens: 4}}
routing: cpu-mid
workload: {{batch: 1, input_tokens: 40960, output_tokens: 16}}
sweep:
  routing: [gpu-target, gpu-target-fused, cpu-mid]
  workload.batch: [1, 4, 8, 100000]
  workload.output_tokens: [8, 16]
"""


def essim(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sweep as Parquet, and one of another budget as CSV."""
    folder = tmp_path_factory.mktemp("results")
    (folder / "s.yaml").write_text(SCENARIO)
    for name, change in (("a.parquet", "name=using"), ("b.csv", "selector.prompt_budget=8192")):
        done = essim("sweep", folder / "s.yaml", "--set", change, "--out", folder / name)
        assert done.exit_code == 0, done.stderr
    return folder


def test_a_frontier_has_the_best_routing_at_each_batch(results: Path) -> None:
    found = json.loads(essim("pareto", results / "a.parquet", "--json").stdout)
    places = [(p["setting"], p["batch"], p["point"]) for p in found["frontier"]]
    assert [place for place in places if place[0] == "output_tokens 16"] == [
        ("output_tokens 16", 1, "fastest for a user"),
        ("output_tokens 16", 4, places[1][2]),
        ("output_tokens 16", 8, "most for a GPU"),
    ]
    done = essim("pareto", results / "a.parquet")
    assert done.exit_code == 0
    assert "Nothing beats 6 of 18 points that run.\nOutput quality is not modelled: " in done.stdout
    both = json.loads(essim("pareto", results, "--json").stdout)["frontier"]
    assert len({p["setting"] for p in both}) == 4
    both = json.loads(essim("pareto", results, "--across", "prompt_budget", "--json").stdout)
    assert {p["prompt_budget"] for p in both["frontier"]} == {4096}


def test_break_even_is_that_of_the_sweep(results: Path) -> None:
    done = essim("sweep", results / "s.yaml", "--map", "batch,output_tokens", "--json")
    cells = json.loads(done.stdout)["map"]
    axes = ("--x", "workload.batch", "--y", "output_tokens")
    found = json.loads(essim("breakeven", results / "a.parquet", *axes, "--json").stdout)
    assert found["map"] == cells
    assert [row["output_tokens"] for row in found["turns"]] == [8, 16]
    assert all(row["pays"].startswith("up to about ") for row in found["turns"])
    done = essim("breakeven", results / "a.parquet", *axes)
    assert done.exit_code == 0
    assert "early routing pays at" in done.stdout


def test_a_diff_says_what_differs_and_exits_by_its_tolerance(results: Path) -> None:
    same = essim("diff", results / "a.parquet", results / "a.parquet", "--tolerance", "0")
    assert same.exit_code == 0
    assert same.stdout == "decode_tokens_per_s is the same at all 18 points.\n"
    files = (results / "a.parquet", results / "b.csv")
    done = essim("diff", *files, "--column", "step_s", "--json")
    found = json.loads(done.stdout)
    made = {row["key"]: (row["before"], row["after"]) for row in found["made"]}
    assert made["prompt_budget"] == (4096, 8192)
    assert made["scenario.set"] == ("['name=using']", "['selector.prompt_budget=8192']")
    changes = [abs(p["change_frac"]) for p in found["points"]]
    assert changes == sorted(changes, reverse=True)
    assert len(changes) == 18
    assert all(p["after"] >= p["before"] for p in found["points"])
    assert found["verdict"][0].startswith("step_s changed at ")
    assert essim("diff", *files, "--tolerance", "0.9").exit_code == 0
    done = essim("diff", *files, "--tolerance", "0.001")
    assert done.exit_code == 1
    assert done.stderr == "the largest change is past 0.10%\n"
    assert "prompt_budget" in done.stdout


BAD = [
    (("pareto", "none.csv"), "none.csv: cannot be read"),
    (("pareto", "."), ".: there is no .csv or .parquet in this folder"),
    (("pareto", "s.yaml"), "s.yaml: there is no column 'name'. Give a .csv or .parquet"),
    (("pareto", "{r}/a.parquet", "--across", "pages"), "--across: no column 'pages'. One of: batc"),
    (
        ("breakeven", "{r}/a.parquet", "--x", "batch", "--y", "model"),
        "--y: 'model' does not differ",
    ),
    (("breakeven", "{r}/a.parquet", "--x", "batch", "--y", "batch"), "--x, --y: batch is both"),
    (
        ("diff", "{r}/a.parquet", "{r}/b.csv", "--column", "name"),
        "--column: no column 'name' of nu",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_arguments_say_what_is_wrong(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(SCENARIO) if "s.yaml" in arguments else None
    done = essim(*(argument.format(r=results) for argument in arguments))
    assert done.exit_code == 2
    assert done.stderr.startswith(message)


def test_a_result_without_an_early_routing_has_no_break_even(results: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.csv"
    essim("sweep", results / "s.yaml", "--set", "routing=gpu-target", "--out", out)
    done = essim("breakeven", out, "--x", "batch", "--y", "output_tokens")
    assert done.exit_code == 2
    assert done.stderr.startswith(f"{out}: nothing routes early beside what waits. Sweep an early")


def test_points_that_do_not_run_have_no_frontier(results: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.csv"
    essim("sweep", results / "s.yaml", "--set", "workload.batch=100000", "--out", out)
    done = essim("pareto", out)
    assert (done.exit_code, done.stderr.startswith(f"{out}: no point decodes")) == (2, True)
