"""The command line as a user meets it: a process, its streams, its exit code, its files."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import ROOT, essim
from firstday import FIRST_DAY

SCENARIO = str(ROOT / "scenarios" / "earlyselect-40k.yaml")
QUICK = ("--set", "workload.output_tokens=32", "--set", "workload.batch=2")
# The shipped profile says which of its tables waits for its next measurement.
OLD_KERNELS = (
    "warning: hardware_profiles/h200-sxm.yaml:633: measured with older kernels: cpu_update\n"
)


def test_run_prints_a_table_the_parts_and_a_verdict() -> None:
    done = essim("run", SCENARIO, *QUICK)
    assert (done.returncode, done.stderr) == (0, OLD_KERNELS)
    for text in ("decode_tokens_per_s", "gemm_gate_up", "measured", "than gpu-target"):
        assert text in done.stdout
    weak = essim("run", SCENARIO, *QUICK, "--set", f"hardware={FIRST_DAY}")
    assert "The hardware profile is provisional" in weak.stdout
    weak = essim("run", SCENARIO, *QUICK, "--set", "hardware=a100-sxm-80gb")
    said = "Only 0% of the decode time of this point is measured or interpolated; the rest is "
    assert said + "transferred (" in weak.stdout
    batches = ("--set", "hardware=a100-sxm-80gb", "--set", "sweep.workload.batch=[1,512]")
    weak = essim("sweep", SCENARIO, "--set", "workload.output_tokens=32", *batches)
    assert "points do not run" in weak.stdout
    (line,) = (line for line in weak.stdout.splitlines() if line.endswith(": compare with care."))
    assert line.startswith("Only 0% of the decode time of ")
    assert "None" not in line


def test_run_json_is_one_object() -> None:
    done = essim("run", SCENARIO, *QUICK, "--json")
    found = json.loads(done.stdout)
    assert found["row"]["output_tokens"] == 32
    assert sum(part["share_frac"] for part in found["step"]) == pytest.approx(1.0, abs=1e-3)
    assert set(found["manifest"]) >= {"essim", "commit", "scenario", "profiles", "engine", "seed"}
    assert "faster than gpu-target" in found["verdict"]


def test_sweep_writes_the_same_bytes_twice(tmp_path: Path) -> None:
    written = []
    for folder in ("a", "b"):
        out, html = tmp_path / folder / "r.csv", tmp_path / folder / "r.html"
        done = essim("sweep", SCENARIO, *QUICK, "--out", str(out), "--html", str(html))
        assert done.returncode == 0
        assert done.stderr.splitlines() == [OLD_KERNELS.strip(), f"wrote {out}", f"wrote {html}"]
        assert "gpu_side-mid-fused gains" in done.stdout
        assert "Output quality is not modelled" in done.stdout
        written.append({p.name: p.read_bytes() for p in (tmp_path / folder).iterdir()})
    assert set(written[0]) == {"r.csv", "r.csv.manifest.json", "r.html"}
    assert written[0] == written[1]


def test_five_sentences_end_a_report_and_nothing_gains_over_itself(tmp_path: Path) -> None:
    done = essim("sweep", SCENARIO, "--html", str(tmp_path / "r.html"))
    table, _, ending = done.stdout.partition("Fastest early routing: ")
    sentences = [line for line in ending.splitlines()[1:] if line]
    assert len(sentences) == 6
    assert sentences[-2].startswith("Output quality is not modelled")
    assert sentences[-1] == "[16 more with --verbose]"
    assert "+0.0%" not in "".join(line for line in table.splitlines() if "gpu-target " in line)
    page = (tmp_path / "r.html").read_text()
    assert "<summary>What was swept, and more in sentences</summary>" in page
    told = essim("sweep", SCENARIO, "--json")
    found = json.loads(told.stdout)
    assert found["verdict"] == sentences[:-1]
    assert len(found["more"]) == 16


def test_a_run_shows_achieved_bandwidth_and_a_spinning_await_is_not_busy() -> None:
    found = json.loads(essim("run", SCENARIO, *QUICK, "--json").stdout)
    parts = {part["part"]: part for part in found["step"]}
    # 28672 x 4096 weights, and two rows in and out of 32 layers, in BF16.
    moved = 32 * 2 * (28672 * 4096 + 2 * (28672 + 4096))
    rate = moved / parts["gemm_gate_up"]["time_s"]
    assert parts["gemm_gate_up"]["achieved_bytes_per_s"] == pytest.approx(rate)
    assert parts["await"]["achieved_bytes_per_s"] is None
    idle = parts["await"]["share_frac"] + parts.get("waiting", {"share_frac": 0.0})["share_frac"]
    assert found["row"]["gpu_busy_frac"] == pytest.approx(1 - idle, abs=1e-6)
    assert found["row"]["gpu_busy_frac"] < 0.97


def test_nothing_is_cut_where_columns_are_many() -> None:
    done = essim("sweep", SCENARIO)
    assert done.returncode == 0
    assert "Gain of the fastest early routing over the fastest that waits" in done.stdout
    assert "\N{HORIZONTAL ELLIPSIS}" not in done.stdout


def test_sweep_json_leaves_nothing_else_on_stdout(tmp_path: Path) -> None:
    out = tmp_path / "r.parquet"
    done = essim("sweep", SCENARIO, *QUICK, "--json", "--out", str(out))
    found = json.loads(done.stdout)
    assert len(found["rows"]) == 7
    assert found["verdict"]
    assert out.exists()


def test_a_shipped_scenario_is_found_by_name_from_anywhere(tmp_path: Path) -> None:
    assert essim("run", "earlyselect-40k", *QUICK, cwd=tmp_path).returncode == 0


def test_a_profile_by_path_is_found_beside_its_scenario(tmp_path: Path) -> None:
    text = Path(SCENARIO).read_text().replace("hardware: h200-sxm", "hardware: mine.yaml")
    (tmp_path / "s.yaml").write_text(text)
    profile = (ROOT / "hardware_profiles" / "h200-sxm.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(profile.split("tables:")[0])
    done = essim("run", str(tmp_path / "s.yaml"), *QUICK, "--json")
    row = json.loads(done.stdout)["row"]
    assert row["status"] == "ok"
    assert row["measured_frac"] < 0.1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("run", "none.yaml"), 2, "none.yaml: cannot be read"),
        (
            ("run", SCENARIO, "--set", "workload.batch=0"),
            2,
            "--set: workload.batch: must be 1 or more",
        ),
        (("run", SCENARIO, "--set", "hardware=h100"), 2, "hardware: no hardware profile 'h100'"),
        (
            ("run", "quest-32k", "--strict", "--set", "routing=cpu-mid"),
            3,
            "cpu_route on h200-sxm is transferred, not measured",
        ),
        (
            ("run", "earlyselect-40k", "--strict", "--set", "selector.top_pages=128"),
            3,
            "its table holds for top_pages 32..64, not 128",
        ),
        (("sweep", SCENARIO, "--out", "r.xlsx"), 2, "--out: r.xlsx ends in neither"),
        (("sweep", SCENARIO, "--html", "r.csv"), 2, "--html: r.csv does not end in .html"),
        (("run", SCENARIO, "--html", "r"), 2, "--html: r does not end in .html"),
        (("sweep", SCENARIO, "--engine", "fast"), 2, "--engine: 'fast' is not one of"),
        (("fly",), 2, "No such command 'fly'"),
    ],
)
def test_bad_input_is_a_message_an_exit_code_and_no_file(
    tmp_path, arguments, code, message
) -> None:
    done = essim(*arguments, cwd=tmp_path)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_trace_is_written_over_no_scenario_and_no_page(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(Path(SCENARIO).read_text())
    done = essim("run", str(file), "--trace", "s.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("--trace: s.yaml is read, or written by another option. Give")
    assert file.read_text() == Path(SCENARIO).read_text()
    done = essim("run", str(file), "--html", "r.html", "--trace", "./r.html", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("--trace: r.html is read, or written by another option")


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["validate-h200", "validate-offgrid"])
def test_every_price_of_a_validation_is_measured_or_interpolated(scenario: str) -> None:
    assert essim("sweep", scenario, "--strict").returncode == 0


def test_every_price_of_the_main_scenario_is_measured() -> None:
    done = essim("sweep", "earlyselect-40k", "--strict")
    assert done.returncode == 0
    assert "At 8192 output tokens early routing pays at every swept point" in done.stdout
    assert "roofline" not in done.stdout


def test_a_sweep_names_what_is_priced_by_roofline() -> None:
    done = essim("sweep", "quest-32k", "--verbose")
    kinds = "cpu_update gpu_side_slowdown"
    assert f"Priced by roofline, not timed: {kinds}.\n" in done.stdout


def test_quests_decode_step_and_prefill_are_measured() -> None:
    done = essim("run", "quest-32k", "--strict", "--json")
    assert done.returncode == 0
    row = json.loads(done.stdout)["row"]
    assert row["measured_frac"] == 1.0
    assert "roofline" not in row["price_sources"]
    assert "roofline" not in row["prefill_sources"]
    assert "summary_build" in row["prefill_sources"]


def test_a_point_that_does_not_fit_is_no_error() -> None:
    done = essim("run", SCENARIO, "--set", "model=llama-3.1-70b")
    assert done.returncode == 0
    assert "This point does not run: needs 1" in done.stdout


def test_a_profile_is_listed_with_its_specifications_and_its_weak_rows() -> None:
    found = json.loads(essim("list", "hardware", "h200-sxm", "--json").stdout)
    specs, tables, unstable = (
        {entry["name"]: entry["about"] for entry in found[part]}
        for part in ("specifications", "hardware", "unstable_rows")
    )
    bandwidth = "4,259 GB/s; measured, 2026-11-30: device copy, read + written"
    assert specs["gpu.bandwidth_bytes_per_s"] == bandwidth
    assert tables["norm"].endswith("; all of 8 to 10 samples, fewer than 30")
    assert tables["proxy_down"].endswith("; all of 10 samples, fewer than 30; 2 unstable")
    assert tables["cpu_route"].endswith("; 100 unstable")
    assert unstable["proxy_down"] == "(batch): 2; 10"
    assert "norm" not in unstable


def test_lists_and_schema() -> None:
    names = {
        what: [entry["name"] for entry in json.loads(essim("list", what, "--json").stdout)[what]]
        for what in ("models", "hardware", "selectors", "routings", "scenarios")
    }
    assert names["models"][:2] == ["llama-3.1-8b", "llama-3-8b"]
    assert "h200-sxm" in names["hardware"]
    assert {"dense", "rocketkv"} <= set(names["selectors"])
    assert "cpu-mid" in names["routings"]
    assert "earlyselect-40k" in names["scenarios"]
    assert json.loads(essim("schema").stdout)["title"] == "Scenario"


@pytest.mark.parametrize("module", ["essim", "essim.cli.app"])
def test_importing_it_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    heavy = {"torch", "plotly", "pandas", "numpy", "pydantic", "simpy", "pyarrow", "networkx"}
    assert not heavy & set(loaded.stdout.split())


def test_a_swept_key_without_a_column_is_in_settings(tmp_path: Path) -> None:
    text = Path(SCENARIO).read_text().split("sweep:")[0]
    more = "sweep:\n  model.ffn: [8192, 14336]\n  model.kv_dtype: [bf16, fp8]\n"
    (tmp_path / "s.yaml").write_text(text + more)
    out, html = tmp_path / "r.csv", tmp_path / "r.html"
    done = essim("sweep", str(tmp_path / "s.yaml"), *QUICK, "--out", str(out), "--html", str(html))
    assert done.returncode == 0, done.stderr
    with out.open() as text:
        settings = [row["settings"] for row in csv.DictReader(text)]
    assert settings == ['{"model.ffn": 8192}'] * 2 + ['{"model.ffn": 14336}'] * 2
    assert "cpu-mid gains" in done.stdout


@pytest.mark.parametrize(
    ("command", "what"),
    [
        *((["measure"], "measuring"), (["validate", "validate-laptop"], "a real run")),
        (["fidelity", "--out", "out"], "fidelity"),
    ],
)
def test_measuring_without_torch_says_what_to_install(
    tmp_path: Path, command: list[str], what: str
) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('no torch', name='torch')")
    command = [sys.executable, "-m", "essim", *command]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 4
    assert (
        done.stderr == f"{what} needs torch. Where essim is installed: pip install torch==2.13.0\n"
    )


def test_a_profiles_tables_are_listed_by_name() -> None:
    listed = json.loads(essim("list", "hardware", "h200-sxm", "--json").stdout)["hardware"]
    about = {entry["name"]: entry["about"] for entry in listed}
    assert about["rope"].startswith("37 points; 7 held out: median error 0.1%")
    for command, said in (
        (("hardware", "h20-sxm"), "makes one of this machine). Did you mean 'h200-sxm'?"),
        (("models", "h200-sxm"), "list models h200-sxm. Only hardware is listed by name"),
    ):
        done = essim("list", *command)
        assert (done.returncode, said in done.stderr) == (2, True)


def test_a_scenario_may_come_through_a_pipe() -> None:
    command = [sys.executable, "-m", "essim", "run", "/dev/stdin", *QUICK]
    text = Path(SCENARIO).read_text()
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, OLD_KERNELS)


def test_a_misspelt_scenario_gets_a_suggestion() -> None:
    done = essim("run", "earlyselct-40k")
    assert done.returncode == 2
    assert done.stderr == "no scenario 'earlyselct-40k'. Did you mean 'earlyselect-40k'?\n"
    done = essim("run", 300 * "a")
    assert done.stderr.startswith(f"no scenario '{300 * 'a'}'. Known: chat-service, ")
    done = essim("run", "scenarios/earlyselect-40k")
    said = "no scenario 'scenarios/earlyselect-40k'. Did you mean 'scenarios/earlyselect-40k.yaml'?"
    assert (done.returncode, done.stderr) == (2, f"{said}\n")
