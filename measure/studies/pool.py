"""What a CPU route takes inside real decode steps, and on the same pool between them.

    python -m measure.studies.pool --out DIR

Needs an NVIDIA GPU. The pool notes when it saw each route and when it was done (`spans_s`), so the
loop's own routes are timed as those that the CPU asks for. `pool.csv` has a row a place, cell and
state of the caller:

- ``loop``: routes of ``cpu-mid`` steps, asked for by the GPU;
- ``pool``: the same pool and memory, asked by the CPU as `cpu_route` is timed;
- ``fresh``: a pool of its own with room for the longest context, as `cpu_route` is timed.

`cores.csv` has what two busy threads do to each other, a row a pair of CPUs.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import threading
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from measure.decode.gpu.loop import GpuDecode
from measure.decode.gpu.plan import GroupRuns
from measure.decode.shared.cells import WARM_UP_STEPS, Cell
from measure.harness.gpu import require_gpu
from measure.harness.router_timing import LATENT, last_ticket, sample, spans_s
from measure.kernels.cpu_router.router import Router
from measure.studies.host import write
from measure.tables.cpu.plan import ROUTER_PLAN
from measure.tables.cpu.routing import filled_router

CELLS = ((8, 4480), (11, 9001))
STEPS, GROUPS, CALLS = 32, 6, 1000
GAPS_S = (20e-6, 100e-6)


def summary(seconds: npt.NDArray[np.float64]) -> dict[str, object]:
    """Return mean and percentiles in microseconds."""
    low, middle, high = np.percentile(seconds, (5, 50, 99)) * 1e6
    return {
        "mean_us": round(float(seconds.mean()) * 1e6, 2),
        "low_us": round(float(low), 2),
        "median_us": round(float(middle), 2),
        "p99_us": round(float(high), 2),
    }


def looped(run: GpuDecode, position_tokens: int) -> npt.NDArray[np.float64]:
    """Return when routes of some steps were seen and done, [routes, 2]."""
    assert run.mailbox is not None
    router, routes = run.mailbox.router, STEPS * (run.model.layers - 1)
    found = []
    for _ in range(GROUPS):
        run.set_position(position_tokens, noise=False)
        run.steps(WARM_UP_STEPS)
        run.steps(STEPS)
        found.append(spans_s(router, last_ticket(router), routes))
    return np.concatenate(found)


def alone(router: Router, tokens: int, gap_s: float) -> npt.NDArray[np.float64]:
    """Return when routes that the CPU asks for were seen and done, [routes, 2]."""
    sample(router, LATENT, tokens, gap_s, CALLS)
    return spans_s(router, last_ticket(router), CALLS)


def rows() -> list[dict[str, object]]:
    """A row a place, cell and state of the caller."""
    found: list[dict[str, object]] = []
    every = os.sched_getaffinity(0)

    def tell(place: str, cell: tuple[int, int], state: str, spans: npt.NDArray[np.float64]) -> None:
        about = {"place": place, "batch": cell[0], "context_tokens": cell[1], "caller": state}
        found.append(about | summary(spans[:, 1] - spans[:, 0]))
        print(*found[-1].values(), flush=True)

    for batch, tokens in CELLS:
        runs = GroupRuns(STEPS, 8)
        runs.run(Cell("cpu-mid", batch, tokens, 128))
        run = runs._runs["cpu-mid"]
        assert run.mailbox is not None
        tell("loop", (batch, tokens), "anywhere", looped(run, tokens))
        pin_others(every, {min(every)})
        tell("loop", (batch, tokens), "first CPU", looped(run, tokens))
        pin_others(every, every)
        tell("loop", (batch, tokens), "anywhere", looped(run, tokens))
        for gap_s in GAPS_S:
            spans = alone(run.mailbox.router, tokens, gap_s)
            tell("pool", (batch, tokens), f"idle {gap_s * 1e6:.0f} us", spans)
        runs.release()
        longest = max(ROUTER_PLAN.contexts)
        with filled_router(ROUTER_PLAN, 8, batch, longest) as router:
            print("huge pages", huge_bytes() >> 20, "MiB of", resident_bytes() >> 20, flush=True)
            for gap_s in GAPS_S:
                spans = alone(router, tokens, gap_s)
                tell("fresh", (batch, tokens), f"idle {gap_s * 1e6:.0f} us", spans)
    return found


def pin_others(every: set[int], to: set[int]) -> None:
    """Put all threads that are not bound to one CPU, this one's and the driver's, onto some."""
    for task in Path("/proc/self/task").iterdir():
        own = os.sched_getaffinity(int(task.name))
        if len(own) > 1 or (own != to and own == {min(every)}):
            os.sched_setaffinity(int(task.name), to)


def _of_memory(name: str) -> int:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name + ":"))


def huge_bytes() -> int:
    """Memory of this process in huge pages."""
    return _of_memory("AnonHugePages")


def resident_bytes() -> int:
    """Memory of this process."""
    return _of_memory("Rss")


def hashed_in(cpus: tuple[int, ...], seconds: float) -> list[int]:
    """Return how many blocks a thread on each CPU hashes at once."""
    block, counts = bytes(1 << 16), [0] * len(cpus)
    start = threading.Barrier(len(cpus))

    def work(place: int, cpu: int) -> None:
        os.sched_setaffinity(0, {cpu})
        start.wait()
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            hashlib.sha256(block).digest()
            counts[place] += 1

    threads = [threading.Thread(target=work, args=at) for at in enumerate(cpus)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counts


def core_rows(seconds: float = 0.02) -> list[dict[str, object]]:
    """A row a pair of CPUs: what each does beside the other, over what it does alone."""
    cpus = sorted(os.sched_getaffinity(0))
    single = {cpu: max(hashed_in((cpu,), seconds)[0] for _ in range(2)) for cpu in cpus}
    found: list[dict[str, object]] = []
    for a, b in itertools.combinations(cpus, 2):
        one, two = hashed_in((a, b), seconds)
        row: dict[str, object] = {"cpu": a, "other": b, "cpu_frac": round(one / single[a], 3)}
        found.append(row | {"other_frac": round(two / single[b], 3)})
    return found


def main() -> None:
    """Time every case and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    write(args.out / "cores.csv", core_rows())
    require_gpu()
    torch.set_default_device("cuda")
    write(args.out / "pool.csv", rows())


if __name__ == "__main__":
    main()
