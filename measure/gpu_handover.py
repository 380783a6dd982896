"""Hand-over between an NVIDIA GPU and its host: mapped flags, copies over size, gaps of graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np
import torch

from measure.campaign import Bench, Place, Ready
from measure.gpu import Launch, capture, copy_launch
from measure.gpu_layer import ATTENTION, LAYER, Sampler, added, difference, layer_loop
from measure.gpu_tables import LAYER_CALLS, LAYER_WINDOWS, chained, gpu_bench, integers, median_s
from measure.kernels.handover import Channel

PAYLOADS = (256, 1024, 2304, 4608, 9216, 18432, 36864, 73728, 163840, 327680)
ANSWERS = (1024, 2048, 4096, 8192, 16384, 32768)
COPIES = (4096, 65536, 262144, 1 << 20, 4 << 20, 16 << 20, 64 << 20)


def handover_benches() -> list[Bench]:
    """Return publish and await inside a layer, and copies to the host, over their bytes."""
    channel = Channel()
    channel.answered()
    layer = (*LAYER, *ATTENTION)

    def publish(place: Place) -> Sampler:
        source = torch.zeros(int(place["payload_bytes"]), dtype=torch.uint8)
        return added(1, [lambda: channel.publish(source)], "anchor")

    def await_answer(place: Place) -> Sampler:
        """Answers are there already: what is left is reading flag and indices over the bus."""
        source = torch.zeros(2304, dtype=torch.uint8)
        indices = torch.zeros(int(place["payload_bytes"]) // 4, dtype=torch.int32)
        anchor = [lambda: channel.publish(source)]
        loop = layer_loop(1)
        both = loop.sampler(*layer, anchor=anchor, route=[lambda: channel.await_answer(indices)])
        return difference(both, loop.sampler(*layer, anchor=anchor), loop.layers)

    def copy(place: Place) -> tuple[list[Launch], int]:
        (size_bytes,) = integers(place, "payload_bytes")
        return [copy_launch(size_bytes, down=True)], size_bytes

    def by_payload(table: str, sizes: Sequence[int], sampler: Callable[[Place], Sampler]) -> Bench:
        bench = gpu_bench(table, {"payload_bytes": sizes}, copy, {}, dtype="bytes", slot="layer")

        def prepare(place: Place) -> Ready:
            return Ready(sampler(place), None, LAYER_CALLS, LAYER_WINDOWS)

        return dataclasses.replace(bench, prepare=prepare)

    return [
        by_payload("publish", PAYLOADS, publish),
        by_payload("await", ANSWERS, await_answer),
        gpu_bench("summary_d2h", {"payload_bytes": COPIES}, copy, {}, dtype="bytes", least=8),
    ]


def copy_bytes_per_s(*, down: bool, size_bytes: int = 32 << 20) -> float:
    """Return the bandwidth of a bulk copy between GPU and pinned host memory."""
    return size_bytes / median_s(chained([copy_launch(size_bytes, down=down)], 8))


def round_trip_s(busy_s: float = 50e-6) -> float:
    """Return what a round trip takes beyond publish, await and `busy_s` on the CPU."""
    source = torch.zeros(8192, dtype=torch.uint8)
    indices = torch.zeros(256, dtype=torch.int32)

    def pair_s(serve: bool) -> float:
        channel = Channel()
        if serve:
            channel.serve(busy_s)
        else:
            channel.answered()
        pair = [lambda: channel.publish(source), lambda: channel.await_answer(indices)]
        found = 2 * median_s(chained(pair, 256))
        channel.close()
        return found

    return pair_s(serve=True) - pair_s(serve=False) - busy_s


def graph_gap_s(replayed: int = 20) -> float:
    """Return what lies between two graphs that are launched back to back."""
    loop = layer_loop(1)
    launches = loop.launches(LAYER, {})

    def total_s(graph: torch.cuda.CUDAGraph, count: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3

    one, two = capture(launches), capture([*launches, *launches])
    gaps = [(total_s(one, 2 * replayed) - total_s(two, replayed)) / replayed for _ in range(12)]
    return max(0.0, float(np.median(gaps[2:])))
