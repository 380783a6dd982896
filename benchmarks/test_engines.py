"""How many decode steps a second the engines simulate, on the shipped 40K scenario's durations."""

from __future__ import annotations

import time

import pytest

from essim.engines import finish_des, finish_maxplus
from essim.engines.graph import Graph
from essim.hardware.profile import shipped
from essim.simulate.plan import load_scenario
from essim.simulate.replay import run_decode
from essim.simulate.sweep import Simulator

DES_STEPS = 20
ROUTINGS = ["gpu-target", "gpu_side-mid", "cpu-target", "cpu-in", "cpu-mid"]


@pytest.mark.parametrize("routing", ROUTINGS)
def test_full_lanes_over_simpy(routing: str, benchmark, ratio) -> None:
    base, _ = load_scenario(shipped("scenarios") / "earlyselect-40k.yaml")
    point, steps = base.with_routing(routing), base.workload.output_tokens - 1
    run = run_decode(point, Simulator().profile(point.hardware), finish_maxplus, steps)
    last = [Graph.of(run.ops).last_main]
    benchmark.pedantic(
        finish_maxplus, (run.ops, run.durations_ps, last), rounds=20, warmup_rounds=1
    )
    fast = steps / benchmark.stats.stats.min
    few = [row[:DES_STEPS] for row in run.durations_ps]
    start = time.process_time()
    finish_des(run.ops, few, last)
    slow = DES_STEPS / (time.process_time() - start)
    what = f"full lanes over SimPy, {routing}"
    ratio(what, f"{fast / slow:,.0f}", f"{fast:,.0f} steps/s over {slow:,.0f}")
