"""What steady load costs: ``python -m measure.sustained --out DIR``.

A GPU that has worked for some seconds may settle at lower clocks than in the short bursts that
tables are measured in. ``sustained.csv`` has a row an op: its price in bursts, with
pauses between, and its price after seconds of decode layers and between more of them.
``layer.csv`` is the time of a decode layer over seconds of load from idle, ``clocks.csv`` what the
driver says meanwhile.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from measure.bench_host import write
from measure.campaign import Place
from measure.gpu import capture, replay_s, require_gpu
from measure.gpu_flow import flow_benches
from measure.gpu_handover import handover_benches
from measure.gpu_layer import ATTENTION, LAYER, LAYERS, Sampler, layer_loop
from measure.gpu_tables import router_benches, side_stream_bench

POINTS: tuple[tuple[str, Place], ...] = (
    ("gemm", {"n": 6144, "k": 4096, "dtype": "bf16", "rows": 1}),
    ("gemm", {"n": 4096, "k": 4096, "dtype": "bf16", "rows": 1}),
    ("gemm", {"n": 28672, "k": 4096, "dtype": "bf16", "rows": 1}),
    ("gemm", {"n": 4096, "k": 14336, "dtype": "bf16", "rows": 1}),
    *((table, {"rows": 1}) for table in ("rope", "act", "norm", "head")),
    (
        "attn_sparse",
        {"page_tokens": 4, "kv_block_tokens": 4, "batch": 1, "selected_tokens": 128},
    ),
    ("attn_dense", {"batch": 1, "context_tokens": 8192}),
    ("gpu_route_fused", {"batch": 1, "context_tokens": 8192, "top_pages": 32}),
    ("gpu_route_stepwise", {"batch": 1, "context_tokens": 8192, "top_pages": 32}),
    (
        "gpu_side_slowdown",
        {"kernel": "stepwise", "batch": 1, "context_tokens": 8192, "top_pages": 32},
    ),
    ("proxy_down", {"batch": 1}),
    ("gpu_proxy", {"projection_rank": 128, "batch": 1}),
    ("publish", {"payload_bytes": 2304}),
    ("await", {"payload_bytes": 1024}),
    ("gemm", {"n": 28672, "k": 4096, "dtype": "bf16", "rows": 16}),
    ("norm", {"rows": 16}),
    ("attn_dense", {"batch": 16, "context_tokens": 8192}),
    ("gpu_route_fused", {"batch": 16, "context_tokens": 8192, "top_pages": 32}),
    ("gpu_route_stepwise", {"batch": 16, "context_tokens": 8192, "top_pages": 32}),
)
_CLOCKS = (
    "clocks.sm,clocks.mem,power.draw.instant,temperature.gpu,clocks_event_reasons.active,"
    "enforced.power.limit,clocks.max.sm"
)
_FROM_IDLE_S, _HEAT_S, _PAUSE_S, _BETWEEN_S = 7.0, 6.0, 0.4, 0.8


def layer_s(graph: torch.cuda.CUDAGraph, replays: int = 60) -> float:
    """Return the median seconds of one of its layers, over replays without a pause."""
    return float(np.median(replay_s(graph, replays, 0))) / LAYERS


def heat(graph: torch.cuda.CUDAGraph, seconds: float) -> None:
    """Decode layers without a pause."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        layer_s(graph)


def layer_rows(graph: torch.cuda.CUDAGraph) -> Iterator[dict[str, object]]:
    """From idle: a row every sixty replays."""
    time.sleep(2.0)
    start = time.perf_counter()
    while (since_s := time.perf_counter() - start) < _FROM_IDLE_S:
        seconds = layer_s(graph)
        yield {"since_s": round(since_s, 3), "layer_us": round(seconds * 1e6, 3)}


def price_rows(graph: torch.cuda.CUDAGraph) -> list[dict[str, object]]:
    """A row an op: all in bursts first, then all under load."""
    benches = {
        bench.table: bench
        for bench in (
            *(*router_benches(), *flow_benches()),
            *(*handover_benches(), side_stream_bench()),
        )
    }
    bursts = []
    for table, place in POINTS:
        sample = benches[table].prepare(place).sample
        time.sleep(_PAUSE_S)
        bursts.append(price_s(sample))
    heat(graph, _HEAT_S)
    rows: list[dict[str, object]] = []
    for (table, place), burst_s in zip(POINTS, bursts, strict=True):
        # Set up again: what earlier points held is freed with the next one.
        sample = benches[table].prepare(place).sample
        heat(graph, _BETWEEN_S)
        sustained_s = price_s(sample)
        rows.append(
            {
                "table": table,
                "point": " ".join(f"{key}={value}" for key, value in place.items()),
                "burst_us": round(burst_s * 1e6, 3),
                "sustained_us": round(sustained_s * 1e6, 3),
                "ratio": round(sustained_s / burst_s, 4),
            }
        )
        print(*rows[-1].values(), flush=True)
    return rows


def price_s(sample: Sampler, calls: int = 8) -> float:
    """Return the median of some samples, the first two left out."""
    return float(np.median([sample() for _ in range(calls)][2:]))


def main() -> None:
    """Time bursts and load, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    require_gpu()
    args.out.mkdir(parents=True, exist_ok=True)
    loop = layer_loop(1)
    graph = capture(loop.launches((*LAYER, *ATTENTION), {}))
    query = ["nvidia-smi", f"--query-gpu={_CLOCKS}", "--format=csv", "-lms", "100"]
    with (args.out / "clocks.csv").open("w") as file:
        watching = subprocess.Popen(query, stdout=file)
        try:
            write(args.out / "layer.csv", list(layer_rows(graph)))
            write(args.out / "sustained.csv", price_rows(graph))
        finally:
            watching.terminate()
            watching.wait()


if __name__ == "__main__":
    main()
