"""From how many CPU threads on a router hides, where a sweep varies them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from essim.results.columns import ResultRow

# A route hides where what it exposes beyond handing over is no more of a step.
HIDDEN_FRAC = 0.05


def cores_sentences(rows: Iterable[ResultRow]) -> list[str]:
    """Return a sentence a CPU routing: at each batch, from how many threads on it hides.

    What is exposed at least, at any batch and number of threads of the routing, is handing over.
    Nothing is said where threads do not vary.
    """
    routings: dict[str, list[ResultRow]] = defaultdict(list)
    for row in rows:
        if row["where"] == "cpu" and row["step_s"] and row["exposed_routing_s"] is not None:
            routings[row["routing"]].append(row)
    return [_sentence(routing, own) for routing, own in routings.items() if _threads(own) > 1]


def _threads(rows: Iterable[ResultRow]) -> int:
    return len({row["cpu_threads"] for row in rows})


def _sentence(routing: str, rows: list[ResultRow]) -> str:
    hand_over_s = min(row["exposed_routing_s"] or 0.0 for row in rows)
    parts: list[str] = []
    for batch in sorted({row["batch"] for row in rows}):
        own = [row for row in rows if row["batch"] == batch]
        enough: int | None = None
        for threads in sorted({row["cpu_threads"] or 0 for row in own}, reverse=True):
            there = [row for row in own if row["cpu_threads"] == threads]
            if not all(_hidden(row, hand_over_s) for row in there):
                break
            enough = threads
        told = "with no number swept" if enough is None else f"from {enough} threads on"
        parts.append(f"batch {batch} {told}")
    meant = f"but for handing over, at most {HIDDEN_FRAC:.0%} of a step is exposed"
    return f"{routing} hides ({meant}) at {', '.join(parts)}."


def _hidden(row: ResultRow, hand_over_s: float) -> bool:
    beyond_s = (row["exposed_routing_s"] or 0.0) - hand_over_s
    return beyond_s <= HIDDEN_FRAC * (row["step_s"] or 0.0)
