"""GPU time of kernels: launches captured in a CUDA graph, events around its replays."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence

import torch

from essim.errors import AbsentError

Launch = Callable[[], object]

COLD_BYTES = 192 << 20
"""Bytes that a rotation must touch so that none survives in a 60 MB L2 until its next turn."""


def require_gpu() -> torch.device:
    """The current GPU, set as torch's default device.

    Raises
    ------
    AbsentError
        Where there is none.
    """
    if not torch.cuda.is_available():
        raise AbsentError("no CUDA GPU here", "Run this on the machine to be measured")
    torch.set_default_device("cuda")
    return torch.device("cuda")


def stream_handle() -> int:
    """The current stream as a ``cudaStream_t``."""
    return int(torch.cuda.current_stream().cuda_stream)


@functools.cache
def streams() -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    """The stream that graphs are captured on, and the one for what runs beside.

    Both are made once: torch hands out 32 in turn, so one made later may be the other again, and
    what is forked to it would run in line.
    """
    return torch.cuda.Stream(), torch.cuda.Stream()


def cold_sets(bytes_touched: int, most: int = 256) -> int:
    """Sets of inputs to rotate through so that each is cold again at its turn."""
    return max(2, min(most, -(-COLD_BYTES // max(bytes_touched, 1))))


def copy_launch(size_bytes: int, *, down: bool) -> Launch:
    """Return a launch of a copy between GPU and pinned host memory."""
    here = torch.empty(size_bytes, dtype=torch.uint8, device="cuda")
    there = torch.empty(size_bytes, dtype=torch.uint8, device="cpu").pin_memory()
    source, target = (here, there) if down else (there, here)
    return lambda: target.copy_(source, non_blocking=True)


def capture(launches: Sequence[Launch]) -> torch.cuda.CUDAGraph:
    """A CUDA graph of the launches, each dependent on the one before; all are run once first.

    They are run on a stream that is new each time. Once a process has used a third stream, the
    default one counted, each kernel of a graph was seen to take 0.36 us longer, and tables whose
    graphs were not warmed up so came out half in one state and half in the other
    (docs/kernels.md). A server has many streams, so prices shall be of such a process.
    """
    warm_up = torch.cuda.Stream()
    warm_up.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(warm_up):
        for launch in launches:
            launch()
    torch.cuda.current_stream().wait_stream(warm_up)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=streams()[0]):
        for launch in launches:
            launch()
    return graph


def replay_s(graph: torch.cuda.CUDAGraph, replays: int, warm_ups: int = 3) -> list[float]:
    """Seconds of each replay."""
    for _ in range(warm_ups):
        graph.replay()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2 * replays)]
    for start, end in zip(events[::2], events[1::2], strict=True):
        start.record()
        graph.replay()
        end.record()
    torch.cuda.synchronize()
    pairs = zip(events[::2], events[1::2], strict=True)
    return [start.elapsed_time(end) * 1e-3 for start, end in pairs]


def chain_s(launches: Sequence[Launch], least: int = 64, replays: int = 30) -> list[float]:
    """Seconds a launch, one sample a replay of a chain of at least ``least`` launches.

    The chain repeats ``launches``, which rotate through cold inputs.
    """
    rounds = -(-least // len(launches))
    chain = list(itertools.islice(itertools.cycle(launches), rounds * len(launches)))
    return [seconds / len(chain) for seconds in replay_s(capture(chain), replays)]
