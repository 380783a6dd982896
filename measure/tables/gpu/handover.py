"""Hand-over between an NVIDIA GPU and its host, copies over size, and what long graphs take."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import numpy as np
import torch

from measure.harness.campaign import Bench, Place, Ready
from measure.harness.gpu import Launch, capture, copy_launch
from measure.harness.router_timing import QUERY, sample
from measure.kernels.cpu_router.abi import MAX_BATCH
from measure.kernels.handover.mailbox import GpuMailbox, Mailbox
from measure.tables.cpu.plan import ROUTER_PLAN
from measure.tables.cpu.routing import filled_router, router_shape
from measure.tables.gpu.bench import (
    chained,
    gpu_bench,
    in_a_layer,
    integers,
    median_s,
)
from measure.tables.gpu.layer import (
    ATTENTION,
    LAYER,
    LayerLoop,
    Sampler,
    added,
    difference,
    layer_loop,
)

PAYLOADS = (256, 1024, 2304, 4608, 9216, 18432, 36864, 73728, 163840, 327680)
ANSWERS = (1024, 2048, 4096, 8192, 16384, 32768)
COPIES = (4096, 65536, 262144, 1 << 20, 4 << 20, 16 << 20, 64 << 20)
# What an early route of one sequence hands over, latent and key.
_SEQUENCE_BYTES = 2304


def _mailbox(payload_bytes: int = _SEQUENCE_BYTES) -> tuple[Mailbox, Launch]:
    """Return a mailbox whose answers are there already, and a publish of a payload.

    A fifth of it is keys, as beside queries; it is bytes and two flags that take time.
    """
    batch = max(1, min(MAX_BATCH, payload_bytes // _SEQUENCE_BYTES))
    context = torch.full((batch,), 4096, dtype=torch.int32)
    shape = router_shape(ROUTER_PLAN, MAX_BATCH, 4096)
    mailbox = Mailbox(shape, 1, context, torch.zeros(1, dtype=torch.int32))
    mailbox.answer_ahead()
    key_bytes = payload_bytes // 5 // 16 * 16
    keys, values = (
        torch.zeros(size, dtype=torch.uint8) for size in (key_bytes, payload_bytes - key_bytes)
    )
    return mailbox, lambda: mailbox.publish((1, "latent", values), (0, keys))


def handover_benches() -> list[Bench]:
    """Return publish and await inside a layer, and copies to the host, over their bytes."""
    layer = (*LAYER, *ATTENTION)

    def publish(place: Place) -> Sampler:
        return added(1, [_mailbox(int(place["payload_bytes"]))[1]], "anchor")

    def await_answer(place: Place) -> Sampler:
        """Answers are there already: what is left is reading flag and indices over the bus."""
        indices = torch.zeros(int(place["payload_bytes"]) // 4, dtype=torch.int32)
        mailbox, post = _mailbox()
        loop = layer_loop(1)
        both = loop.sampler(*layer, anchor=[post], route=[lambda: mailbox.take(indices)])
        return difference(both, loop.sampler(*layer, anchor=[post]), loop.layers)

    def copy(place: Place) -> tuple[list[Launch], int]:
        (size_bytes,) = integers(place, "payload_bytes")
        return [copy_launch(size_bytes, down=True)], size_bytes

    def by_payload(table: str, sizes: Sequence[int], sampler: Callable[[Place], Sampler]) -> Bench:
        bench = gpu_bench(table, {"payload_bytes": sizes}, copy, {}, dtype="bytes", slot="layer")

        def prepare(place: Place) -> Ready:
            return in_a_layer(sampler(place))

        return dataclasses.replace(bench, prepare=prepare)

    return [
        by_payload("publish", PAYLOADS, publish),
        by_payload("await", ANSWERS, await_answer),
        gpu_bench("summary_d2h", {"payload_bytes": COPIES}, copy, {}, dtype="bytes", least=8),
    ]


def copy_bytes_per_s(*, down: bool, size_bytes: int = 32 << 20) -> float:
    """Return the bandwidth of a bulk copy between GPU and pinned host memory."""
    return size_bytes / median_s(chained([copy_launch(size_bytes, down=down)], 8))


def round_trip_s(trials: int = 5) -> float:
    """Return what a ready query's route takes that a GPU asks for, beyond what is priced apart.

    That is publish, await, and the router's median when the host asks. The median of some trials:
    single ones are microseconds off, so it may come out below zero.
    """
    return float(np.median([_round_trip_s() for _ in range(trials)]))


def _round_trip_s(calls: int = 256) -> float:
    tokens, threads = ROUTER_PLAN.contexts[0], ROUTER_PLAN.threads[0]
    with filled_router(ROUTER_PLAN, threads, 1, tokens) as router:
        price_s = float(np.median(sample(router, QUERY, tokens, 20e-6, 4 * calls)))
    shape = router_shape(ROUTER_PLAN, 1, tokens)
    one = torch.full((1,), tokens, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    query = torch.randn(1, shape.heads * shape.head_dim).bfloat16()
    indices = torch.zeros(1, shape.kv_heads, shape.top_pages, dtype=torch.int32)

    def pair_s(mailbox: Mailbox) -> float:
        turns = itertools.cycle(range(1, shape.layers))
        pair = [
            lambda: mailbox.publish((next(turns), "query", query), None),
            lambda: mailbox.take(indices),
        ]
        return 2 * median_s(chained(pair, 2 * calls))

    answered = Mailbox(shape, 1, *one)
    answered.answer_ahead()
    served = GpuMailbox(shape, threads, *one, pin=True)
    served.router.randomize(ROUTER_PLAN.seed)
    try:
        beyond_s = pair_s(served) - pair_s(answered)
        served.check()
    finally:
        torch.cuda.synchronize()
        served.router.close()
    return beyond_s - price_s


def step_beyond_layers_s(layers: int = 32) -> float:
    """Return what a step's graph takes beyond its layers, replayed back to back.

    Layers are priced in short graphs. One of some 240 kernels and more takes some 10 us longer,
    once (docs/kernels.md), and a little time lies between a step and the next. Here a layer is
    an eighth of what sixteen take more than eight, in graphs as short as those of the tables.
    """
    seconds = dict(graph_lengths((8, 16, layers)))
    return max(0.0, seconds[layers] - layers * (seconds[16] - seconds[8]) / 8)


def graph_lengths(
    counts: Sequence[int], replayed: int = 20, rounds: int = 9
) -> list[tuple[int, float]]:
    """Return layers and seconds of graphs of the main flow without attention, batch 1.

    Medians of some rounds, in each of which every graph is replayed back to back in turn.
    """
    loop = LayerLoop(1, max(counts))
    ops = [launch for name, launch in loop.steps if name in LAYER]
    per_layer = len(ops) // max(counts)
    graphs = [capture(ops[: per_layer * count]) for count in counts]

    def replayed_s(graph: torch.cuda.CUDAGraph) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()
        start.record()
        for _ in range(replayed):
            graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e-3 / replayed

    seconds = np.median([[replayed_s(graph) for graph in graphs] for _ in range(rounds)], axis=0)
    return list(zip(counts, map(float, seconds), strict=True))
