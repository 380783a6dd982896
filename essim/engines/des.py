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
    run = _Run(ops, durations_ps)
    for name in run.graph.last_of_stream:
        run.env.process(run.stream(name))
    for lane in range(run.lanes):
        for i, op in enumerate(ops):
            if op.stream is None:
                run.env.process(run.op(lane, i))
    run.env.run()
    result: NDArray[np.int64] = run.ends - run.origins[:-1]
    return result if keep is None else result[list(keep)]


class _Run:
    """What the processes of one run share: the clock, an event for every op's end, the ends."""

    def __init__(self, ops: Sequence[Op], durations_ps: Sequence[NDArray[np.int64]]) -> None:
        self.ops, self.durations_ps = ops, durations_ps
        self.graph, self.lanes = Graph.of(ops), len(durations_ps[0])
        self.env = simpy.Environment()
        self.done = [[self.env.event() for _ in ops] for _ in range(self.lanes)]
        self.ends = np.empty((len(ops), self.lanes), dtype=np.int64)
        self.origins = np.zeros(self.lanes + 1, dtype=np.int64)

    def op(self, lane: int, i: int) -> Process:
        """Wait for what op `i` waits for, then take its time."""
        if lane:
            yield self.done[lane - 1][self.graph.last_main]
        for j in self.graph.waits[i]:
            yield self.done[lane][j]
        if lane:
            for j in self.graph.waits_previous[i]:
                yield self.done[lane - 1][j]
        yield self.env.timeout(int(self.durations_ps[i][lane]))
        self.ends[i, lane] = self.env.now
        if i == self.graph.last_main:
            self.origins[lane + 1] = self.env.now
        self.done[lane][i].succeed()

    def stream(self, name: str) -> Process:
        """Run the ops of a stream one after another, lane by lane."""
        for lane in range(self.lanes):
            for i, op in enumerate(self.ops):
                if op.stream == name:
                    yield from self.op(lane, i)
