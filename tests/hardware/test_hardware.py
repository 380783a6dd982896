"""Hardware profiles: what is read, and what is refused with file and line."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from firstday import FIRST_DAY
from ruamel.yaml import YAML

from essim.errors import InputError
from essim.hardware.profile import find_profile, load_profile, shipped
from essim.methods.routing import PRESETS as ROUTINGS
from essim.methods.routing import Routing
from essim.methods.selectors.rocketkv import RocketKV
from essim.model.shape import PRESETS
from essim.step.kinds import Case, Point, priced_names
from essim.step.ops import decode_step
from essim.step.price import CostModel

SHIPPED = sorted(shipped("hardware_profiles").glob("*.yaml"))
H200 = FIRST_DAY


@pytest.fixture
def profile(tmp_path: Path):
    """Return a function that writes the H200 profile with some text replaced."""

    def write(old: str = "", new: str = "", table: str = "", content: str = "") -> Path:
        text = H200.read_text()
        assert old in text
        (tmp_path / "h.yaml").write_text(text.replace(old, new, 1))
        (tmp_path / "h").mkdir()
        for file in H200.with_suffix("").glob("*.csv"):
            (tmp_path / "h" / file.name).write_text(file.read_text())
        if table:
            (tmp_path / "h" / table).write_text(content)
        return tmp_path / "h.yaml"

    return write


@pytest.mark.filterwarnings("ignore:.*are faster than a smaller one")
@pytest.mark.parametrize("file", SHIPPED, ids=lambda f: f.stem)
def test_shipped_profiles_load_and_every_table_file_is_named(file: Path) -> None:
    found = load_profile(file)
    assert found.spec.name == file.stem
    on_disk = {path.stem for path in file.with_suffix("").glob("*.csv")}
    assert on_disk == set(found.tables)


def test_the_digest_covers_the_tables(profile) -> None:
    content = (H200.with_suffix("") / "norm.csv").read_text().replace("2e-6", "3e-6")
    assert load_profile(profile(table="norm.csv", content=content)).digest != (
        load_profile(H200).digest
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{value: 141 GB,", "{value: 141e9,", "h.yaml:10: gpu.memory_bytes.value: 141000000000.0"),
        ("{value: 141 GB,", "{value: 141 GB/s,", "unknown unit 'GB/s' for bytes"),
        (
            "{value: 141 GB,",
            "{value: 0 GB,",
            "gpu.memory_bytes.value: must be above 0 (got '0 GB')",
        ),
        ("source: published, reference: NVIDIA H200 datasheet, ", "", "source: required, but"),
        ("source: measured, reference: empty", "source: guessed, reference: empty", "launch_s.sou"),
        ("  launch_s:", "  lanch_s:", "gpu.lanch_s: unknown key. Did you mean 'gpu.launch_s'?"),
        (
            "date: 2024-11}",
            "date: last year}",
            "gpu.memory_bytes.date: must be a date (got 'last year')",
        ),
        ("name: h200-sxm", "nam: h200-sxm", "h.yaml:2: nam: unknown key. Did you mean 'name'?"),
        ("  norm:\n", "  act_plain:\n", "act_plain.csv does not exist"),
        ("  norm:\n", "  norm:\n    jumps: {row: [1]}\n", "jumps along 'row', no axis. Did"),
        ("  norm:\n", "  norm:\n    jumps: {rows: [3]}\n", "rows: 3 is no tick with one behind"),
        ("  norm:\n", "  norm:\n    jumps: {rows: [8]}\n", "rows: 8 is no tick with one behind"),
        ("hidden: [4096]", "hidden: [9..3]", "'9..3' is no span of 2 to 65536 numbers. Wr"),
        ("hidden: [4096]", "hidden: [9...12]", "'9...12' is no span of 2 to 65536 numbers"),
        ("hidden: [4096]", "hidden: [1..9999999999]", "'1..9999999999' is no span of 2 to 65"),
    ],
)
def test_a_bad_profile_is_refused_with_file_line_and_key(profile, old, new, message) -> None:
    with pytest.raises(InputError) as error:
        load_profile(profile(old, new))
    assert message in str(error.value)


def test_a_span_of_settings_stands_for_its_whole_numbers(profile) -> None:
    file = profile("{hidden: [4096]}", "{hidden: [2048, 4096..4098]}")
    assert load_profile(file).spec.tables["norm"].holds_for == {"hidden": [2048, 4096, 4097, 4098]}


def test_a_bad_table_is_refused_with_its_own_file_and_line(profile) -> None:
    file = profile(table="norm.csv", content="rows,p50_s\n1,2e-6\n8,-2e-6\n")
    with pytest.raises(InputError, match=r"norm.csv:3: p50_s: '-2e-6' is not"):
        load_profile(file)


def test_profiles_of_the_working_folder_come_first(tmp_path, monkeypatch, profile) -> None:
    file = profile()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hardware_profiles").mkdir()
    mine = tmp_path / "hardware_profiles" / "h200-sxm.yaml"
    mine.write_text(file.read_text())
    assert find_profile("h200-sxm", Path()).resolve() == mine
    hints = {"h100": "Did you mean 'h100-sxm'", "no-such": "Known: a100-80gb, a100-sxm-80gb, b200,"}
    for name, hint in hints.items():
        with pytest.raises(ValueError, match=rf"no hardware profile '{name}' \(.*\)\. {hint}"):
            find_profile(name, Path())


def test_a_range_has_two_corners_that_bound_the_middle() -> None:
    profile = load_profile(shipped("hardware_profiles") / "rtx-6000d-xeon-8481c.yaml")
    slow, fast = profile.corner("slow"), profile.corner("fast")
    assert slow is not None
    assert fast is not None
    bandwidths = [p.spec.gpu.bandwidth_bytes_per_s.value for p in (slow, profile, fast)]
    assert bandwidths == [1.12e12, 1.31e12, 1.49e12]
    launches = [p.spec.gpu.launch_s.value for p in (slow, profile, fast)]
    assert launches == [2e-6, 1e-6, 5e-7]
    assert slow.spec.gpu.memory_bytes.value == 84e9
    assert load_profile(H200).corner("slow") is None


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ("{value: 141 GB, low: 140 GB,", "a range needs both low and high"),
        ("{value: 141 GB, low: 150 GB, high: 160 GB,", "is not between low 1.5e+11 and high"),
        ("{low: 150 GB, high: 160 GB,", "gpu.memory_bytes.value: required, but missing"),
    ],
)
def test_a_bad_range_is_refused(profile, new: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        load_profile(profile("{value: 141 GB,", new))
    assert message in str(error.value)


@pytest.mark.filterwarnings("ignore:.*are faster than a smaller one")
def test_two_profiles_with_the_same_table_are_pointed_at(tmp_path, monkeypatch, profile) -> None:
    from essim.cli.listing import hardware

    profile()
    (tmp_path / "hardware_profiles").symlink_to(tmp_path)
    (tmp_path / "copy.yaml").write_text((tmp_path / "h.yaml").read_text())
    (tmp_path / "copy").symlink_to(tmp_path / "h")
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning, match=r"table \w+ of h is that of copy"):
        entries = {entry["name"]: entry["about"] for entry in hardware()}
    assert entries["h"].startswith("provisional; NVIDIA H200 SXM")
    yaml, file = YAML(), tmp_path / "h.yaml"
    spec = yaml.load(file)
    for table in spec["tables"].values():
        table["note"] = "measured with copy"
    yaml.dump(spec, file)
    with warnings.catch_warnings(record=True) as said:
        hardware()
    assert not [w for w in said if "is that of" in str(w.message)]


def test_a_constant_that_prices_nothing_is_refused(profile) -> None:
    with pytest.raises(InputError, match=r"constants.pubish: no op is priced by this"):
        load_profile(profile("  publish: {", "  pubish: {"), priced_names())


def test_a_table_that_prices_nothing_is_refused(profile) -> None:
    message = r"tables.nrm: no op is priced by this. Did you mean 'norm'"
    with pytest.raises(InputError, match=message):
        load_profile(profile("  norm:", "  nrm:"), priced_names())


@pytest.mark.parametrize(
    ("value", "ranged"),
    [
        ("bandwidth_bytes_per_s: {value: 4.3 TB/s,", "low: 2.1 TB/s, high: 8.6 TB/s,"),
        ("launch_s: {value: 0.50 us,", "low: 0.1 us, high: 4 us,"),
        ("cores: {value: 16,", "low: 8, high: 32,"),
    ],
)
@pytest.mark.slow
@pytest.mark.parametrize("channels", [8, 128])
@pytest.mark.parametrize("routing", [ROUTINGS["gpu-target-fused"], ROUTINGS["cpu-mid"]])
def test_the_corners_of_a_profile_with_tables_bound_every_price(
    profile, value, ranged, channels, routing
) -> None:
    middle = load_profile(profile(value, f"{value} {ranged}"))
    asked = Routing(**routing, channels=channels)
    selector = RocketKV(prompt_budget=4096, page_tokens=8, top_pages=32, kv_block_tokens=8)
    case = Case(PRESETS["llama-3.1-8b"], selector, asked)
    at = Point(2, 2, np.array([100, 8192, 100000], dtype=np.int64))
    for op in decode_step(case.model, selector, asked):
        fast, value_s, slow = (
            CostModel(p, case).price(op.kind, at).mean_s
            for p in (middle.corner("fast"), middle, middle.corner("slow"))
        )
        assert (fast <= value_s).all(), op.kind
        assert (value_s <= slow).all(), op.kind


def test_a_table_in_the_wrong_unit_is_an_error_not_an_overflow(profile, scenario_file) -> None:
    from essim.simulate.plan import load_scenario
    from essim.simulate.sweep import Simulator

    file = profile(table="norm.csv", content="rows,p50_s\n1,2e6\n40960,2e6\n")
    base, _ = load_scenario(scenario_file(), [f"hardware={file}"])
    with pytest.raises(InputError, match=r"norm takes 2e\+06 s on h200-sxm, too long to simulate"):
        Simulator().rows([base])


def test_the_ends_of_a_ranged_constant_are_corners_too(profile) -> None:
    ranged = "await: {value: 2.25 us, low: 1 us, high: 5 us,"
    slow = load_profile(profile("await: {value: 2.25 us,", ranged)).corner("slow")
    assert slow is not None
    assert slow.spec.constants["await"].value == pytest.approx(5e-6)
    assert slow.spec.constants["publish"].value == pytest.approx(2.25e-6)
