"""The op list as indices: what the engines walk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from essim.step.ops import MAIN_STREAM, Op


@dataclass(frozen=True)
class Graph:
    """Predecessors of every op by position.

    Attributes
    ----------
    before
        The op before it on its stream in the same step; None for the first, or with no stream.
    waits, waits_previous
        Positions of what it waits for, in this step and in the one before.
    last_of_stream
        The last op of every stream.
    last_main
        The last op of the main stream: its end is the end of the step.
    """

    before: tuple[int | None, ...]
    waits: tuple[tuple[int, ...], ...]
    waits_previous: tuple[tuple[int, ...], ...]
    last_of_stream: dict[str, int]
    last_main: int

    def sources(self, i: int) -> tuple[int, ...]:
        """Return what op `i` follows within the step: its waits, and the op before it."""
        before = self.before[i]
        return self.waits[i] if before is None else (before, *self.waits[i])

    @staticmethod
    def of(ops: Sequence[Op]) -> Graph:
        """Build, and check, the graph of an op list.

        Raises
        ------
        ValueError
            If a name is there twice, a wait names an unknown or later op, or nothing runs on the
            main stream.
        """
        return _graph(tuple(ops))


@lru_cache(maxsize=256)
def _graph(ops: tuple[Op, ...]) -> Graph:
    position: dict[str, int] = {}
    for i, op in enumerate(ops):
        if position.setdefault(op.name, i) != i:
            raise ValueError(f"two ops are named {op.name!r}")
    last: dict[str, int] = {}
    before: list[int | None] = []
    for i, op in enumerate(ops):
        for name in op.waits:
            if position.get(name, i) >= i:
                raise ValueError(f"op {op.name!r} waits for {name!r}, which is not an earlier op")
        for name in op.waits_previous:
            if name not in position:
                raise ValueError(f"op {op.name!r} waits for {name!r}, which does not exist")
        before.append(last.get(op.stream) if op.stream else None)
        if op.stream:
            last[op.stream] = i
    if MAIN_STREAM not in last:
        raise ValueError(f"no op runs on the main stream {MAIN_STREAM!r}")
    return Graph(
        before=tuple(before),
        waits=tuple(tuple(position[n] for n in op.waits) for op in ops),
        waits_previous=tuple(tuple(position[n] for n in op.waits_previous) for op in ops),
        last_of_stream=last,
        last_main=last[MAIN_STREAM],
    )
