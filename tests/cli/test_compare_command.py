"""``essim compare`` as a command: the shipped run, other machines, wrong files, traces."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
from command import ROOT, essim
from pairs import measured, predicted, write

from essim.validate.measured_run import read_trace

REAL = ROOT / "reports" / "data" / "h200-decode" / "decode.csv"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``essim sweep validate-h200`` predicts."""
    file = tmp_path_factory.mktemp("sweep") / "p.csv"
    assert essim("sweep", "validate-h200", "--out", file).returncode == 0
    return file


@pytest.mark.slow
def test_the_shipped_scenario_predicts_every_cell_of_the_shipped_run(
    sweep: Path, tmp_path: Path
) -> None:
    done = essim("compare", sweep, REAL, "--json", "--out", tmp_path / "pairs.csv")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["pairs"]) == 135
    # Its CPU modes are of a router that is no more.
    assert {(d["side"], d["mode"]) for d in found["dropped"]} == {
        ("measured", f"cpu-{anchor}") for anchor in ("target", "in", "mid", "mix")
    }
    assert found["verdict"][0].startswith("135 cells are both predicted and measured: bias ")
    assert not any(pair["unsteady"] for pair in found["pairs"])
    assert found["more"][-1] == (
        "Calibration has 196 points (batch, context), this run 15; none of its 135 cells are on "
        "one of them."
    )
    assert found["manifest"]["run"]["model"] == "llama-3.1-8b"
    with (tmp_path / "pairs.csv").open() as text:
        assert len(list(csv.DictReader(text))) == 135


@pytest.mark.slow
def test_the_run_of_the_cpu_router_is_predicted_cell_by_cell(tmp_path: Path) -> None:
    file = tmp_path / "p.csv"
    assert essim("sweep", "validate-h200-pool", "--out", file).returncode == 0
    done = essim("compare", file, REAL.parents[1] / "h200-pool" / "decode.csv", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (len(found["pairs"]), found["dropped"]) == (150, [])
    assert found["verdict"][1].startswith("40 of 150 measured cells are unsteady (cpu-target, ")
    assert sum(pair["unsteady"] for pair in found["pairs"]) == 40


def test_a_prediction_for_another_gpu_is_told_so(tmp_path: Path) -> None:
    point = ("routing=gpu-target", "workload.batch=1", "workload.input_tokens=4480")
    settings = (f"--set={text}" for text in (*point, "hardware=a100-sxm-80gb"))
    assert essim("sweep", "validate-h200", *settings, "--out", tmp_path / "p.csv").returncode == 0
    done = essim("compare", tmp_path / "p.csv", REAL)
    assert done.returncode == 0, done.stderr
    assert "\nPredicted for NVIDIA A100 80GB SXM, measured on NVIDIA H200.\n" in done.stdout


def test_folders_are_read_as_one_file(tmp_path: Path) -> None:
    point = ("routing=gpu-target", "workload.input_tokens=4480")
    folder, settings = tmp_path / "sweeps", [f"--set={text}" for text in point]
    for batch, ending in ((1, "csv"), (4, "parquet")):
        out = ("--out", folder / f"{batch}.{ending}")
        done = essim("sweep", "validate-h200", *settings, f"--set=workload.batch={batch}", *out)
        assert done.returncode == 0, done.stderr
    done = essim("compare", folder, REAL.parent, "--json")
    assert done.returncode == 0, done.stderr
    assert {pair["batch"] for pair in json.loads(done.stdout)["pairs"]} == {1, 4}
    done = essim("compare", folder, REAL, "--out", folder / "1.csv")
    assert done.returncode == 2
    assert done.stderr.startswith(f"--out: {folder / '1.csv'} is read")


@pytest.mark.slow
def test_without_a_gpu_machines_are_told_by_their_cpus(sweep: Path, tmp_path: Path) -> None:
    facts = json.loads((REAL.parent / "provenance.json").read_text())
    del facts["gpu_name"]
    (tmp_path / "provenance.json").write_text(json.dumps(facts | {"cpu": "another CPU"}))
    done = essim("compare", sweep, shutil.copy(REAL, tmp_path))
    assert done.returncode == 0, done.stderr
    assert "\nPredicted for Intel(R) Xeon(R) Processor, measured on another CPU.\n" in done.stdout


@pytest.mark.slow
def test_an_error_past_the_tolerance_is_exit_1(sweep: Path, tmp_path: Path) -> None:
    real = tmp_path / "decode.csv"
    lines = REAL.read_text().splitlines(keepends=True)
    real.write_text("".join(line for line in lines if ",dense," in line or "mode" in line))
    assert essim("compare", sweep, real, "--tolerance", "0.005").returncode == 0
    done = essim("compare", sweep, real, "--tolerance", "0.004")
    assert done.returncode == 1
    assert done.stderr == "the worst error is 0.46%, past 0.40%\n"
    assert "dense, batch 1, context 11520" in done.stdout


@pytest.mark.slow
def test_wrong_files_are_exit_2(sweep: Path, tmp_path: Path) -> None:
    done = essim("compare", REAL, REAL)
    assert (done.returncode, done.stdout) == (2, "")
    assert "decode.csv: there is no column 'model'. Give a .csv or .parquet that" in done.stderr
    for bad in (tmp_path / "none.csv", tmp_path / "none.parquet"):
        done = essim("compare", bad, REAL)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_what_is_compared_is_never_written_over(tmp_path: Path) -> None:
    mine, real = write(tmp_path / "p.csv", [predicted()]), tmp_path / "decode.csv"
    write(real, [measured("gpu-target", 4e-3)])
    (tmp_path / "link.csv").symlink_to(real)
    (tmp_path / "t.html").write_text("a trace")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    for option, name, said in (
        ("--out", "decode.csv", "decode.csv is read, or written by another option. Give another"),
        ("--out", "p.csv", "p.csv is read, or written by another option. Give another file"),
        ("--out", "link.csv", "link.csv is read, or written by another option"),
        ("--html", "p.csv", "p.csv does not end in .html"),
        ("--html", "t.html", "t.html is read, or written by another option"),
    ):
        traced = ("--trace-predicted", tmp_path / "t.html")
        done = essim("compare", mine, real, *traced, option, name, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"{option}: {said}")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    (tmp_path / "link.html").symlink_to(tmp_path / "new.csv")
    done = essim("compare", mine, real, "--out", "new.csv", "--html", "link.html", cwd=tmp_path)
    assert done.returncode == 2
    assert "--html: link.html is read, or written by another option" in done.stderr


@pytest.mark.slow
def test_a_predicted_step_is_laid_over_the_traced_one(sweep: Path, tmp_path: Path) -> None:
    trace = tmp_path / "t.json"
    mid = ("--set", "routing=cpu-mid", "--step", "4", "--trace", str(trace))
    assert essim("run", "validate-h200", *mid).returncode == 0
    of, ops = read_trace(trace)
    assert of == {**{"mode": "cpu-mid", "batch": 1, "context_tokens": 4484, "attended_tokens": 128}}
    assert (ops[0]["name"], ops[0]["stream"]) == ("embed", "gpu")
    done = essim("compare", sweep, REAL, "--trace-predicted", trace, "--json")
    (step,) = json.loads(done.stdout)["steps"]
    errors = {row["kind"]: row for row in step["errors"]}
    assert (errors["gemm_gate_up"]["predicted_ops"], errors["gemm_gate_up"]["real_ops"]) == (32, 32)
    assert abs(errors["gemm_gate_up"]["error_frac"]) < 0.05
    shutil.copy(REAL, tmp_path)
    real = tmp_path / "trace-cpu-mid.json"
    for other, code, said in (
        ({}, 0, ""),
        ({"attended_tokens": 256}, 2, "attended_tokens is 128, that of trace-cpu-mid.json 256"),
        ({"batch": 8}, 2, "t.json: batch is 1, that of trace-cpu-mid.json 8. Predict the step"),
        ({"context_tokens": 4480}, 2, "context_tokens is 4484, that of trace-cpu-mid.json 4480"),
    ):
        real.write_text(json.dumps({"traceEvents": [], "otherData": of | other}))
        done = essim("compare", sweep, tmp_path / "decode.csv", "--trace-predicted", trace)
        assert done.returncode == code, done.stderr
        assert said in done.stderr
    trace.write_text(json.dumps({"traceEvents": []}))
    done = essim("compare", sweep, REAL, "--trace-predicted", trace)
    assert done.returncode == 2
    assert "does not say its mode" in done.stderr
