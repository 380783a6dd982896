"""`essim sweep --out FOLDER`: what survives, what is refused, who may make the parts."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from firstday import FIRST_DAY
from typer.testing import CliRunner

from essim.cli.app import app
from essim.results.reading import read_result
from essim.simulate.plan import load_scenario
from essim.simulate.sweep import Simulator

SCENARIO = f"""\
name: folder
model: llama-3.1-8b
hardware: {FIRST_DAY}
selector: {{kind: rocketkv, prompt_budget: 4096, page_tokens: 4, top_pages: 32, kv_block_tokens: 4}}
routing: gpu-target
workload: {{batch: 1, input_tokens: 8192, output_tokens: 64}}
sweep:
  selector.top_pages: [16, 32, 64, 128]
  routing: [gpu-target, gpu_side-mid, cpu-mid]
  workload.batch: [1, 8, 500]
  workload.output_tokens: [1, 17, 512, 9000, 200000]
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    file = tmp_path / "folder.yaml"
    file.write_text(SCENARIO)
    return file


def essim(*args: object) -> list[str]:
    return [sys.executable, "-m", "essim", *map(str, args)]


def sweep(scenario: Path, folder: Path, *more: object):
    return CliRunner().invoke(app, ["sweep", str(scenario), "--out", str(folder), *map(str, more)])


def contents(folder: Path) -> dict[str, object]:
    """What a folder holds; of its manifest all but the date."""
    found: dict[str, object] = {f.name: f.read_bytes() for f in folder.iterdir()}
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest.pop("date")
    return found | {"manifest.json": manifest}


@pytest.fixture
def whole(scenario: Path, tmp_path: Path) -> dict[str, object]:
    """What the sweep is when nothing interrupts it."""
    assert sweep(scenario, tmp_path / "whole").exit_code == 0
    return contents(tmp_path / "whole")


def wait_for_parts(folder: Path, count: int) -> None:
    """Return once a running sweep has written so many parts."""
    for _ in range(60_000):
        if len(list(folder.glob("*.parquet"))) >= count:
            return
        time.sleep(0.002)
    raise AssertionError("no parts were written")


def test_a_killed_sweep_ends_with_the_same_bytes(scenario, tmp_path, whole) -> None:
    folder = tmp_path / "killed"
    running = subprocess.Popen(essim("sweep", scenario, "--out", folder))
    wait_for_parts(folder, 2)
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL
    assert 2 <= len(list(folder.glob("*.parquet"))) < len(whole) - 1
    assert not json.loads((folder / "manifest.json").read_text())["complete"]
    assert sweep(scenario, folder).exit_code == 0
    assert contents(folder) == whole


def test_what_is_done_is_not_done_again(scenario, tmp_path, whole) -> None:
    folder = tmp_path / "whole"
    before = {file: file.stat().st_mtime_ns for file in folder.glob("*.parquet")}
    assert sweep(scenario, folder).exit_code == 0
    assert {file: file.stat().st_mtime_ns for file in before} == before


def test_a_full_disk_leaves_whole_parts(scenario, tmp_path, whole, monkeypatch) -> None:
    folder, left = tmp_path / "full", [3]
    sync = os.fsync

    def fill(number: int) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(number)

    monkeypatch.setattr(os, "fsync", fill)
    failed = sweep(scenario, folder)
    assert failed.exit_code == 2
    assert failed.stderr == "cannot be written (No space left on device)\n"
    names = sorted(file.name for file in folder.iterdir())
    assert names == ["manifest.json", "part-000000.parquet", "part-000001.parquet"]
    monkeypatch.undo()
    assert sweep(scenario, folder).exit_code == 0
    assert contents(folder) == whole


def test_another_scenario_or_seed_is_refused(scenario, tmp_path, whole) -> None:
    folder = tmp_path / "whole"
    (folder / "part-000003.parquet").unlink()
    scenario.write_text(SCENARIO.replace("input_tokens: 8192", "input_tokens: 8000"))
    changed = sweep(scenario, folder)
    assert changed.exit_code == 2
    assert changed.stderr == (
        f"{folder}: this folder's sweep had another scenario. "
        "Give --out a new folder, or go back to what it was made with\n"
    )
    scenario.write_text(SCENARIO)
    assert "had another seed." in sweep(scenario, folder, "--seed", 1).stderr
    assert "had another engine." in sweep(scenario, folder, "--engine", "maxplus").stderr
    assert not (folder / "part-000003.parquet").exists()


def test_another_profile_is_refused(scenario, tmp_path) -> None:
    profile = tmp_path / "own.yaml"
    shutil.copy(Path("hardware_profiles/a100-sxm-80gb.yaml"), profile)
    scenario.write_text(SCENARIO.replace(f"hardware: {FIRST_DAY}", "hardware: own.yaml"))
    profile.write_text(profile.read_text().replace("reference: h200-sxm", "reference: h200-sxm"))
    assert sweep(scenario, tmp_path / "out", "--set", "sweep.routing=[gpu-target]").exit_code == 0
    profile.write_text(profile.read_text() + "# a word\n")
    again = sweep(scenario, tmp_path / "out", "--set", "sweep.routing=[gpu-target]")
    assert again.exit_code == 2
    assert "had another profile a100-sxm-80gb." in again.stderr


def test_a_folder_of_something_else_is_refused(scenario, tmp_path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "mine.txt").write_text("keep me")
    refused = sweep(scenario, folder)
    assert refused.exit_code == 2
    assert refused.stderr == (
        f"{folder}: the folder holds something else. Give --out a new folder\n"
    )
    assert [file.name for file in folder.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "rows", "--html", "page.html"], "--html: is for results in a file."),
        (["--out", "rows", "--json"], "--json: is for results in a file."),
        (["--out", "rows.csv", "--jobs", "2"], "--jobs: is for results in a folder."),
        (["--cluster", "tcp://here"], "--cluster: is for results in a folder."),
    ],
)
def test_options_of_the_other_kind_are_refused(scenario, options, message: str) -> None:
    refused = CliRunner().invoke(app, ["sweep", str(scenario), *options])
    assert refused.exit_code == 2
    assert refused.stderr.startswith(message)


def test_rows_are_those_of_the_row_by_row_engine(scenario, tmp_path, whole) -> None:
    """Where no call is drawn, numbers are within a millionth, percentiles within half a percent."""
    _, points = load_scenario(scenario)
    wanted = Simulator().rows(points)
    found = read_result(tmp_path / "whole").rows
    assert len(found) == len(wanted) == 180
    for mine, want in zip(found, wanted, strict=True):
        for name, value in want.items():
            if name in ("engine", "step_off_s") or mine["routing"] == "cpu-mid":
                continue
            loose = 5e-3 if name.endswith(("_p5", "_p50", "_p95")) else 1e-6
            if isinstance(value, float):
                assert mine[name] == pytest.approx(value, rel=loose, abs=loose), name
            else:
                assert (mine[name] or None) == (value or None), name
        assert (mine["status"], mine["reason"] or "") == (want["status"], want["reason"])


def test_full_lanes_in_a_folder_are_the_rows_of_a_file(scenario, tmp_path) -> None:
    few = ["--set", "sweep.routing=[gpu-target, cpu-mid]", "--set", "sweep.workload.batch=[1, 4]"]
    assert sweep(scenario, tmp_path / "lanes", "--engine", "maxplus", *few).exit_code == 0
    assert sweep(scenario, tmp_path / "rows.parquet", *few).exit_code == 0
    lanes, rows = (read_result(tmp_path / name).rows for name in ("lanes", "rows.parquet"))
    assert lanes == rows


def test_a_point_that_makes_no_sense_is_a_row_with_its_reason(scenario, tmp_path) -> None:
    more = "sweep.selector=[{kind: quest, top_pages: 8}, {kind: rocketkv, budget_tokens: 64}]"
    folder = tmp_path / "bad"
    done = sweep(scenario, folder, "--set", more, "--set", "sweep.routing=[gpu-target, cpu-mid]")
    assert done.exit_code == 0, done.stderr
    rows = read_result(folder).rows
    reasons = {row["reason"] for row in rows if row["output_tokens"] == 200000}
    assert len(rows) == 240
    assert all(row["status"] == "infeasible" for row in rows if row["output_tokens"] == 200000)
    assert "208192 tokens exceed the model's context of 131072" in reasons


def test_processes_write_the_same_bytes(scenario, tmp_path, whole) -> None:
    pytest.importorskip("joblib")
    done = subprocess.run(
        essim("sweep", scenario, "--out", tmp_path / "jobs", "--jobs", 2), capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    assert contents(tmp_path / "jobs") == whole


@pytest.mark.slow
def test_a_cluster_that_loses_a_worker_writes_the_same_bytes(scenario, tmp_path, whole) -> None:
    pytest.importorskip("distributed", reason="the extra 'distributed' is not installed")
    where = tmp_path / "scheduler.json"
    python = [sys.executable, "-m"]
    common = ["--scheduler-file", str(where), "--no-dashboard"]
    scheduler = [*python, "distributed.cli.dask_scheduler", "--port", "0", *common]
    worker = [*python, "distributed.cli.dask_worker", "--nthreads", "1", "--no-nanny", *common]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = [subprocess.Popen(scheduler, **quiet)]
    started += [subprocess.Popen(worker, **quiet) for _ in range(2)]
    try:
        for _ in range(600):
            if where.exists():
                break
            time.sleep(0.1)
        address = json.loads(where.read_text())["address"]
        folder = tmp_path / "cluster"
        running = subprocess.Popen(essim("sweep", scenario, "--out", folder, "--cluster", address))
        wait_for_parts(folder, 2)
        started[1].kill()
        assert running.wait(timeout=300) == 0
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert contents(folder) == whole


def test_a_cluster_that_is_not_there_is_said(scenario, tmp_path) -> None:
    pytest.importorskip("distributed", reason="the extra 'distributed' is not installed")
    refused = sweep(scenario, tmp_path / "none", "--cluster", "tcp://127.0.0.1:9")
    assert refused.exit_code == 2
    assert "--cluster: no scheduler answers at tcp://127.0.0.1:9" in refused.stderr
