"""The host beside a GPU: ``python -m measure.studies.host --out DIR``.

``host.csv``: the CPU router alone, beside a GPU that copies to and from the host without pause, and
beside routers of other GPUs on the same host. Each router has its own process and its own share of
the CPUs. ``links.csv``: copies to and from pinned memory inside a CUDA graph, over their size.
``graphs.csv``: steps without attention in one graph, over the number of their layers.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path

import numpy as np
import torch

from measure.harness.gpu import capture, copy_launch, replay_s, require_gpu
from measure.harness.machine import thread_count
from measure.harness.router_timing import LATENT, sample
from measure.tables.cpu.plan import ROUTER_PLAN
from measure.tables.cpu.routing import filled_router
from measure.tables.gpu.handover import graph_lengths

POINTS = ((1, 4096), (8, 12288))
COLUMNS = (
    *("beside", "routers", "threads", "batch", "context_tokens", "calls"),
    *("mean_us", "p50_us", "p99_us", "slowdown_frac"),
)
_COPY_BYTES = 32 << 20
COPY_BYTES = (256, 8192, 65536, 1 << 20, 8 << 20, 32 << 20, 128 << 20)
_COPIES = 16
GRAPH_LAYERS = range(2, 33, 2)
_LAUNCHER_CPUS = 2


def route(
    cpus: Sequence[int], threads: int, point: tuple[int, int], calls: int, ready: Barrier
) -> list[float]:
    """Route in this process, on these CPUs, once every process is ready; seconds a call."""
    os.sched_setaffinity(0, cpus)
    batch, tokens = point
    with filled_router(ROUTER_PLAN, threads, batch, tokens) as router:
        sample(router, LATENT, tokens, 20e-6, calls // 10)
        ready.wait()
        return [float(s) for s in sample(router, LATENT, tokens, 20e-6, calls)]


def routed_s(
    routers: int, share: int, point: tuple[int, int], calls: int, copying: bool
) -> list[float]:
    """Seconds of the calls of all routers, each on `share` CPUs of its own."""
    cpus = sorted(os.sched_getaffinity(0))
    with (
        multiprocessing.Manager() as manager,
        multiprocessing.get_context("spawn").Pool(routers) as pool,
    ):
        ready = manager.Barrier(routers)
        jobs = [
            pool.apply_async(
                route, (cpus[i * share : (i + 1) * share], share - 1, point, calls, ready)
            )
            for i in range(routers)
        ]
        if copying:
            os.sched_setaffinity(0, cpus[-_LAUNCHER_CPUS:])
            copies = [copy_launch(_COPY_BYTES, down=down) for down in (True, False)]
            while not all(job.ready() for job in jobs):
                for copy in copies:
                    copy()
                torch.cuda.synchronize()
            os.sched_setaffinity(0, cpus)
        return [seconds for job in jobs for seconds in job.get()]


def rows(calls: int) -> list[dict[str, object]]:
    """A row a case and point; the slowdown is against one router of as many threads alone."""
    found: list[dict[str, object]] = []
    cores = thread_count()
    gpu = torch.cuda.is_available()
    for most in (r for r in (1, 2, 4) if cores // r >= 2):
        # Where the GPU copies, whoever launches the copies has CPUs of its own.
        share = max(2, cores - _LAUNCHER_CPUS) if most == 1 else cores // most
        for point in POINTS:
            cases = [("nothing", 1)]
            cases += [("copies", 1)] if gpu and most == 1 else []
            cases += [("routers", most)] if most > 1 else []
            alone_s = 0.0
            for beside, routers in cases:
                seconds = routed_s(routers, share, point, calls, beside == "copies")
                mean_s = float(np.mean(seconds))
                alone_s = alone_s or mean_s
                p50, p99 = np.percentile(seconds, [50, 99]) * 1e6
                found.append(
                    dict(
                        zip(
                            COLUMNS,
                            (
                                *(beside, routers, share - 1, *point, len(seconds)),
                                *(round(mean_s * 1e6, 2), round(p50, 2), round(p99, 2)),
                                round(mean_s / alone_s - 1, 3),
                            ),
                            strict=True,
                        )
                    )
                )
                print(*found[-1].values(), flush=True)
    return found


def link_rows() -> list[dict[str, object]]:
    """A row a direction and size of copy: microseconds in a chain, and the rate."""
    found: list[dict[str, object]] = []
    for way, size_bytes in itertools.product(("d2h", "h2d"), COPY_BYTES):
        launch = copy_launch(size_bytes, down=way == "d2h")
        graph = capture([launch] * _COPIES)
        seconds = float(np.median(replay_s(graph, 20))) / _COPIES
        row = {"link": way, "size_bytes": size_bytes, "copy_us": round(seconds * 1e6, 3)}
        found.append(row | {"gb_per_s": round(size_bytes / seconds / 1e9, 2)})
        print(*found[-1].values(), flush=True)
    return found


def graph_rows() -> list[dict[str, object]]:
    """A row a number of layers: microseconds of their graph, and of a layer more than before."""
    found: list[dict[str, object]] = []
    before = 0, 0.0
    for layers, seconds in graph_lengths(GRAPH_LAYERS):
        more_s = (seconds - before[1]) / (layers - before[0])
        row: dict[str, object] = {"layers": layers, "graph_us": round(seconds * 1e6, 2)}
        found.append(row | {"us_a_layer_more": round(more_s * 1e6, 2)})
        print(*found[-1].values(), flush=True)
        before = layers, seconds
    return found


def write(file: Path, table: list[dict[str, object]]) -> None:
    """Write rows as CSV."""
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(table[0]))
        writer.writeheader()
        writer.writerows(table)


def main() -> None:
    """Time every case and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--calls", type=int, default=1000)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if torch.cuda.is_available():
        require_gpu()
        write(args.out / "links.csv", link_rows())
        write(args.out / "graphs.csv", graph_rows())
    write(args.out / "host.csv", rows(args.calls))


if __name__ == "__main__":
    main()
