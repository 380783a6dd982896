"""Sentences: what they say, and that they follow from the rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from essim.cli.pages import sweep_sentences
from essim.results.columns import COLUMNS
from essim.results.notes import PROVISIONAL, QUALITY_NOTE
from essim.simulate.plan import load_scenario
from essim.simulate.sweep import Simulator
from reports.compare_verdict import comparison_verdict, machine_verdict
from reports.verdict import Verdict, run_notes, run_verdict, sweep_verdict


def of_a_run(scenario_file, *overrides: str) -> str:
    base, _ = load_scenario(scenario_file(), overrides)
    return run_verdict(Simulator().rows([base])[0], base.compare.baseline)


def of_a_sweep(scenario_file, more: str, *overrides: str) -> Verdict:
    _, points = load_scenario(scenario_file(more=more), overrides)
    simulator = Simulator()
    return sweep_sentences(points, simulator.rows(points), simulator)


MAIN, QUEST = (
    Path(__file__).parents[2] / "scenarios" / f"{name}.yaml"
    for name in ("earlyselect-40k", "quest-32k")
)
ENDS = ("p5", "p95")
SWEEP = """
sweep:
  routing: [gpu-target, gpu-target-fused, cpu-mid]
  workload.batch: [1, 4, 8]
  workload.output_tokens: [128, 8192]
"""


def test_it_finds_the_batch_at_which_early_routing_stops_paying(scenario_file) -> None:
    found = of_a_sweep(scenario_file, SWEEP)
    (stepwise,) = [s for s in found.more if s.startswith("Against gpu-target, cpu-mid")]
    (fused,) = [s for s in found.more if s.startswith("Against gpu-target-fused, cpu-mid")]
    assert "stops paying at batch 3 at 8192 output tokens" in stepwise
    assert "stops paying at batch 2 at 8192 output tokens" in fused
    assert "at batch 8, where 65% of the step is exposed routing." in stepwise
    (routing,) = [s for s in found.sentences if s.startswith("cpu-mid gains")]
    assert "at batch 8, and stops paying at batch 3; " in routing
    for batch, pays in ((2, True), (3, False)):
        overrides = [f"workload.batch={batch}", "workload.output_tokens=8192"]
        base, _ = load_scenario(scenario_file(), overrides)
        assert (Simulator().rows([base])[0]["decode_gain_frac"] > 0) == pays


def test_five_sentences_answer_the_question_first_and_quality_comes_last(scenario_file) -> None:
    answer, *routings, provisional, quality = of_a_sweep(scenario_file, SWEEP).sentences
    assert answer.startswith(
        "At 8192 output tokens early routing pays at 1 of 3 swept points, against the fastest "
        "routing that waits for the layer's own query: cpu-mid gains -"
    )
    assert [text.split(" ")[0] for text in routings] == ["gpu-target-fused", "cpu-mid"]
    assert provisional == PROVISIONAL
    assert quality == QUALITY_NOTE


def test_each_routing_says_its_interval_and_how_much_of_it_is_measured() -> None:
    simulator = Simulator()
    base, points = load_scenario(MAIN, ["workload.output_tokens=64", "workload.batch=2"])
    rows = simulator.rows(points)
    found = sweep_sentences(points, rows, simulator)
    (mid,) = [s for s in found.sentences + found.more if s.startswith("cpu-mid gains")]
    (row,) = [row for row in rows if row["routing"] == "cpu-mid"]
    low, high = row["decode_gain_frac_p5"], row["decode_gain_frac_p95"]
    assert mid == (
        f"cpu-mid gains {row['decode_gain_frac']:+.1%} (90% interval {low:+.1%} to {high:+.1%}) "
        "over gpu-target at batch 2; all of it is measured or interpolated."
    )
    assert not [s for s in found.sentences if s.startswith("Only")]
    row = simulator.rows([base])[0]
    rate, (low, high) = row["decode_tokens_per_s"], (row[f"decode_tokens_per_s_{p}"] for p in ENDS)
    assert run_notes(row, provisional=False) == [
        f"It decodes {rate:.0f} tokens/s (90% interval {low:.0f} to {high:.0f}); "
        "all of it is measured or interpolated.",
        QUALITY_NOTE,
    ]


def test_a_warning_names_the_point_of_which_the_least_is_measured() -> None:
    simulator = Simulator()
    _, points = load_scenario(QUEST, ["workload.output_tokens=32"])
    rows = simulator.rows(points)
    (weak,) = [s for s in sweep_sentences(points, rows, simulator).sentences if "Only" in s]
    least = min(rows, key=lambda row: row["measured_frac"])
    assert weak.startswith(
        f"Only {least['measured_frac']:.0%} of the decode time of cpu-mid at batch "
        f"{least['batch']} is measured or interpolated; the rest is transferred (cpu_route), "
        "roofline (cpu_update)"
    )


def test_one_batch_has_no_break_even(scenario_file) -> None:
    found = of_a_sweep(scenario_file, "sweep: {routing: [gpu-target, cpu-mid]}\n")
    against = [s for s in found.more if s.startswith("Against")]
    assert len(against) == 1
    assert against[0].startswith("Against gpu-target, cpu-mid gains +8.")
    assert found.sentences[0].startswith("Early routing pays here, against the fastest ")


def test_settings_are_told_apart_by_what_differs(scenario_file) -> None:
    more = "sweep:\n  routing.cpu_threads: [1, 8]\n  workload.batch: [1, 4]\n"
    found = of_a_sweep(scenario_file, more)
    assert {s.split("]")[0] for s in found.more if s.startswith("[")} == {
        "[cpu_threads 1",
        "[cpu_threads 8",
    }
    assert " at cpu threads 1, batch 4 to +" in found.sentences[2]
    many = "sweep: {routing.cpu_threads: [1, 2, 4, 8, 15]}\n"
    more = of_a_sweep(scenario_file, many).more
    assert len([s for s in more if s.startswith("[")]) == 5


def test_points_that_do_not_run_are_counted(scenario_file) -> None:
    found = of_a_sweep(scenario_file, "sweep: {workload.batch: [1, 1000]}\n")
    assert [s for s in found.sentences if s.startswith("1 of 2 points do not run, such as: needs")]
    assert len(found.sentences) <= 5


def test_a_routing_that_does_not_run_at_the_longest_output_is_said() -> None:
    def row(routing: str, anchor: str, output: int, rate: float | None):
        found = dict.fromkeys(COLUMNS) | {"routing": routing, "anchor": anchor, "batch": 1}
        found |= {"output_tokens": output, "decode_tokens_per_s": rate, "decode_gain_frac": 0.0}
        return found | {"status": "ok" if rate else "infeasible", "reason": "too large"}

    rows = [row("gpu-target", "target", output, 100.0) for output in (128, 8192)]
    rows += [row("cpu-mid", "mid", 128, 120.0), row("cpu-mid", "mid", 8192, None)]
    found = sweep_verdict(rows, ["gpu-target"] * 4, lambda i, batch, baseline: rows[i])
    assert found == Verdict(
        [
            "At 8192 output tokens gpu-target decodes 100 tokens/s at batch 1; nothing is said of "
            "its prices.",
            "1 of 4 points do not run, such as: too large.",
            QUALITY_NOTE,
        ],
        ["cpu-mid does not run at 8192 output tokens."],
    )


def test_single_points(scenario_file) -> None:
    early = of_a_run(scenario_file)
    assert early.startswith("rocketkv with cpu-mid decodes 8.4% faster than gpu-target (")
    base = of_a_run(scenario_file, "routing=gpu-target")
    assert "is the baseline; routing that cost nothing would gain +13.4%" in base
    dense = of_a_run(scenario_file, "selector={kind: dense}")
    assert dense.startswith("dense needs no routing; 0.0% of each step")
    one = of_a_run(scenario_file, "workload.output_tokens=1")
    assert one == "One output token is prefill alone: there is no decode step and no TPOT."
    none = of_a_run(scenario_file, "workload.batch=1000")
    assert none.startswith("This point does not run: needs")


def test_a_comparison_says_which_measurements_are_bad() -> None:
    def pair(mode: str, error: float, unsteady: bool):
        pair = {"mode": mode, "batch": 1, "context_tokens": 512, "error_frac": error}
        return pair | {"unsteady": unsteady}

    pairs = [pair("dense", 0.01, False), pair("cpu-in", -0.03, False), pair("cpu-mid", 0.4, True)]
    total = {"bias_frac": 0.1, "mape_frac": 0.15, "worst_frac": 0.4, "worst_cell": "cpu-mid"}
    result = {"pairs": pairs, "dropped": [], "errors": [total], "gains": [], "coverage": None}
    assert comparison_verdict(result, {}, []) == Verdict(
        [
            "3 cells are both predicted and measured: bias +10.00%, MAPE 15.00%, worst +40.00% "
            "(cpu-mid, measured unsteadily).",
            "1 of 3 measured cells are unsteady (cpu-mid): their repetitions, or the steps within "
            "one, are more than 10% apart; without them MAPE is 2.00%.",
            QUALITY_NOTE,
        ],
        [],
    )


@pytest.mark.parametrize(
    ("predicted", "measured", "sentences"),
    [
        (["AMD EPYC", "AMD EPYC"], None, []),
        (["AMD EPYC", "AMD EPYC"], "AMD EPYC", []),
        (["AMD EPYC", "AMD EPYC"], "other", ["Predicted for AMD EPYC, measured on other."]),
        (["A", "B", "other"], "other", ["Predicted for A and B, measured on other."]),
    ],
)
def test_a_run_on_another_machine_is_said(
    predicted: list[str], measured: str | None, sentences: list[str]
) -> None:
    assert machine_verdict(predicted, measured) == sentences
