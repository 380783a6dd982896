"""The fast engine: the (max,+) recurrence over numpy rows, a lane for every step of the run."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from essim.engines.chains import Plan, plan_of
from essim.step.ops import Op

Row = NDArray[np.int64]

# Blocks that are tried before they are taken to differ.
_TRIES = 6
# Steps until a side stream that gets further and further behind is taken not to matter.
_ALIKE_STEPS = 8


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
        For each op, its duration in every lane (int64 picoseconds, never negative). Rows may be
        shared, and should be: layers whose ops share them are computed once.
    keep
        Positions of the ops whose rows are wanted; default all.

    Returns
    -------
    NDArray[int64]
        Shape (kept ops, lanes).
    """
    wanted = list(range(len(ops)) if keep is None else keep)
    rows_ps = list(durations_ps)  # of an array, rows are made anew each time they are asked for
    lanes = len(rows_ps[0])
    shared = {id(row): row for row in rows_ps}
    position = {key: i for i, key in enumerate(shared)}
    pattern = tuple(position[id(row)] for row in rows_ps)
    plan = plan_of(tuple(ops), pattern, frozenset(wanted))
    # What is equal in all lanes, as views of numpy say, is computed once.
    distinct = [row if row.strides[0] else row[:1] for row in shared.values()]
    rows, entered = _pass(plan, distinct, None)
    rows = {i: row if len(row) == lanes else np.repeat(row, lanes) for i, row in rows.items()}
    _settle(plan, distinct, rows, np.broadcast_to(entered, lanes))
    return np.stack([rows[i] for i in wanted])


def finish_alike(
    ops: Sequence[Op],
    durations_ps: Sequence[Row],
    follows: Literal["its like", "nothing", "the lane before"] = "its like",
) -> Row:
    """Return how long steps take in lanes of any shape.

    Parameters
    ----------
    durations_ps
        For each op, its durations: of any shapes that broadcast with each other. What a later step
        still waits for is carried until the step takes no longer.
    follows
        What step a lane follows; lanes of the last axis may be the steps of a run.

    Returns
    -------
    NDArray[int64]
        Of the shape that they broadcast to, or one that broadcasts to it.
    """
    shared = {id(row): row for row in durations_ps}
    position = {key: i for i, key in enumerate(shared)}
    plan = plan_of(tuple(ops), tuple(position[id(row)] for row in durations_ps), frozenset())
    distinct, last = list(shared.values()), plan.graph.last_main
    rows, entered = _pass(plan, distinct, None)
    step = rows[last]
    for _ in range(0 if follows == "nothing" else _ALIKE_STEPS):
        carried = {i: np.maximum(rows[i] - rows[last], 0) for i in plan.carriers}
        if follows == "the lane before":
            carried = {i: _shifted(row) for i, row in carried.items()}
        if not any((carried[i] > entered).any() for i in plan.latest):
            break
        rows, _ = _pass(plan, distinct, carried)
        if np.array_equal(step, rows[last]):
            break
        step = rows[last]
    return step


def _shifted(row: Row) -> Row:
    """Return what each lane of the last axis has from the one before it; the first has nothing."""
    moved = np.zeros_like(row)
    moved[..., 1:] = row[..., :-1]
    return moved


def _carry(rows: dict[int, Row], carriers: Sequence[int], last_main: int) -> dict[int, Row]:
    """Return, per carrier, how long after the next lane's origin it ends (0: before it)."""
    carried = {}
    for i in carriers:
        state = np.zeros_like(rows[i])
        np.maximum(rows[i][:-1] - rows[last_main][:-1], 0, out=state[1:])
        carried[i] = state
    return carried


def _settle(plan: Plan, durations_ps: Sequence[Row], rows: dict[int, Row], entered: Row) -> None:
    """Recompute, in place, the lanes whose carried-in state is not the one they were run with.

    What ends before the first chain that could follow it may start (`entered`) changes nothing.
    """
    used = {i: np.zeros_like(entered) for i in plan.carriers}
    while plan.carriers:
        latest = _carry(rows, plan.latest, plan.graph.last_main)
        if not any((latest[i] > entered).any() or used[i].any() for i in plan.latest):
            return
        carried = _carry(rows, plan.carriers, plan.graph.last_main)
        stale, matters = np.zeros((2, *entered.shape), dtype=bool)
        for i in plan.carriers:
            stale |= carried[i] != used[i]
            matters |= (carried[i] > entered) | (used[i] > entered)
        lanes = np.flatnonzero(stale & matters)
        if not lanes.size:
            return
        state = {i: carried[i][lanes] for i in plan.carriers}
        some = [row[lanes] if len(row) > 1 else row for row in durations_ps]
        again, _ = _pass(plan, some, state)
        for i, row in again.items():
            rows[i][lanes] = row
        used = carried


def _pass(
    plan: Plan, durations_ps: Sequence[Row], carried: dict[int, Row] | None
) -> tuple[dict[int, Row], Row]:
    """Run the recurrence once over all lanes.

    Returns
    -------
    rows, entered
        The ends of kept ops, and the first time at which what is carried in could matter.
    """
    sums = [_total(one, durations_ps) for one in plan.sums]
    ends = _Ends(plan, sums, carried)
    ends.run(0, plan.first if plan.blocks else len(plan.chains))
    if plan.blocks:
        ends.run_blocks()
        ends.run(plan.first + plan.period * plan.blocks, len(plan.chains))
    starts = [ends.at(i) - sums[plan.chains[i].sum] for i in plan.entries]
    entered = reduce(np.minimum, starts) if starts else np.zeros(1, dtype=np.int64)
    return {i: ends.at(chain) for i, chain in plan.of_op.items()}, entered


class _Ends:
    """Ends of chains, as far as they are computed and still needed."""

    def __init__(self, plan: Plan, sums: list[Row], carried: dict[int, Row] | None) -> None:
        self.plan, self.sums, self.carried = plan, sums, carried
        self.rows: dict[int, Row] = {}
        # From this chain on, ends are those of the block before and `rise` more a block.
        self.steady, self.rise = len(plan.chains), np.zeros(1, dtype=np.int64)
        last = {j: i for i, chain in enumerate(plan.chains) for j in chain.sources}
        kept = {*plan.of_op.values(), *plan.entries}
        self.drop: dict[int, list[int]] = {}
        for j, i in last.items():
            if j not in kept:
                self.drop.setdefault(i, []).append(j)

    def at(self, i: int) -> Row:
        """Return the end of a chain."""
        end = self.plan.first + self.plan.period * self.plan.blocks
        if i in self.rows or not self.steady <= i < end:
            return self.rows[i]
        blocks = (i - self.steady) // self.plan.period + 1
        return self.rows[i - blocks * self.plan.period] + blocks * self.rise

    def run(self, first: int, last: int, *, drops: bool = True) -> None:
        """Compute the chains from `first` up to `last`."""
        for i in range(first, last):
            chain = self.plan.chains[i]
            sources = [self.at(j) for j in chain.sources]
            if self.carried is not None:
                sources += [self.carried[j] for j in chain.carried]
            self.rows[i] = _latest(sources, self.sums[chain.sum])
            if drops:
                for j in self.drop.get(i, ()):
                    self.rows.pop(j, None)

    def run_blocks(self) -> None:
        """Compute blocks until each end of one is as much later as the others, in every lane.

        All blocks behind it are then as much later again: the recurrence knows no origin.
        """
        plan = self.plan
        for block in range(plan.blocks):
            first = plan.first + block * plan.period
            self.run(first, first + plan.period, drops=False)
            if block and block <= _TRIES:
                rises = [self.rows[i] - self.rows[i - plan.period] for i in self._block(first)]
                if all(np.array_equal(rises[0], rise) for rise in rises[1:]):
                    self.steady, self.rise = first + plan.period, rises[0]
                    return

    def _block(self, first: int) -> range:
        return range(first, first + self.plan.period)


def _total(one: tuple[tuple[int, int], ...], durations_ps: Sequence[Row]) -> Row:
    """Return the sum of rows, each so often."""
    (first, times), *others = one
    total = durations_ps[first] if times == 1 else durations_ps[first] * times
    for i, times in others:
        total = total + (durations_ps[i] if times == 1 else durations_ps[i] * times)
    return total


def _latest(sources: list[Row], duration: Row) -> Row:
    """Return max(0, sources) + duration in a new row; ends are never negative."""
    if not sources:
        return duration.copy()
    if len(sources) == 1:
        return sources[0] + duration
    ready = np.maximum(sources[0], sources[1])
    for source in sources[2:]:
        ready = np.maximum(ready, source)
    return ready + duration
