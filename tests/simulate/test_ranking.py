"""Selectors of a sweep on one scale."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from essim.simulate.plan import load_scenario
from essim.simulate.ranking import rank, sentences
from essim.simulate.sweep import Simulator

ROCKETKV = (
    "{kind: rocketkv, prompt_budget: 4096, page_tokens: 4, top_pages: 32, kv_block_tokens: 4}"
)
SELECTORS = f"[{{kind: dense}}, {ROCKETKV}, {{kind: snapkv}}, {{kind: quoka}}]"


@pytest.fixture
def ranked(scenario_file):
    sweep = (
        f"sweep: {{selector: {SELECTORS}, routing: [gpu-target, gpu_side-mid], "
        "workload.input_tokens: [8192, 16384, 65536]}\n"
    )
    _, points = load_scenario(scenario_file(more=sweep), ("hardware=h200-sxm",))
    return points, Simulator().rows(points)


def test_each_selector_has_a_row_and_the_fastest_is_first(ranked) -> None:
    rows = {row["selector"]: row for row in rank(*ranked, 65536)}
    assert list(rows)[-1] in ("dense", "quoka")
    assert {kind: row["class"] for kind, row in rows.items()} == {
        **{"rocketkv": "A", "snapkv": "C", "dense": "C", "quoka": "D"}
    }
    rates = [row["decode_tokens_per_s"] for row in rows.values()]
    assert rates == sorted(rates, reverse=True)
    rocket = rows["rocketkv"]
    assert rocket["routing"] == rocket["early_routing"] == "gpu_side-mid"
    assert 0 < rocket["early_gain_frac_p5"] < rocket["early_gain_frac"]
    assert rows["snapkv"]["early_gain_frac"] is None


def test_it_says_from_which_length_a_selector_beats_dense_attention(ranked) -> None:
    points, rows = ranked
    found = {row["selector"]: row for row in rank(points, rows, 65536)}
    gains = {
        row["input_tokens"]: row["gain_over_dense_frac"]
        for row in rows
        if (row["selector"], row["routing"]) == ("rocketkv", "gpu-target")
    }
    assert [tokens for tokens, gain in gains.items() if gain > 0] == [65536]
    assert found["rocketkv"]["beats_dense_from_tokens"] == 65536
    assert found["snapkv"]["beats_dense_from_tokens"] == 8192
    assert found["quoka"]["beats_dense_from_tokens"] is None
    assert found["dense"]["beats_dense_from_tokens"] is None


def test_sentences_answer_and_keep_to_what_is_sure(ranked) -> None:
    points, rows = ranked
    said = list(sentences(rank(points, rows, 65536), 65536))
    assert said[0].startswith("Fastest at 65,536 input tokens: ")
    assert said[1].startswith("As fast within what prices are off by: ")
    assert "adds most to rocketkv" in said[2]
    assert said[2].endswith("It surely adds to 1 of 1 that can be routed early.")
    assert said[3].endswith("at any length here: quoka.")


def test_a_length_at_which_nothing_runs_is_said() -> None:
    assert list(sentences([], 100)) == ["No selector runs at 100 input tokens."]


@pytest.mark.parametrize("kind", ["dense", "loki", "rocketkv"])
def test_the_ranking_that_the_docs_show_is_what_is_predicted(kind: str) -> None:
    root = Path(__file__).parents[2]
    with (root / "reports" / "data" / "zoo" / "rank.csv").open() as file:
        shown = {row["selector"]: row for row in csv.DictReader(file)}
    _, points = load_scenario(root / "scenarios" / "zoo.yaml", ("workload.input_tokens=131072",))
    own = [point for point in points if point.selector.kind in (kind, "dense")]
    found = {row["selector"]: row for row in rank(own, Simulator().rows(own), 131072)}[kind]
    for key in ("tpot_s", "gain_over_dense_frac"):
        assert found[key] == pytest.approx(float(shown[kind][key]), rel=1e-3, abs=1e-9), key
    assert found["routing"] == shown[kind]["routing"]
