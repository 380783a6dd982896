"""Timeline: one step to look at: when every op runs, the critical path, what routing exposes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from essim.engines import finish_maxplus
from essim.engines.graph import Graph
from essim.results.column import Row
from essim.simulate.replay import Run
from essim.step.kinds import KINDS
from essim.step.ops import MAIN_STREAM
from essim.step.price import SOURCES
from essim.text.units import PS_PER_S

# The row of ops that are pure delays: flags and small payloads on their way.
FLAGS = "flags"


@dataclass(frozen=True)
class Timeline:
    """Starts and ends of the ops of one step, in list order, from the step's own origin.

    Attributes
    ----------
    critical
        Positions of the ops that follow one another without a gap up to the step's end: shortening
        none of the others can shorten the step.
    """

    run: Run
    step: int
    start_ps: tuple[int, ...]
    end_ps: tuple[int, ...]
    critical: tuple[int, ...]

    @staticmethod
    def of(run: Run, step: int) -> Timeline:
        """Return the timeline of a run's step (0 is the first), as the run simulated it."""
        ends = finish_maxplus(run.ops, [row[: step + 1] for row in run.durations_ps])[:, step]
        durations = np.array([row[step] for row in run.durations_ps])
        starts = ends - durations
        path = _critical_path(Graph.of(run.ops), starts, ends)
        return Timeline(run, step, tuple(starts.tolist()), tuple(ends.tolist()), path)

    def step_s(self) -> float:
        """Return how long the step takes."""
        return self.end_ps[Graph.of(self.run.ops).last_main] / PS_PER_S

    def rows(self) -> list[Row]:
        """Return one row an op: where and when it runs, its price's source, what it means.

        ``exposed_s`` is what the op costs the main stream for routing's sake: its own time for
        routing and hand-over on the main stream, and for any op the wait before it. ``window_s``
        of a route op, from ``window_start_s`` on, is the time from when its anchor is handed over
        until the main stream has nothing left to do before it needs the answer.
        """
        graph, rows = Graph.of(self.run.ops), []
        sources = {k: SOURCES[int(p.rank[self.step])] for k, p in self.run.prices.items()}
        for i, op in enumerate(self.run.ops):
            before = graph.before[i]
            idle = self.start_ps[i] - (self.end_ps[before] if before is not None else 0)
            on_main = op.stream == MAIN_STREAM
            wait_ps = idle if on_main else 0
            routes = KINDS[op.kind].part == "routing"
            own_ps = self.end_ps[i] - self.start_ps[i] if on_main and routes else 0
            rows.append(
                {
                    "name": op.name,
                    "kind": op.kind,
                    "stream": op.stream or FLAGS,
                    "start_s": self.start_ps[i] / PS_PER_S,
                    "end_s": self.end_ps[i] / PS_PER_S,
                    "wait_s": wait_ps / PS_PER_S,
                    "exposed_s": (wait_ps + own_ps) / PS_PER_S,
                    **self._window(i),
                    "critical": int(i in self.critical),
                    "source": sources[op.kind],
                }
            )
        return rows

    def _window(self, i: int) -> Row:
        """Return the window of a route op beside the main stream, Nones for any other op."""
        op, graph = self.run.ops[i], Graph.of(self.run.ops)
        nothing: Row = {"window_start_s": None, "window_s": None}
        if op.stage != "route" or op.stream == MAIN_STREAM:
            return nothing
        at = {other.stage: j for j, other in enumerate(self.run.ops) if other.layer == op.layer}
        anchor = at.get("publish", at.get("slowdown"))
        needed = graph.before[at.get("await", at["attn"])]
        if anchor is None or needed is None:
            return nothing
        length_ps = self.end_ps[needed] - self.end_ps[anchor]
        return {
            "window_start_s": self.end_ps[anchor] / PS_PER_S,
            "window_s": length_ps / PS_PER_S,
        }

    def trace(self) -> dict[str, Any]:
        """Return the step in the Chrome trace event format, which Perfetto opens too."""
        rows, args = self.rows(), []
        for row in rows:
            start_us, end_us = (float(row[key] or 0.0) * 1e6 for key in ("start_s", "end_s"))
            args.append(
                {
                    "price_us": round(end_us - start_us, 6),
                    "source": row["source"],
                    "critical": bool(row["critical"]),
                    "exposed_us": round(float(row["exposed_s"] or 0.0) * 1e6, 6),
                }
            )
        return chrome_trace(rows, args)


def chrome_trace(rows: Sequence[Row], args: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return ops in the Chrome trace event format, a thread a stream.

    Viewers read whole nanoseconds, and drop or misplace events that are empty or overlap. So an op
    that takes no time is left out, and ops of one stream that are under way at once, such as flags,
    get a thread each.

    Parameters
    ----------
    rows
        Each with ``name``, ``kind``, ``stream``, ``start_s`` and ``end_s``.
    args
        What to show beside each.
    """
    events: list[dict[str, Any]] = []
    free_ns: dict[str, int] = {}  # when the last event of each thread ends
    in_time = sorted(zip(rows, args, strict=True), key=lambda op: float(op[0]["start_s"] or 0.0))
    for row, shown in in_time:
        start_ns, end_ns = (round(float(row[key] or 0.0) * 1e9) for key in ("start_s", "end_s"))
        if start_ns == end_ns:
            continue
        thread = _thread(str(row["stream"]), start_ns, free_ns)
        free_ns[thread] = end_ns
        events.append(
            {
                "name": row["name"],
                "cat": row["kind"],
                "ph": "X",
                "pid": 0,
                "tid": list(free_ns).index(thread),
                "ts": _us(start_ns),
                "dur": _us(end_ns - start_ns),
                "args": shown,
            }
        )
    names: list[dict[str, Any]] = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": tid, "args": {"name": thread}}
        for tid, thread in enumerate(free_ns)
    ]
    return {"displayTimeUnit": "ns", "traceEvents": names + events}


def _thread(stream: str, start_ns: int, free_ns: dict[str, int]) -> str:
    """Return the first thread of a stream that nothing is under way on: its name, or with a 2."""
    count = itertools.count(2)
    thread = stream
    while free_ns.get(thread, 0) > start_ns:
        thread = f"{stream} {next(count)}"
    return thread


def _us(time_ns: int) -> float:
    """Return microseconds of which a reader that cuts after a nanosecond finds `time_ns` again."""
    time_us = time_ns / 1000
    return time_us if int(time_us * 1000) == time_ns else math.nextafter(time_us, math.inf)


def _critical_path(graph: Graph, starts: Any, ends: Any) -> tuple[int, ...]:
    """Walk back from the step's end through ops that end when the next one starts."""
    path = [graph.last_main]
    while True:
        before = [j for j in graph.sources(path[-1]) if ends[j] == starts[path[-1]]]
        if not before:
            return tuple(reversed(path))
        # The op before it on its stream comes first in sources, so ties stay on the main stream.
        path.append(before[0])
