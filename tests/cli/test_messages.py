"""What a newcomer gets wrong, and what is said of it: file, line, key, what, and a hint."""

from __future__ import annotations

import importlib
import shutil
import warnings
from pathlib import Path

import pytest
from firstday import FIRST_DAY
from typer.testing import CliRunner

from essim.cli.app import app
from essim.cli.progress import plain_lines
from essim.errors import InputError
from essim.hardware.profile import load_profile, shipped
from essim.hardware.spec import ProfileSpec
from essim.simulate.plan import load_scenario
from essim.simulate.remarks import remarks
from essim.simulate.scenario import Scenario
from essim.simulate.sweep import Simulator
from essim.text.problems import _MUST_BE, described

BATCH = "batch: 1"
SELECTOR = (
    "{kind: rocketkv, prompt_budget: 4096, page_tokens: 4, top_pages: 32, kv_block_tokens: 4}"
)


def essim(*arguments: str) -> tuple[int, list[str]]:
    """Run a command in this process: its exit code and the lines of stderr."""
    done = CliRunner().invoke(app, list(arguments))
    return done.exit_code, done.stderr.splitlines()


MISTAKES = {
    "tab": (("hardware:", "\thardware:"), "3: not valid YAML: there is a tab. Use spaces"),
    "40k": (
        (BATCH, "batch: 40k"),
        "6: workload.batch: must be a whole number (got '40k'). Write 40960 or 40000",
    ),
    "32K": ((BATCH, "batch: 32K"), "6: workload.batch: must be a whole number (got '32K'). Write"),
    "1.5M": ((BATCH, "batch: 1.5M"), "(got '1.5M'). Write 1572864 or 1500000"),
    "quoted": ((BATCH, 'batch: "40,960"'), "(got '40,960'). Write 40960"),
    "a float": ((BATCH, "batch: 4.0"), "must be a whole number (got 4.0). Write 4"),
    "a range": ((BATCH, "batch: 1..8"), "(got '1..8'). List the numbers one by one"),
    "true": ((BATCH, "batch: true"), "6: workload.batch: must be a whole number (got true)"),
    "nothing": ((BATCH, "batch: null"), "6: workload.batch: must be a whole number (got nothing)"),
    "a list": ((BATCH, "batch: [1, 2]"), "must be a whole number (got [1, 2])"),
    "too much": ((BATCH, "batch: 10000000000"), "must be 1,000,000,000 or less (got 10000000000)"),
    "no space": ((BATCH, "batch:1"), "6: workload.batch:1: unknown key. Write a space after the"),
    "no model": (("model: llama-3.1-8b\n", ""), "1: model: required, but missing"),
    "empty model": (("llama-3.1-8b", ""), "2: model: must be a name or a mapping of keys (got not"),
    "routing 5": (("cpu-mid", "5"), "5: routing: must be a name or a mapping of keys (got 5)"),
    "selector by name": (
        (SELECTOR, "rocketkv"),
        "4: selector: must be a mapping with a kind (got 'rocketkv'). Write {kind: rocketkv, ...}",
    ),
    "no such place": (
        ("cpu-mid", "{where: GPU, anchor: mid}"),
        "5: routing.where: must be 'gpu', 'gpu_side' or 'cpu' (got 'GPU'). Did you mean 'gpu'?",
    ),
    "no such anchor": (
        ("cpu-mid", "{where: cpu, anchor: middle}"),
        "5: routing.anchor: must be 'target', 'in', 'mid' or 'mix' (got 'middle'). Did you mean "
        "'mid'?",
    ),
    "another kind's key": (
        ("kind: rocketkv", "kind: quest"),
        "4: selector.prompt_budget: unknown key. It belongs to another kind",
    ),
    "like another kind's": (
        (SELECTOR, "{kind: quest, top_pages: 4, top_token: 9}"),
        "4: selector.top_token: unknown key. Did you mean 'selector.page_tokens'?",
    ),
    "an unlike key": (
        ("cpu-mid\n", "cpu-mid\ngpu: 3\n"),
        "6: gpu: unknown key. Known: name, model, hardware, selector, routing, workload, memory, ",
    ),
    "percent": (
        ("cpu-mid\n", "cpu-mid\nmemory: {reserve_frac: 5 %}\n"),
        "6: memory.reserve_frac: must be a number (got '5 %'). Write 0.05",
    ),
    "a share above 1": (
        ("cpu-mid\n", "cpu-mid\nmemory: {reserve_frac: 5}\n"),
        "6: memory.reserve_frac: must be below 1 (got 5). Write 0.05 for 5 %",
    ),
    "one swept value": (
        ("cpu-mid\n", "cpu-mid\nsweep: {workload.batch: 4}\n"),
        "6: sweep.workload.batch: must be a list (got 4). Write [4]",
    ),
    "a nested sweep": (
        ("cpu-mid\n", "cpu-mid\nsweep: {workload: {batch: [1, 2]}}\n"),
        "6: sweep.workload: must be a list (got {'batch': [1, 2]}). Write workload.batch: [1, 2]",
    ),
    "a mapping is needed": (
        ("cpu-mid\n", "cpu-mid\ncompare: gpu-target\n"),
        "6: compare: must be a mapping of keys (got 'gpu-target')",
    ),
    "a number for a name": (("name: small", "name: 7"), "1: name: must be text (got 7). Write '7'"),
    "no name": (("name: small", "name: ''"), "1: name: must be text, and not empty (got '')"),
    "open quote": (("small", '"small'), "1: not valid YAML: a quote is not closed. Close it"),
    "open bracket": (("output_tokens: 16}", "output_tokens: 16\nsweep: {}"), "a bracket is not"),
    "no colon": (("model: llama", "model llama"), "3: not valid YAML: no 'key: value'. Write a c"),
    "indented": (("hardware:", "  hardware:"), "3: not valid YAML: a colon too many, or wrong in"),
    "at sign": (("small", "@small"), "1: not valid YAML: a value may not start so. Put it in q"),
    "an alias": (("small", "*small"), "1: not valid YAML: an alias without an anchor. Put text t"),
    "two documents": (("cpu-mid\n", "cpu-mid\n---\n"), "6: not valid YAML: a second document. De"),
    "a bell": (("small", "sm\x07all"), "1: the character U+0007 is not allowed. Delete it"),
}


@pytest.mark.parametrize(("replacement", "message"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_a_scenario_is_said_with_file_line_and_hint(
    scenario_file, replacement, message
) -> None:
    file = scenario_file(replacement)
    with pytest.raises(InputError) as error:
        load_scenario(file)
    assert f"{file}:" in str(error.value)
    assert message in str(error.value)


def test_no_more_than_ten_problems_are_listed(scenario_file) -> None:
    unknown = "".join(f"xyz{i}: 1\n" for i in range(12))
    with pytest.raises(InputError) as error:
        load_scenario(scenario_file(more=unknown))
    assert str(error.value).splitlines()[-1] == "... and 2 more"


def test_text_that_is_not_utf_8_is_refused_at_its_line(scenario_file) -> None:
    file = scenario_file()
    file.write_bytes(file.read_bytes().replace(b"cpu-mid", b"cpu-m\xeed"))
    with pytest.raises(InputError, match=r"s.yaml:5: not UTF-8 text\. Save it as UTF-8"):
        load_scenario(file)


OPTIONS = {
    ("run", "S", "--step", "0"): "--step: must be 1 or more (got '0')",
    ("run", "S", "--seed", "x"): "--seed: must be a whole number (got 'x')",
    ("memory", "S", "--pool-tokens", "40k"): "--pool-tokens: must be a whole number (got '40k'). "
    "Write 40960 or 40000",
    ("compare", "S", "S", "--tolerance", "3 %"): "--tolerance: must be a number (got '3 %'). "
    "Write 0.03",
    ("list", "gpus"): "WHAT: 'gpus' is not one of 'models', 'hardware', 'selectors', 'routings', "
    "'scenarios'",
    ("run", "S", "--set", "workload:batch=4"): "--set: workload:batch: unknown key. Did you mean "
    "'workload.batch'?",
    ("measure", "--profile", "a/b"): "--profile: 'a/b' is no name of a profile. Give one without "
    "folder and ending, such as my-gpu",
    ("run", "FOLDER"): "FOLDER: is a folder. Give a scenario in it",
}


@pytest.mark.parametrize(("arguments", "message"), OPTIONS.items(), ids=lambda a: str(a)[:40])
def test_options_are_refused_in_the_same_words(scenario_file, arguments, message) -> None:
    file = scenario_file()
    places = {"S": str(file), "FOLDER": str(file.parent)}
    code, lines = essim(*(places.get(argument, argument) for argument in arguments))
    assert (code, lines) == (2, [message.replace("FOLDER", str(file.parent))])


# What pydantic calls the parts of a schema that have errors of their own, and those errors.
KINDS = {
    "int": ("int_type", "int_parsing", "greater_than_equal", "less_than_equal"),
    "float": ("float_type", "finite_number", "greater_than", "less_than", "greater_than_equal"),
    "str": ("string_type", "string_too_short", "string_pattern_mismatch"),
    "bool": ("bool_type",),
    "list": ("list_type", "too_short"),
    "dict": ("dict_type",),
    "model": ("model_type", "model_attributes_type"),
    "literal": ("literal_error",),
}
# Parts whose errors are those of what is in them, or written here.
WITHOUT_ERRORS = {
    *("any", "default", "definitions", "definition-ref", "model-field", "model-fields"),
    *("nullable", "union", "function-after", "function-before", "function-plain", "no-info"),
}


def kinds(node: object) -> set[str]:
    if isinstance(node, list | tuple):
        return set().union(*map(kinds, node))
    if not isinstance(node, dict):
        return set()
    own = {node["type"]} if isinstance(node.get("type"), str) else set()
    inner = {k: v for k, v in node.items() if k not in ("metadata", "serialization", "config")}
    return own.union(*map(kinds, inner.values()))


@pytest.mark.parametrize("model", [Scenario, ProfileSpec])
def test_every_error_that_pydantic_may_raise_has_words_of_its_own(model) -> None:
    found = kinds(model.__pydantic_core_schema__) - WITHOUT_ERRORS
    assert found <= set(KINDS)
    assert {error for kind in found for error in KINDS[kind]} <= set(_MUST_BE)


def test_branches_of_a_union_are_one_sentence() -> None:
    errors = [
        {"type": "int_type", "loc": ("a", "int"), "msg": "", "input": [], "ctx": {}},
        {"type": "string_type", "loc": ("a", "str"), "msg": "", "input": [], "ctx": {}},
    ]
    assert described(errors).message == "must be a whole number or text (got [])"


@pytest.mark.parametrize(
    ("replacement", "message"),
    [
        (("4.3 TB/s", "4300 TB/s"), "4.3 PB/s is no bandwidth of a GPU's memory (1 GB/s to 100 TB"),
        (("141 GB", "141 PB"), "141 PB is no memory of a GPU (1 GB to 10 TB). Did you mean 141 GB"),
        (
            ("55 GB/s", "13 PB/s"),
            "13 PB/s is no bandwidth of a link to a GPU (100 MB/s to 10 TB/s)",
        ),
        (("55 GB/s", "13 PB/s"), "Did you mean 13 GB/s?"),
    ],
)
def test_hardware_that_cannot_be_is_refused_with_the_unit_meant(
    tmp_path: Path, replacement, message
) -> None:
    text = FIRST_DAY.read_text().split("tables:")[0]
    assert replacement[0] in text
    (tmp_path / "h.yaml").write_text(text.replace(*replacement))
    with pytest.raises(InputError) as error:
        load_profile(tmp_path / "h.yaml")
    assert message in str(error.value)


def warned(call) -> list[str]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        call()
    return [str(entry.message) for entry in found]


def test_rocketkvs_pages_that_kernels_round_up_are_warned_of_once_a_line(scenario_file) -> None:
    file = scenario_file(("top_pages: 32", "top_pages: 48"))
    message = "4: selector.top_pages: 48 is no power of two: kernels work on 64, the price is of 48"
    assert [text.removeprefix(f"{file}:") for text in warned(lambda: load_scenario(file))] == [
        message
    ]
    assert warned(lambda: load_scenario(scenario_file())) == []


def test_fp8_on_a_gpu_without_it_says_what_is_priced(scenario_file) -> None:
    base, _ = load_scenario(scenario_file(), ["hardware=a100-sxm-80gb", "model.weight_dtype=fp8"])
    profile = Simulator().profile("a100-sxm-80gb")
    (said,) = remarks([base], {"a100-sxm-80gb": profile})
    assert said.startswith(f"{profile.file}:9: NVIDIA A100 80GB SXM has no fp8_flops_per_s: FP8 is")
    assert said.endswith("priced as weights alone, read as FP8 and multiplied in 16 bits")
    h100 = base.model_copy(update={"hardware": "h100-sxm"})
    assert list(remarks([h100], {"h100-sxm": Simulator().profile("h100-sxm")})) == []


@pytest.mark.filterwarnings("ignore:.*are faster than a smaller one")
def test_the_times_of_one_device_under_two_names_are_warned_of(tmp_path: Path) -> None:
    source = shipped("hardware_profiles") / "cpu-2core.yaml"
    shutil.copytree(source.with_suffix(""), tmp_path / "other")
    text = source.read_text().replace("name: cpu-2core", "name: other")
    (tmp_path / "other.yaml").write_text(text)
    line = next(i for i, text in enumerate(text.splitlines(), 1) if text == "tables:") + 1
    profiles = {"a": load_profile(source), "b": load_profile(tmp_path / "other.yaml")}
    (said,) = remarks([], profiles)
    start = f"{tmp_path / 'other.yaml'}:{line}: measured times are, to the byte, those of cpu-2core"
    assert said.startswith(start)


def test_progress_is_a_plain_line_now_and_then_where_nobody_looks(capsys) -> None:
    times = iter([0.0, 1.0, 5.0, 12.0, 13.0, 30.0])
    tell = plain_lines(lambda: next(times))
    for done in range(1, 6):
        tell("points", done, 9)
    assert capsys.readouterr().err.splitlines() == [
        "points: 3 of 9, about 33 s left",
        "points: 5 of 9, about 29 s left",
    ]


def interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_says_what_is_kept(monkeypatch, tmp_path: Path, scenario_file) -> None:
    monkeypatch.setattr(Simulator, "rows", interrupted)
    out = tmp_path / "r.csv"
    for command in (("sweep", "--out", str(out)), ("run",)):
        name, *options = command
        done = essim(name, str(scenario_file()), *options)
        assert done == (130, ["stopped: nothing was written"])
    assert not out.exists()


def test_ctrl_c_keeps_what_was_measured(monkeypatch, capsys, tmp_path: Path, scenario_file) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr("measure.main.measure_machine", interrupted)
    command = ("measure", "--profile", "mine", "--out", str(tmp_path))
    assert essim(*command) == (130, ["stopped: nothing was measured yet"])
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "norm.csv").write_text("rows,p50_s\n")
    kept = f"stopped: what was measured is kept in {tmp_path / 'mine'}; the same command goes on"
    assert essim(*command) == (130, [f"{kept} from there"])
    monkeypatch.setattr("measure.decode.main.plan_of_this_machine", interrupted)
    with pytest.raises(SystemExit) as ended:
        importlib.import_module("measure.decode.main").main(["--out", str(tmp_path)])
    assert ended.value.code == 130
    kept = (
        f"stopped: what was measured is kept in {tmp_path}; the same command goes on from there\n"
    )
    assert capsys.readouterr().err == kept
    monkeypatch.setattr("measure.decode.validate.measure_points", interrupted)
    done = essim("validate", str(scenario_file()))
    assert done == (130, ["stopped: nothing is kept without --out"])
