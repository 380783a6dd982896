"""A scenario whose ES-Mix assignment stands in a file of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from essim.errors import InputError
from essim.simulate.plan import load_scenario
from essim.simulate.scenario import find_scenario

MIX = ["in" if layer % 3 else "mid" for layer in range(31)]
ROUTING = "routing: cpu-mid"
PROFILED = "routing: {where: cpu, anchor: mix, profile: made/mix.yaml}"


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    file = tmp_path / "made" / "mix.yaml"
    file.parent.mkdir()
    file.write_text(f"model: some\ntau: 0.01\nmix: [{', '.join(MIX)}]\n")
    return file


def test_the_file_lies_beside_the_scenario(profile: Path, scenario_file) -> None:
    base, _ = load_scenario(scenario_file((ROUTING, PROFILED)))
    assert base.routing.anchors(32) == MIX
    assert base.with_routing("cpu-mid").routing.profile is None


def test_set_and_sweep_take_profiles(profile: Path, scenario_file) -> None:
    file = scenario_file((ROUTING, PROFILED))
    base, _ = load_scenario(file, ["routing=cpu-mid"])
    assert (base.routing.anchor, base.routing.profile) == ("mid", None)
    settings = ["routing.anchor=mix", f"routing.profile={profile}"]
    base, _ = load_scenario(scenario_file(), settings)
    assert base.routing.mix == MIX
    _, points = load_scenario(
        scenario_file((ROUTING, PROFILED), more="sweep: {routing: [cpu-mid, cpu-mix]}\n")
    )
    assert [point.routing.mix for point in points] == [None, MIX]
    more = "sweep: {routing: [cpu-mid, {where: cpu, anchor: mix, profile: made/mix.yaml}]}\n"
    _, points = load_scenario(scenario_file(more=more))
    assert [point.routing.mix for point in points] == [None, MIX]


@pytest.mark.parametrize(
    ("routing", "message"),
    [
        (
            "{where: cpu, anchor: mid, profile: made/mix.yaml}",
            "profile is given, but anchor is mid",
        ),
        ("{where: cpu, anchor: mix, profile: none.yaml}", r"none\.yaml: cannot be read"),
        ("{where: cpu, anchor: mix, mix: [in], profile: made/mix.yaml}", "both mix and profile"),
        ("{where: cpu, anchor: mix, profile: 3}", "profile"),
    ],
)
def test_what_is_wrong_is_said(profile: Path, scenario_file, routing: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_scenario(scenario_file((ROUTING, f"routing: {routing}")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: m\ntau: 0.01\nmix: [in, mid]\n", "has 2 entries, but 31 layers are routed"),
        ("model: m\ntau: 0.01\nmix: [in, late]\n", r"mix\.yaml:3: mix\.1: "),
        ("model: m\ntau: 0.01\n", "mix"),
    ],
)
def test_a_file_that_is_no_profile_is_said(
    profile: Path, scenario_file, text: str, message: str
) -> None:
    profile.write_text(text)
    with pytest.raises(InputError, match=message):
        load_scenario(scenario_file((ROUTING, PROFILED)))


def test_the_shipped_scenario_runs_with_the_profile_of_its_model() -> None:
    base, points = load_scenario(find_scenario("smollm2-mix"))
    anchors = base.routing.anchors(30)
    assert (len(anchors), anchors[:3], anchors.count("in")) == (29, ["mid", "mid", "in"], 23)
    mixed = [point for point in points if point.routing.name == "cpu-mix"]
    assert [point.routing.mix for point in mixed] == [anchors] * 3
