"""Where paths start: those in a scenario at its folder, all others at the current one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from firstday import FIRST_DAY

import essim
from essim.errors import InputError
from essim.simulate.plan import load_scenario
from essim.simulate.scenario import Scenario
from essim.simulate.sweep import Simulator

CONFIG = """{{"model_type": "llama", "num_hidden_layers": {layers}, "hidden_size": 256,
"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 512, "vocab_size": 512,
"max_position_embeddings": 4096, "tie_word_embeddings": false}}
"""
SCENARIO = """\
name: paths
model: llama-3.1-8b
hardware: h200-sxm
selector: {kind: dense}
workload: {batch: 1, input_tokens: 64, output_tokens: 2}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the current folder and one of a scenario, each with its m.json and its p.yaml.

    Here a model has 2 layers and a GPU 32 GB; beside the scenario they are 3 and 64 GB.
    """
    for name, layers, memory in (("here", 2, "32 GB"), ("asked", 3, "64 GB")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "m.json").write_text(CONFIG.format(layers=layers))
        profile = FIRST_DAY.read_text().replace("value: 141 GB", f"value: {memory}")
        (tmp_path / name / "p.yaml").write_text(profile)
        shutil.copytree(FIRST_DAY.with_suffix(""), tmp_path / name / "p")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "asked"


def scenario(folder: Path, *changes: tuple[str, str], more: str = "") -> Path:
    text = SCENARIO
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "s.yaml").write_text(text + more)
    return Path("..") / "asked" / "s.yaml"


def found(point: Scenario) -> tuple[int, float]:
    """Return the layers of a point's model and the GB of its GPU, which must run."""
    simulator = Simulator()
    assert simulator.rows([point])[0]["status"] == "ok"
    memory_bytes = simulator.profile(point.hardware).spec.gpu.memory_bytes.value
    return point.model.layers, memory_bytes / 1e9


@pytest.mark.parametrize("model", ["m.json", "{preset: m.json, kv_dtype: fp8}"])
def test_paths_in_a_scenario_start_at_its_folder(folder: Path, model: str) -> None:
    file = scenario(folder, ("llama-3.1-8b", model), ("h200-sxm", "p.yaml"))
    assert found(load_scenario(file)[0]) == (3, 64.0)
    row = essim.run(file)
    assert (row["model"], row["hardware"]) == ("m", "../asked/p.yaml")
    swept = "sweep: {model: [m.json], hardware: [p.yaml]}\n"
    assert found(load_scenario(scenario(folder, more=swept))[1][0]) == (3, 64.0)


@pytest.mark.parametrize("model", ["m.json", "{preset: m.json, kv_dtype: fp8}"])
def test_paths_that_are_set_start_at_the_current_folder(folder: Path, model: str) -> None:
    file = scenario(folder)
    assert found(load_scenario(file, [f"model={model}", "hardware=p.yaml"])[0]) == (2, 32.0)
    swept = ["sweep.model=[m.json]", "sweep.hardware=[p.yaml]"]
    assert found(load_scenario(file, swept)[1][0]) == (2, 32.0)
    mixed = load_scenario(scenario(folder, ("llama-3.1-8b", "m.json")), ["hardware=p.yaml"])
    assert found(mixed[0]) == (3, 32.0)


def test_paths_of_python_start_at_the_current_folder(folder: Path) -> None:
    file = scenario(folder)
    row = essim.run(file, hardware="p.yaml", model=Path("m.json"))
    assert (row["model"], row["hardware"]) == ("m", "p.yaml")
    held = essim.memory(file, set={"model": {"preset": "m.json"}, "hardware": "p.yaml"}).need
    assert held.kv_bytes == 2 * 2 * 2 * 64 * 2 * 65
    as_dict = {
        "name": "dict",
        "model": "m.json",
        "hardware": "p.yaml",
        "selector": {"kind": "dense"},
        "workload": {"batch": 1, "input_tokens": 64, "output_tokens": 2},
    }
    assert essim.run(as_dict)["hardware"] == "p.yaml"


@pytest.mark.parametrize(
    ("key", "name"), [("model", "no.json"), ("model", "{preset: no.json}"), ("hardware", "no.yaml")]
)
def test_a_file_that_is_not_there_is_said_with_the_folder_searched(
    folder: Path, key: str, name: str
) -> None:
    wanted = name.removeprefix("{preset: ").removesuffix("}")
    with pytest.raises(InputError) as error:
        load_scenario(scenario(folder), [f"{key}={name}"])
    start = f"--set: {key}: no file '{wanted}' in {Path().absolute()}. Paths in a scenario start at"
    assert str(error.value).startswith(start)
    old, line = ("llama-3.1-8b", 2) if key == "model" else ("h200-sxm", 3)
    with pytest.raises(InputError) as error:
        load_scenario(scenario(folder, (old, name)))
    start = f"../asked/s.yaml:{line}: {key}: no file '{wanted}' in {folder.absolute()}. Paths in"
    assert str(error.value).startswith(start)
