"""Rows: throughput, gains, exposure, and what each depends on."""

from __future__ import annotations

import numpy as np
import pytest

from essim.engines import finish_maxplus
from essim.results.columns import COLUMNS
from essim.simulate.jitter import normals
from essim.simulate.plan import load_scenario
from essim.simulate.sweep import Simulator

MAIN = "routing: [gpu-target, gpu-target-fused, cpu-target, cpu-in, cpu-mid, gpu_side-mid]"


def simulate(file, *overrides: str, **options) -> list[dict]:
    _, points = load_scenario(file, overrides)
    return Simulator(**options).rows(points)


def test_rates_follow_from_times(scenario_file) -> None:
    (row,) = simulate(scenario_file(), "workload.batch=4")
    steps = 15
    assert row["decode_tokens_per_s"] == pytest.approx(4 * steps / row["decode_s"])
    assert row["tpot_s"] == row["step_s"] == pytest.approx(row["decode_s"] / steps)
    total = row["prefill_s"] + row["decode_s"]
    assert row["output_tokens_per_s"] == pytest.approx(4 * 16 / total)
    assert list(COLUMNS) == list(row)


def test_gpu_target_is_the_sum_of_its_prices(scenario_file) -> None:
    """One chain: 32 layers at context 4097, of which 31 route inline."""
    (row,) = simulate(scenario_file(), "routing=gpu-target", "workload.output_tokens=2")
    gemms = 16.3 + 13.8 + 56.6 + 32.3
    rope = 2.0 + 2 * 6144 * 2 / 4.3e6
    layer = gemms + 2 * 2.0 + 2.0 + rope
    dense = 11.4 + 10.0 / 8192
    route = 19.5 + 8.8 / 8192
    embed = 2.0 + 2 * 4096 * 2 / 4.3e6
    step_us = embed + 32 * layer + dense + 31 * (3.8 + route) + 2.0 + 300.0
    assert row["step_s"] == pytest.approx(step_us * 1e-6, rel=1e-6)
    assert row["exposed_routing_s"] == pytest.approx(31 * route * 1e-6, rel=1e-6)
    assert row["decode_gain_frac"] == 0.0
    assert row["gain_ceiling_frac"] == pytest.approx(31 * route / (step_us - 31 * route), rel=1e-6)


def test_the_context_grows_by_one_each_step(scenario_file) -> None:
    base, _ = load_scenario(scenario_file(), ["routing=gpu-target", "selector={kind: dense}"])
    run = Simulator().decode(base)
    grown = run.prices["attn_dense"].mean_s
    assert len(grown) == 15
    # Linear between its points: each step adds one token's worth.
    per_token = (48.7e-6 - 21.4e-6) / (40960 - 12288)
    assert grown[0] == pytest.approx(48.7e-6 + per_token)
    assert grown[-1] == pytest.approx(48.7e-6 + 15 * per_token)
    assert (np.diff(run.step_ps) > 0).all()


def test_a_budgeted_cache_reads_its_true_mean_not_the_mean_of_the_ends() -> None:
    """Prompt 1024, 8192 steps, budget 2048: the cache before the append has mean 1983.94."""
    tokens = np.minimum(1024 + np.arange(8192), 2048)
    assert tokens.mean() == pytest.approx(1983.94, abs=0.005)
    from essim.methods.selectors.rocketkv import RocketKV

    selector = RocketKV(prompt_budget=1024, page_tokens=1, top_pages=2047)
    context = selector.kept_prompt_tokens(1024) + np.arange(0, 8192)
    assert selector.attended_tokens(context).mean() == pytest.approx(1983.94, abs=0.005)


def test_one_output_token_has_no_tpot(scenario_file) -> None:
    (row,) = simulate(scenario_file(), "workload.output_tokens=1")
    assert row["status"] == "ok"
    for key in ("tpot_s", "step_s", "decode_tokens_per_s", "exposed_routing_s", "measured_frac"):
        assert row[key] is None
    assert row["decode_s"] == 0.0
    assert row["output_tokens_per_s"] == pytest.approx(1 / row["prefill_s"])


def test_a_context_below_the_budget_reads_dense_and_routing_is_pure_overhead(scenario_file) -> None:
    overrides = ("workload.input_tokens=50", "model=smollm2-135m", "routing=gpu-target")
    (row,) = simulate(scenario_file(), *overrides)
    assert row["status"] == "ok"
    assert row["attended_tokens"] == 65 == 50 + 15
    assert row["exposed_routing_s"] > 0
    assert row["gain_over_dense_frac"] < 0


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (("model=llama-3.1-70b",), "of GPU memory, which has 141.0 GB"),
        (("workload.batch=1000",), "of GPU memory"),
        (("model=llama-3-8b",), "40976 tokens exceed the model's context of 8192"),
        (("routing.cpu_threads=64",), "64 router threads on 16 cores"),
    ],
)
def test_a_point_that_does_not_fit_is_a_row_with_a_reason(scenario_file, overrides, reason) -> None:
    (row,) = simulate(scenario_file(), *overrides)
    assert row["status"] == "infeasible"
    assert reason in row["reason"]
    for key in ("decode_tokens_per_s", "output_tokens_per_s", "prefill_s", "decode_gain_frac"):
        assert row[key] is None


def test_a_batch_is_prefilled_one_sequence_at_a_time(scenario_file) -> None:
    one, four = simulate(scenario_file(more="sweep: {workload.batch: [1, 4]}\n"))
    assert four["prefill_s"] == pytest.approx(4 * one["prefill_s"])


def test_a_short_run_is_the_beginning_of_a_long_one(scenario_file) -> None:
    file = scenario_file(more="sweep: {workload.output_tokens: [100, 700]}\n")
    short, long = simulate(file)
    (alone,) = simulate(scenario_file(), "workload.output_tokens=100")
    assert alone == short
    assert long["decode_s"] > short["decode_s"]


def test_both_engines_give_the_same_rows(scenario_file) -> None:
    file = scenario_file(more="sweep:\n  routing: [cpu-target, cpu-in, cpu-mid, cpu-mix]\n")
    fast = simulate(file, "workload.batch=8")
    slow = simulate(file, "workload.batch=8", engine="des")
    assert [row | {"engine": ""} for row in fast] == [row | {"engine": ""} for row in slow]


def test_the_seed_moves_only_what_jitters(scenario_file) -> None:
    file = scenario_file(more="sweep:\n  routing: [gpu-target, cpu-target]\n")
    target_0, cpu_0 = simulate(file, "workload.output_tokens=256")
    target_1, cpu_1 = simulate(file, "workload.output_tokens=256", seed=1)
    assert target_0["step_s"] == target_1["step_s"]
    assert cpu_0["step_s"] != cpu_1["step_s"]
    assert cpu_0["step_s"] == pytest.approx(cpu_1["step_s"], rel=2e-3)


def test_exposure_is_the_expectation_of_a_maximum(scenario_file) -> None:
    """The median router hides in the window of mid; its tail does not."""
    run = Simulator().decode(
        load_scenario(
            scenario_file(),
            [
                "workload.output_tokens=257",
                "workload.input_tokens=12288",
                "selector.prompt_budget=12288",
            ],
        )[0]
    )
    route = run.prices["cpu_route"]
    window_s = 111.7e-6
    assert route.mean_s[0] < window_s < 120e-6
    at_the_mean = [np.rint(run.prices[op.kind].mean_s * 1e12).astype(np.int64) for op in run.ops]
    last_main = len(run.ops) - 1 - [op.stream for op in run.ops][::-1].index("gpu")
    calm = finish_maxplus(run.ops, at_the_mean, [last_main])[0]
    assert run.step_ps.mean() > calm.mean()


def test_jitter_is_standard_normal_even_over_short_runs() -> None:
    z = normals(0, 31, 128)
    assert z.shape == (31, 128)
    assert abs(z.mean()) < 2e-3
    assert z.std() == pytest.approx(1.0, abs=0.015)
    assert np.exp(0.5 * z).mean() == pytest.approx(np.exp(0.125), rel=3e-3)
    np.testing.assert_array_equal(normals(0, 31, 1000)[:, :128], z)
    assert abs(np.corrcoef(normals(0, 2, 6400))[0, 1]) < 0.05
    assert (normals(1, 31, 128) != z).any()


def test_the_main_scenario_answers_the_question() -> None:
    from essim.hardware.profile import shipped

    file = shipped("scenarios") / "earlyselect-40k.yaml"
    rows = {(row["routing"], row["batch"], row["output_tokens"]): row for row in simulate(file)}
    assert len(rows) == 7 * 3 * 7
    assert {row["status"] for row in rows.values()} == {"ok"}
    lengths = [128, 256, 512, 1024, 2048, 4096, 8192]
    gains = [rows["cpu-mid", 1, n]["decode_gain_frac"] for n in lengths]
    assert gains == sorted(gains)
    assert gains[0] > 0.05
    assert gains[-1] - gains[0] > 0.02
    # At batch 8 the CPU router is a large part of the step and hides no more.
    crowded = rows["cpu-mid", 8, 8192]
    assert crowded["exposed_routing_s"] > 0.3 * crowded["step_s"]
    assert crowded["decode_gain_frac"] < 0
    # A fused router leaves the CPU nothing to gain; beside the main stream it still gains.
    for batch in (1, 4, 8):
        fused = rows["gpu-target-fused", batch, 8192]["decode_tokens_per_s"]
        assert rows["cpu-mid", batch, 8192]["decode_tokens_per_s"] < fused
        assert rows["gpu_side-mid-fused", batch, 8192]["decode_tokens_per_s"] > fused
    for row in rows.values():
        assert row["decode_gain_frac"] <= row["gain_ceiling_frac"]
        assert row["gpu_busy_frac"] <= 1.0
        assert row["cpu_busy_frac"] <= 1.0


def test_ranges_of_a_profile_give_an_interval(scenario_file) -> None:
    (row,) = simulate(scenario_file(), "hardware=rtx-6000d-xeon-8481c")
    for rate in ("decode_tokens_per_s", "output_tokens_per_s"):
        assert row[f"{rate}_low"] < row[rate] < row[f"{rate}_high"]
    assert row["measured_frac"] == 0.0
    (row,) = simulate(scenario_file())
    assert row["decode_tokens_per_s_low"] is None
