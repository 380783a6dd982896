"""The fast engine: the (max,+) recurrence over numpy rows, a lane for every step of the run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from essim.engines.graph import Graph
from essim.step.ops import MAIN_STREAM, Op

Row = NDArray[np.int64]


def finish(
    ops: Sequence[Op],
    durations_ps: Sequence[Row],
    keep: Sequence[int] | None = None,
) -> NDArray[np.int64]:
    """Return the end of every op in every lane, counted from the lane's own origin.

    Every lane is computed at once as if all streams were idle at its origin. Where a side stream
    was still busy when the step first needs it, the lane is computed again with that state, until
    no state changes: lane i depends on lane i-1 only, so this ends, with the exact result, after
    at most as many passes as there are lanes (usually none).

    Parameters
    ----------
    ops
        The ops of one step.
    durations_ps
        For each op, its duration in every lane (int64 picoseconds). Rows may be shared.
    keep
        Positions of the ops whose rows are wanted; default all.

    Returns
    -------
    NDArray[int64]
        Shape (kept ops, lanes).
    """
    graph = Graph.of(ops)
    durations_ps = list(durations_ps)
    wanted = list(range(len(ops)) if keep is None else keep)
    carriers = _carriers(graph)
    rows = _pass(ops, graph, durations_ps, {}, {*wanted, *carriers, graph.last_main})
    _settle(ops, graph, durations_ps, rows, carriers)
    return np.stack([rows[i] for i in wanted])


def _carriers(graph: Graph) -> list[int]:
    """Return the ops whose end can reach into the next step: last of a side stream, or awaited."""
    last = [i for name, i in graph.last_of_stream.items() if name != MAIN_STREAM]
    awaited = [i for waits in graph.waits_previous for i in waits]
    return sorted({*last, *awaited})


def _carry(rows: dict[int, Row], carriers: list[int], last_main: int) -> dict[int, Row]:
    """Return, per carrier, how long after the next lane's origin it ends (0: before it)."""
    carried = {}
    for i in carriers:
        state = np.zeros_like(rows[i])
        np.maximum(rows[i][:-1] - rows[last_main][:-1], 0, out=state[1:])
        carried[i] = state
    return carried


def _settle(
    ops: Sequence[Op],
    graph: Graph,
    durations_ps: Sequence[Row],
    rows: dict[int, Row],
    carriers: list[int],
) -> None:
    """Recompute, in place, the lanes whose carried-in state is not the one they were run with."""
    used = {i: np.zeros_like(rows[i]) for i in carriers}
    while True:
        carried = _carry(rows, carriers, graph.last_main)
        stale = np.zeros(rows[graph.last_main].shape, dtype=bool)
        for i in carriers:
            stale |= carried[i] != used[i]
        lanes = np.flatnonzero(stale)
        if not lanes.size:
            return
        state = {i: carried[i][lanes] for i in carriers}
        shared = {id(row): row[lanes] for row in durations_ps}
        again = _pass(ops, graph, [shared[id(row)] for row in durations_ps], state, set(rows))
        for i, row in again.items():
            rows[i][lanes] = row
        used = carried


def _pass(
    ops: Sequence[Op],
    graph: Graph,
    durations_ps: Sequence[Row],
    carried: dict[int, Row],
    keep: set[int],
) -> dict[int, Row]:
    """Run the recurrence once over all lanes and return the rows to keep."""
    ends: dict[int, Row] = {}
    last_use = {j: i for i in range(len(ops)) for j in graph.sources(i)}
    for i, (op, duration) in enumerate(zip(ops, durations_ps, strict=True)):
        sources = [ends[j] for j in graph.sources(i)]
        if carried:
            sources += [carried[j] for j in graph.waits_previous[i]]
            if graph.before[i] is None and op.stream not in (None, MAIN_STREAM):
                sources.append(carried[graph.last_of_stream[op.stream]])
        ends[i] = _latest(sources, duration)
        for j in graph.sources(i):
            if last_use[j] == i and j not in keep:
                ends.pop(j, None)
    return {i: row for i, row in ends.items() if i in keep}


def _latest(sources: list[Row], duration: Row) -> Row:
    """Return max(0, sources) + duration in a new row; ends are never negative."""
    if not sources:
        return duration.copy()
    if len(sources) == 1:
        return sources[0] + duration
    ready = np.maximum(sources[0], sources[1])
    for source in sources[2:]:
        np.maximum(ready, source, out=ready)
    return np.add(ready, duration, out=ready)
