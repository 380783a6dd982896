"""The reference engine: a SimPy process a stream, events for waits. Plain, and slow."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from essim.engines.graph import Graph
from essim.step.ops import Op

Process = Generator[simpy.Event, Any, None]


def finish(
    ops: Sequence[Op],
    durations_ps: Sequence[NDArray[np.int64]],
    keep: Sequence[int] | None = None,
) -> NDArray[np.int64]:
    """Simulate the lanes one after another as consecutive steps of one run.

    Parameters
    ----------
    ops
        The ops of one step.
    durations_ps
        For each op, its duration in every lane (int64 picoseconds).
    keep
        Positions of the ops whose rows are wanted; default all.

    Returns
    -------
    NDArray[int64]
        End of every kept op in every lane, shape (kept ops, lanes), from the lane's own origin.
    """
    graph = Graph.of(ops)
    lanes = len(durations_ps[0])
    env = simpy.Environment()
    done = [[env.event() for _ in ops] for _ in range(lanes)]
    ends = np.empty((len(ops), lanes), dtype=np.int64)
    origins = np.zeros(lanes + 1, dtype=np.int64)

    def run(lane: int, i: int) -> Process:
        if lane:
            yield done[lane - 1][graph.last_main]
        for j in graph.waits[i]:
            yield done[lane][j]
        if lane:
            for j in graph.waits_previous[i]:
                yield done[lane - 1][j]
        yield env.timeout(int(durations_ps[i][lane]))
        ends[i, lane] = env.now
        if i == graph.last_main:
            origins[lane + 1] = env.now
        done[lane][i].succeed()

    def stream(name: str) -> Process:
        for lane in range(lanes):
            for i, op in enumerate(ops):
                if op.stream == name:
                    yield from run(lane, i)

    for name in graph.last_of_stream:
        env.process(stream(name))
    for lane in range(lanes):
        for i, op in enumerate(ops):
            if op.stream is None:
                env.process(run(lane, i))
    env.run()
    result: NDArray[np.int64] = ends - origins[:-1]
    return result if keep is None else result[list(keep)]
