"""How many decode steps a second each engine simulates on the shipped 40K scenario.

Both engines run in this process on the same ops and durations; what counts is their ratio.
Run: ``python benchmarks/engines.py``
"""

from __future__ import annotations

import time
from collections.abc import Callable

from essim.engines import finish_des, finish_maxplus
from essim.engines.graph import Graph
from essim.hardware.profile import shipped
from essim.simulate.plan import load_scenario
from essim.simulate.replay import run_decode
from essim.simulate.sweep import Simulator

DES_STEPS = 40
REPEATS = 15


def best_s(call: Callable[[], object]) -> float:
    """Return the fastest of a few calls."""
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    file = shipped("scenarios") / "earlyselect-40k.yaml"
    base, points = load_scenario(file)
    steps = base.workload.output_tokens - 1
    print(f"{'routing':18}{'ops':>5}{'maxplus steps/s':>18}{'des steps/s':>14}{'ratio':>9}")
    for name in dict.fromkeys(point.routing.name for point in points):
        point = base.with_routing(name)
        run = run_decode(point, Simulator().profile(point.hardware), finish_maxplus, steps)
        last = [Graph.of(run.ops).last_main]
        fast = steps / best_s(lambda r=run, k=last: finish_maxplus(r.ops, r.durations_ps, k))
        short = [row[:DES_STEPS] for row in run.durations_ps]
        slow = DES_STEPS / best_s(lambda r=run, d=short, k=last: finish_des(r.ops, d, k))
        print(f"{name:18}{len(run.ops):>5}{fast:>18,.0f}{slow:>14,.0f}{fast / slow:>9,.0f}")


if __name__ == "__main__":
    main()
