"""The public API: its names and signatures, what it gives back, and how it fails."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest
from firstday import FIRST_DAY
from plotly.graph_objects import Figure

import essim
from essim.cli.app import app
from essim.results.columns import COLUMNS
from essim.text.yaml import read_yaml

ROOT = Path(__file__).parents[2]
GRID = """\
sweep:
  routing: [gpu-target, cpu-mid]
  workload.batch: [1, 4, 100000]
  memory.reserve_frac: [0.05, 0.1]
"""
HEAVY = [
    *("numpy", "pandas", "plotly", "pyarrow", "pydantic", "ruamel", "simpy", "torch"),
    *("measure", "reports"),
]
COMMON = "set: 'Mapping[str, Any] | None' = None"
HOW = "engine: 'str' = 'auto', strict: 'bool' = False, seed: 'int' = 0"
SIGNATURES = {
    "run": "(scenario: 'ScenarioLike', *, batch: 'int | None' = None, "
    "input_tokens: 'int | None' = None, output_tokens: 'int | None' = None, "
    "routing: 'str | Mapping[str, Any] | None' = None, "
    "hardware: 'str | os.PathLike[str] | None' = None, "
    "model: 'str | os.PathLike[str] | Mapping[str, Any] | None' = None, "
    f"{COMMON}, {HOW}) -> 'Result'",
    "sweep": f"(scenario: 'ScenarioLike', *, {COMMON}, {HOW}) -> 'DataFrame'",
    "read": "(path: 'str | os.PathLike[str]') -> 'DataFrame'",
    "plot": "(frame: 'DataFrame') -> 'list[Figure]'",
    "timeline": f"(scenario: 'ScenarioLike', step: 'int | None' = None, *, {COMMON}, {HOW}) "
    "-> 'Timeline'",
    "memory": f"(scenario: 'ScenarioLike', *, {COMMON}, pool_tokens: 'int | None' = None) "
    "-> 'MemoryReport'",
    "load_profile": "(name_or_path: 'str | os.PathLike[str]') -> 'HardwareProfile'",
    "StepModel": "(model: 'str | Mapping[str, Any] | ModelShape', "
    "hardware: 'str | os.PathLike[str] | HardwareProfile', "
    "selector: 'Mapping[str, Any] | Selector', "
    "routing: 'str | Mapping[str, Any] | Routing', *, strict: 'bool' = False) -> 'None'",
    "StepModel.ps": "(self, contexts: 'ArrayLike') -> 'np.int64'",
    "StepModel.segments": "(self, batch: 'int', first_tokens: 'int' = 1, "
    "last_tokens: 'int | None' = None) -> 'list[Segment]'",
    "Segment.ps": "(self, context_tokens: 'int') -> 'int'",
    "Result.breakdown": "(self) -> 'list[Row]'",
    "Result.timeline": "(self, step: 'int | None' = None) -> 'Timeline'",
    "Result.plot": "(self, step: 'int | None' = None) -> 'Figure'",
}


def test_public_names() -> None:
    assert essim.__all__ == [
        *("AbsentError", "EssimError", "InputError", "MemoryReport", "PricingError", "Result"),
        *("Segment", "StepModel", "load_profile", "memory", "plot", "read", "run", "sweep"),
        "timeline",
    ]
    assert dir(essim) == sorted(essim.__all__)
    for name in essim.__all__:
        assert getattr(essim, name).__name__ == name
    with pytest.raises(AttributeError, match="module 'essim' has no attribute 'runn'"):
        essim.runn  # noqa: B018


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    target: object = essim
    for part in name.split("."):
        target = getattr(target, part)
    assert str(inspect.signature(target)) == SIGNATURES[name]


@pytest.mark.parametrize("statement", ["import essim", "import essim.cli.app", "essim.EssimError"])
def test_importing_loads_nothing_heavy(statement: str) -> None:
    code = f"import essim, sys; {statement}; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_pandas_is_loaded_by_a_sweep_alone(scenario_file) -> None:
    file = scenario_file()
    code = f"""
import essim, sys
result = essim.run({str(file)!r})
result.breakdown(), essim.timeline({str(file)!r}), essim.memory({str(file)!r})
essim.StepModel
print("pandas" in sys.modules, "plotly" in sys.modules)
essim.sweep({str(file)!r})
print("pandas" in sys.modules, "plotly" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.split("\n") == ["False False", "True False", ""]


def test_a_run_is_the_row_of_the_command(scenario_file, capsys) -> None:
    file = scenario_file()
    result = essim.run(file, batch=2, routing="gpu-target")
    assert (result["batch"], result["routing"]) == (2, "gpu-target")
    changes = ("--set", 'routing="gpu-target"', "--set", "workload.batch=2")
    told = command(capsys, "run", str(file), "--json", *changes)
    assert list(result.items()) == list(told["row"].items())
    assert result.breakdown() == told["step"]
    assert result.verdict == told["verdict"]
    units = {name: column.unit for name, column in COLUMNS.items() if column.unit}
    assert result.attrs == told["manifest"] | {"units": units}


def command(capsys, *arguments: str) -> dict:
    app(arguments, standalone_mode=False)
    return json.loads(capsys.readouterr().out)


def test_a_sweep_is_the_csv_of_the_command(scenario_file, tmp_path) -> None:
    """Whole numbers stay whole beside missing ones, and texts and floats as they are written."""
    file, out = scenario_file(more=GRID), tmp_path / "r.csv"
    frame = essim.sweep(file)
    app(("sweep", str(file), "--out", str(out)), standalone_mode=False)
    assert frame[list(COLUMNS)].to_csv(index=False) == out.read_text()
    assert list(frame["cpu_threads"].dropna()) == [8] * 6
    assert frame.columns[0] == "memory.reserve_frac"
    manifest = json.loads(Path(f"{out}.manifest.json").read_text())
    assert frame.attrs["profiles"] == manifest["profiles"]
    assert frame.attrs["scenario"] == manifest["scenario"]
    assert frame.attrs["units"] == {k: unit for k, unit in manifest["columns"].items() if unit}


def test_a_dict_is_a_scenario_like_its_file(scenario_file) -> None:
    file = scenario_file(more=GRID)
    data = read_yaml(file).data
    pandas.testing.assert_frame_equal(essim.sweep(data), essim.sweep(file))
    assert essim.sweep(data).attrs["scenario"]["file"] == "<dict>"
    assert essim.memory(data) == essim.memory(file)
    assert essim.timeline(data, 3).rows() == essim.timeline(file, 3).rows()
    assert dict(essim.run(data, seed=3)) == dict(essim.run(file, seed=3))


def test_values_of_a_notebook_are_taken(scenario_file) -> None:
    data = read_yaml(scenario_file()).data | {"hardware": FIRST_DAY}
    by_range = essim.sweep(data, set={"sweep.workload.batch": range(1, 3)})
    by_array = essim.sweep(data, set={"sweep.workload.batch": np.arange(1, 3)})
    assert by_range["batch"].tolist() == by_array["batch"].tolist() == [1, 2]
    assert essim.run(data, batch=np.int64(2))["batch"] == 2


def test_relative_paths_start_at_the_current_folder(tmp_path, monkeypatch, scenario_file) -> None:
    data = read_yaml(scenario_file()).data
    monkeypatch.chdir(FIRST_DAY.parent)
    by_key = essim.run(data | {"hardware": FIRST_DAY.name})
    by_argument = essim.run("earlyselect-40k", hardware=FIRST_DAY.name, output_tokens=2)
    digest = essim.load_profile(FIRST_DAY.name).digest
    for result in (by_key, by_argument):
        assert result.attrs["profiles"]["h200-sxm"]["sha256"] == digest


BAD = {
    "dict key": ({"modle": 1}, {}, "<dict>: modle: unknown key. Did you mean 'model'?"),
    "dict value": (
        {"workload": {"batch": 0, "input_tokens": 8, "output_tokens": 8}},
        {},
        "<dict>: workload.batch: must be 1 or more (got 0)",
    ),
    "argument": (
        {},
        {"batch": 1.5},
        "set: workload.batch: must be a whole number (got 1.5)",
    ),
    "preset": ({}, {"routing": "cpu-mdi"}, "set: routing: no routing 'cpu-mdi'. Did you mean"),
    "below": ({}, {"set": {"name.x": 1}}, "set: name.x: 'name' has no keys below it"),
    "path": ({"hardware": "no.yaml"}, {}, "<dict>: hardware: no file 'no.yaml' in /"),
    "engine": ({}, {"engine": "fast"}, "engine: no engine 'fast'. auto, des, maxplus"),
    "seed": ({}, {"seed": -1}, "seed: must be a whole number from 0 on (got -1)"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_says_where_and_what(case: str, scenario_file) -> None:
    changes, arguments, message = BAD[case]
    with pytest.raises(essim.InputError) as error:
        essim.run(read_yaml(scenario_file()).data | changes, **arguments)
    assert str(error.value).startswith(message)


def test_files_are_blamed_with_their_line(scenario_file) -> None:
    file = scenario_file(("batch: 1", "batch: 0"))
    with pytest.raises(essim.InputError) as error:
        essim.sweep(file)
    assert str(error.value).startswith(f"{file}:6: workload.batch: ")


def test_other_things_are_no_scenario_and_no_sweep(scenario_file) -> None:
    with pytest.raises(essim.InputError, match=r"no scenario 'laptp'\. Did you mean 'laptop'"):
        essim.run("laptp")
    with pytest.raises(essim.InputError, match=r"scenario: must be a name, .* \(got 3\)"):
        essim.run(3)
    with pytest.raises(essim.InputError, match=r"frame: no row of a sweep\. Give what"):
        essim.plot(pandas.DataFrame())
    with pytest.raises(essim.InputError, match="Did you mean 'h200-sxm'"):
        essim.load_profile("h200-sxn")
    with pytest.raises(essim.InputError, match=r"pool_tokens: must be 1 or more \(got 0\)"):
        essim.memory(scenario_file(), pool_tokens=0)
    with pytest.raises(essim.PricingError, match="not measured"):
        essim.run(scenario_file(), strict=True)


def test_without_pandas_the_extra_is_named(scenario_file, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert essim.run(scenario_file())["status"] == "ok"
    with pytest.raises(essim.AbsentError, match=r"needs pandas. pip install 'essim\[notebook\]'"):
        essim.sweep(scenario_file())


def test_a_point_without_a_decode_step_has_none_to_show(scenario_file) -> None:
    result = essim.run(scenario_file(), output_tokens=1)
    assert result["step_s"] is None
    assert result.breakdown() == []
    with pytest.raises(essim.InputError, match="step: there is no decode step to show"):
        result.plot()
    for step in (0, 16):
        with pytest.raises(essim.InputError, match=f"step: {step} is no decode step. 1 to 15"):
            essim.timeline(scenario_file(), step)


def test_figures(scenario_file) -> None:
    more = "sweep:\n  routing: [gpu-target, cpu-mid]\n  workload.batch: [1, 4]\n"
    frame = essim.sweep(scenario_file(more=more + "  workload.output_tokens: [8, 16]\n"))
    figures = essim.plot(frame)
    rates = "throughput and gain over gpu-target by output length"
    over_batch = "Decode throughput, time per output token and gain over gpu-target by batch"
    assert [figure.layout.title.text for figure in figures] == [
        *[f"Decode {rates}"] * 2,
        *[over_batch] * 2,
        *[f"End-to-end {rates}"] * 2,
    ]
    settings = [figure.layout.title.subtitle.text for figure in figures]
    some = essim.plot(frame[frame["batch"] == 4])
    assert [f.layout.title.subtitle.text for f in some] == [settings[1], settings[5]]
    assert "batch 4" in settings[1]
    drawn = dict(zip(some[0].data[1].x, some[0].data[1].y, strict=True))
    chosen = frame[(frame["batch"] == 4) & (frame["routing"] == "cpu-mid")]
    rate = chosen.set_index("output_tokens")["decode_tokens_per_s"]
    assert drawn == pytest.approx(rate.to_dict())
    figure = essim.run(scenario_file()).plot(step=2)
    assert isinstance(figure, Figure)
    assert figure.layout.title.text == "small, cpu-mid, step 2"
