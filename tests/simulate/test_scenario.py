"""Scenario files: presets, overrides, grids, and everything that may be wrong with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from essim.errors import InputError
from essim.simulate.plan import load_scenario
from essim.text.yaml import parse_scalar

OUTPUT_16 = "output_tokens: 16"


def test_presets_expand_before_set_applies(scenario_file) -> None:
    base, points = load_scenario(scenario_file(), ["routing.cpu_threads=4", "workload.batch=2"])
    assert (base.routing.where, base.routing.anchor) == ("cpu", "mid")
    assert (base.routing.cpu_threads, base.workload.batch) == (4, 2)
    assert points == [base]


def test_dense_attention_needs_no_routing(scenario_file) -> None:
    rocket = (
        "kind: rocketkv, prompt_budget: 4096, page_tokens: 4, top_pages: 32, kv_block_tokens: 4"
    )
    without = ("routing: cpu-mid\n", "")
    base, _ = load_scenario(scenario_file((rocket, "kind: dense"), without))
    assert base.selector.kind == "dense"
    with pytest.raises(InputError, match="routing: required, but missing"):
        load_scenario(scenario_file(without))


def test_the_first_swept_routing_is_that_of_a_base_point_without_one(scenario_file) -> None:
    without = ("routing: cpu-mid\n", "")
    more = "sweep: {routing: [gpu-target, cpu-in]}\n"
    base, points = load_scenario(scenario_file(without, more=more))
    assert [p.routing.name for p in (base, *points)] == ["gpu-target", "gpu-target", "cpu-in"]
    base, points = load_scenario(scenario_file(without), ["sweep.routing=[cpu-mid, cpu-in]"])
    assert [p.routing.name for p in (base, *points)] == ["cpu-mid", "cpu-mid", "cpu-in"]
    with pytest.raises(InputError, match=r"s.yaml:6: sweep.routing.0: no routing 'cpu'"):
        load_scenario(scenario_file(without, more="sweep: {routing: [cpu]}\n"))


def test_set_reads_yaml_and_takes_presets_and_new_keys(scenario_file) -> None:
    overrides = [
        "routing=gpu-target-fused",
        "model=smollm2-135m",
        "model.kv_dtype=fp8",
        "memory.reserve_frac=0.1",
    ]
    base, _ = load_scenario(scenario_file(), overrides)
    assert (base.routing.name, base.model.name) == ("gpu-target-fused", "smollm2-135m")
    assert (base.model.kv_dtype, base.memory.reserve_frac) == ("fp8", 0.1)


def test_a_sweep_is_the_full_grid_in_file_order(scenario_file) -> None:
    more = "sweep:\n  routing: [gpu-target, cpu-in]\n  workload.batch: [1, 2]\n"
    base, points = load_scenario(scenario_file(more=more))
    assert [(p.routing.name, p.workload.batch) for p in points] == [
        ("gpu-target", 1),
        ("gpu-target", 2),
        ("cpu-in", 1),
        ("cpu-in", 2),
    ]
    assert base.routing.name == "cpu-mid"


def test_a_selector_that_routes_nothing_is_there_once_for_all_routings(scenario_file) -> None:
    pages = "{kind: rocketkv, prompt_budget: 64, page_tokens: 4, top_pages: 2}"
    more = f"sweep:\n  selector: [{{kind: dense}}, {pages}]\n"
    more += "  routing: [gpu-target, cpu-mid]\n  workload.batch: [1, 2]\n"
    _, points = load_scenario(scenario_file(more=more))
    assert [(point.mode, point.workload.batch) for point in points] == [
        *(("dense", 1), ("dense", 2)),
        *(("gpu-target", 1), ("gpu-target", 2), ("cpu-mid", 1), ("cpu-mid", 2)),
    ]


def test_a_swept_routing_keeps_the_settings_its_preset_leaves_open(scenario_file) -> None:
    mapping = "routing: {where: cpu, anchor: mid, cpu_threads: 3, channels: 16}"
    file = scenario_file(("routing: cpu-mid", mapping), more="sweep: {routing: [cpu-in]}\n")
    _, (point,) = load_scenario(file)
    assert (point.routing.anchor, point.routing.cpu_threads) == ("in", 3)
    assert point.with_routing("gpu-target").routing.channels == 16


def test_a_swept_key_that_is_set_is_no_longer_swept(scenario_file) -> None:
    file = scenario_file(more="sweep: {workload.batch: [1, 2], workload.output_tokens: [4, 8]}\n")
    _, points = load_scenario(file, ["workload.batch=7"])
    assert [(p.workload.batch, p.workload.output_tokens) for p in points] == [(7, 4), (7, 8)]
    _, points = load_scenario(file, ["sweep.workload.batch=[5]"])
    assert [p.workload.batch for p in points] == [5, 5]


def test_a_config_json_is_found_beside_the_scenario(scenario_file, tmp_path: Path) -> None:
    fields = {
        "num_hidden_layers": 3,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 65536,
        "intermediate_size": 128,
        "vocab_size": 100,
    }
    (tmp_path / "config.json").write_text(json.dumps(fields))
    base, _ = load_scenario(scenario_file(("llama-3.1-8b", "config.json")))
    assert (base.model.layers, base.model.kv_heads) == (3, 2)


BAD = {
    "unknown key": (
        [("routing:", "routng:")],
        "s.yaml:5: routng: unknown key. Did you mean 'routing'?",
    ),
    "key one level too high": (
        [("workload: {batch: 1, ", "batch: 1\nworkload: {")],
        "s.yaml:6: batch: unknown key. Did you mean 'workload.batch'?",
    ),
    "missing key": (
        [("batch: 1, ", "")],
        "s.yaml:6: workload.batch: required, but missing",
    ),
    "batch 0": (
        [("batch: 1", "batch: 0")],
        "s.yaml:6: workload.batch: must be 1 or more (got 0)",
    ),
    "negative": ([("40960", "-5")], "s.yaml:6: workload.input_tokens: must be 1 or more (got -5)"),
    "not a number": (
        [("40960", ".nan")],
        "s.yaml:6: workload.input_tokens: must be a whole number (got nan)",
    ),
    "infinite": (
        [("40960", ".inf")],
        "s.yaml:6: workload.input_tokens: must be a whole number (got inf)",
    ),
    "text for a number": (
        [("40960", "40k")],
        "workload.input_tokens: must be a whole number (got '40k'). Write 40960 or 40000",
    ),
    "fraction of a token": (
        [("40960", "1.5")],
        "workload.input_tokens: must be a whole number (got 1.5)",
    ),
    "duplicate key": (
        [(OUTPUT_16, "output_tokens: 16, batch: 4")],
        "s.yaml:6: batch: the key is there twice. Delete one",
    ),
    "unknown model": (
        [("llama-3.1-8b", "llama-3.1-8c")],
        "s.yaml:2: model: no model 'llama-3.1-8c'. Did you mean 'llama-3.1-8b'?",
    ),
    "missing config": (
        [("llama-3.1-8b", "x/config.json")],
        "s.yaml:2: model: no file 'config.json' in /",
    ),
    "unknown selector": (
        [("kind: rocketkv", "kind: rocket")],
        "s.yaml:4: selector: no kind 'rocket'. Did you mean 'rocketkv'?",
    ),
    "unknown routing": (
        [("cpu-mid", "cpu-midd")],
        "s.yaml:5: routing: no routing 'cpu-midd'. Did you mean 'cpu-mid'?",
    ),
    "refused routing": (
        [("cpu-mid", "{where: gpu, anchor: mid}")],
        "s.yaml:5: routing: where gpu with anchor mid is refused",
    ),
    "selector key": (
        [("top_pages: 32", "top_page: 32")],
        "s.yaml:4: selector.top_page: unknown key. Did you mean 'selector.top_pages'?",
    ),
    "impossible shape": (
        [("llama-3.1-8b", "{preset: llama-3.1-8b, kv_heads: 5}")],
        "s.yaml:2: model: heads (32) must be a multiple of kv_heads (5)",
    ),
    "unknown dtype": (
        [("llama-3.1-8b", "{preset: llama-3.1-8b, kv_dtype: int3}")],
        "s.yaml:2: model: unknown dtype 'int3'",
    ),
    "policy without room": (
        [
            ("prompt_budget: 4096, page_tokens: 4, top_pages: 32, ", "budget_tokens: 256, "),
            ("40960, output_tokens: 16", "4096, output_tokens: 2048"),
        ],
        "leaves a prompt budget of -839 tokens",
    ),
    "no mapping": (
        [("selector: {", "selector: [{"), ("kv_block_tokens: 4}", "kv_block_tokens: 4}]")],
        "s.yaml:4: selector",
    ),
    "bad yaml": ([("{batch: 1", "{batch: 1]")], "s.yaml:6: not valid YAML"),
    "reserve": (
        [("cpu-mid", "cpu-mid\nmemory: {reserve_frac: 0}")],
        "memory.reserve_frac: must be above 0 (got 0)",
    ),
    "baseline": (
        [("cpu-mid", "cpu-mid\ncompare: {baseline: gpu}")],
        "s.yaml:6: compare: no routing 'gpu'",
    ),
    "swept key": (
        [(OUTPUT_16 + "}", OUTPUT_16 + "}\nsweep:\n  workload.bach: [1]")],
        "s.yaml:8: sweep.workload.bach: unknown key. Did you mean 'workload.batch'?",
    ),
    "swept value": (
        [(OUTPUT_16 + "}", OUTPUT_16 + "}\nsweep:\n  workload.batch:\n    - 1\n    - 0")],
        "s.yaml:10: workload.batch: must be 1 or more (got 0)",
    ),
    "swept preset": (
        [(OUTPUT_16 + "}", OUTPUT_16 + "}\nsweep:\n  routing: [cpu-mid, cpu]")],
        "s.yaml:8: sweep.routing.1: no routing 'cpu'",
    ),
    "empty sweep": (
        [(OUTPUT_16 + "}", OUTPUT_16 + "}\nsweep:\n  routing: []")],
        "s.yaml:8: sweep.routing: must be a list, and not empty (got [])",
    ),
}


@pytest.mark.parametrize(("replacements", "message"), BAD.values(), ids=BAD)
def test_bad_input_says_file_line_key_and_what_is_wrong(
    scenario_file, replacements, message
) -> None:
    with pytest.raises(InputError) as error:
        load_scenario(scenario_file(*replacements))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("workload.batch", "--set: 'workload.batch' is not KEY=VALUE"),
        ("workload.batch=0", "--set: workload.batch: must be 1 or more"),
        ("workload.bach=1", "--set: workload.bach: unknown key. Did you mean 'workload.batch'?"),
        ("name.first=1", "--set: name.first: 'name' has no keys below it"),
        ("routing=cpu", "--set: routing: no routing 'cpu'"),
        ("workload=[1", "--set: not valid YAML"),
    ],
)
def test_bad_overrides_are_told_apart_from_the_file(scenario_file, override, message) -> None:
    with pytest.raises(InputError) as error:
        load_scenario(scenario_file(), [override])
    assert message in str(error.value)


@pytest.mark.parametrize("content", ["", "- 1\n", "just text\n"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(content)
    with pytest.raises(InputError, match="empty or not a mapping"):
        load_scenario(file)


def test_missing_and_binary_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.yaml: cannot be read \(No such file"):
        load_scenario(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="cannot be read"):
        load_scenario(tmp_path)
    file = tmp_path / "s.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"s.yaml:1: not UTF-8 text\. Save it as UTF-8"):
        load_scenario(file)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("selector.kv_block_tokens=6", "--set: selector: kv_block_tokens (6) must be a multiple"),
        ("model.kv_heads=3", "--set: model: heads (32) must be a multiple of kv_heads (3)"),
        ("compare.baseline=x", "--set: compare: no routing 'x'"),
        ("hardware=h100", "--set: hardware: no hardware profile 'h100'"),
        ("hardware=" + "x" * 300, "--set: hardware: no hardware profile"),
        ("hardware=no.yaml", "--set: hardware: no file"),
        ("model={preset: [1]}", "--set: model: no model"),
        ("workload=" + "[" * 3000, "not valid YAML"),
    ],
)
def test_what_an_override_breaks_is_blamed_on_it(scenario_file, override, message) -> None:
    with pytest.raises(InputError) as error:
        load_scenario(scenario_file(), [override])
    assert message in str(error.value)


def test_what_a_swept_value_breaks_is_blamed_on_its_line(scenario_file) -> None:
    more = "sweep:\n  selector.page_tokens:\n    - 4\n    - 8\n"
    with pytest.raises(InputError, match=r"s.yaml:10: selector: kv_block_tokens \(4\) must be"):
        load_scenario(scenario_file(more=more))


def test_a_value_swept_twice_is_refused(scenario_file) -> None:
    with pytest.raises(InputError, match=r"s.yaml:7: sweep.workload.batch: 1 is there twice"):
        load_scenario(scenario_file(more="sweep: {workload.batch: [1, 2, 1]}\n"))


def test_swept_models_need_names_of_their_own(scenario_file) -> None:
    half = "{preset: llama-3.1-8b, layers: 16"
    message = r"s.yaml:7: sweep.model.1: two models have one name"
    with pytest.raises(InputError, match=message):
        load_scenario(scenario_file(more=f"sweep: {{model: [llama-3.1-8b, {half}}}]}}\n"))
    swept = scenario_file(more=f"sweep: {{model: [llama-3.1-8b, {half}, name: half}}]}}\n")
    _, points = load_scenario(swept)
    assert [point.model.name for point in points] == ["llama-3.1-8b", "half"]


def test_grids_and_aliases_without_end_are_refused(scenario_file) -> None:
    axis = ", ".join(map(str, range(1, 400)))
    more = f"sweep: {{workload.batch: [{axis}], workload.output_tokens: [{axis}]}}\n"
    with pytest.raises(InputError, match="more than 100000 points"):
        load_scenario(scenario_file(more=more))
    bomb = "a0: &a0 [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 8)
    )
    with pytest.raises(InputError, match="more than 100000 entries"):
        load_scenario(scenario_file(more=bomb))


def test_windows_line_ends_and_a_byte_order_mark_are_no_obstacle(scenario_file) -> None:
    file = scenario_file()
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    assert load_scenario(file)[0].name == "small"


def test_yaml_numbers_are_those_of_yaml_1_2() -> None:
    assert parse_scalar("1e9") == 1e9
    assert isinstance(parse_scalar("1e9"), float)
    assert parse_scalar("off") == "off"
    assert parse_scalar("010") == 10
