"""Sentences: what they say, and that they follow from the rows."""

from __future__ import annotations

import pytest

from essim.cli.pages import sweep_sentences
from essim.results.columns import COLUMNS
from essim.simulate.plan import load_scenario
from essim.simulate.sweep import Simulator
from reports.verdict import machine_verdict, run_verdict, sweep_verdict


def verdict(scenario_file, more: str = "", *overrides: str) -> list[str]:
    base, points = load_scenario(scenario_file(more=more), overrides)
    simulator = Simulator()
    if not more:
        return [run_verdict(simulator.rows([base])[0], base.compare.baseline)]
    return sweep_sentences(points, simulator.rows(points), simulator)


SWEEP = """
sweep:
  routing: [gpu-target, gpu-target-fused, cpu-mid]
  workload.batch: [1, 4, 8]
  workload.output_tokens: [128, 8192]
"""


def test_it_finds_the_batch_at_which_early_routing_stops_paying(scenario_file) -> None:
    sentences = verdict(scenario_file, SWEEP)
    (stepwise,) = [s for s in sentences if s.startswith("Against gpu-target, cpu-mid")]
    (fused,) = [s for s in sentences if s.startswith("Against gpu-target-fused, cpu-mid")]
    assert "stops paying at batch 3 at 8192 output tokens" in stepwise
    assert "stops paying at batch 2 at 8192 output tokens" in fused
    assert "at batch 8, where 65% of the step is exposed routing." in stepwise
    for batch, pays in ((2, True), (3, False)):
        overrides = [f"workload.batch={batch}", "workload.output_tokens=8192"]
        base, _ = load_scenario(scenario_file(), overrides)
        assert (Simulator().rows([base])[0]["decode_gain_frac"] > 0) == pays


def test_it_names_the_fastest_routing_of_every_batch(scenario_file) -> None:
    fastest = [s for s in verdict(scenario_file, SWEEP) if s.startswith("Fastest")]
    assert [s.split(":")[0] for s in fastest] == [
        f"Fastest at batch {batch} and 8192 output tokens" for batch in (1, 4, 8)
    ]
    assert "cpu-mid" in fastest[0]
    assert "gpu-target-fused" in fastest[2]


def test_one_batch_has_no_break_even(scenario_file) -> None:
    more = "sweep: {routing: [gpu-target, cpu-mid]}\n"
    against = [s for s in verdict(scenario_file, more) if s.startswith("Against")]
    assert len(against) == 1
    assert against[0].startswith("Against gpu-target, cpu-mid gains +8.")


def test_settings_are_told_apart_by_what_differs(scenario_file) -> None:
    more = "sweep:\n  routing.cpu_threads: [1, 8]\n  workload.batch: [1, 4]\n"
    sentences = verdict(scenario_file, more)
    assert {s.split("]")[0] for s in sentences} == {"[cpu_threads 1", "[cpu_threads 8"}
    many = "sweep: {routing.cpu_threads: [1, 2, 4, 8, 15]}\n"
    assert len(verdict(scenario_file, many)) == 5


def test_points_that_do_not_run_are_counted(scenario_file) -> None:
    more = "sweep: {workload.batch: [1, 1000]}\n"
    assert verdict(scenario_file, more)[-1].startswith("1 of 2 points do not run, such as: needs")


def test_a_routing_that_does_not_run_at_the_longest_output_is_said() -> None:
    def row(routing: str, anchor: str, output: int, rate: float | None):
        found = dict.fromkeys(COLUMNS) | {"routing": routing, "anchor": anchor, "batch": 1}
        found |= {"output_tokens": output, "decode_tokens_per_s": rate, "decode_gain_frac": 0.0}
        return found | {"status": "ok" if rate else "infeasible", "reason": "too large"}

    rows = [row("gpu-target", "target", output, 100.0) for output in (128, 8192)]
    rows += [row("cpu-mid", "mid", 128, 120.0), row("cpu-mid", "mid", 8192, None)]
    assert sweep_verdict(rows, ["gpu-target"] * 4, lambda i, batch, baseline: rows[i]) == [
        "cpu-mid does not run at 8192 output tokens.",
        "Fastest at batch 1 and 8192 output tokens: gpu-target, 100 tokens/s (unknown over dense "
        "attention).",
        "1 of 4 points do not run, such as: too large.",
    ]


def test_single_points(scenario_file) -> None:
    (early,) = verdict(scenario_file)
    assert early.startswith("rocketkv with cpu-mid decodes 8.4% faster than gpu-target (ceiling")
    (base,) = verdict(scenario_file, "", "routing=gpu-target")
    assert "is the baseline; routing that cost nothing would gain +13.4%" in base
    (dense,) = verdict(scenario_file, "", "selector={kind: dense}")
    assert dense.startswith("dense needs no routing; 0.0% of each step")
    (one,) = verdict(scenario_file, "", "workload.output_tokens=1")
    assert one == "One output token is prefill alone: there is no decode step and no TPOT."
    (none,) = verdict(scenario_file, "", "workload.batch=1000")
    assert none.startswith("This point does not run: needs")


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
