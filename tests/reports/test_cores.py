"""A sweep of CPU threads says from how many on a router hides."""

from __future__ import annotations

from essim.results.columns import ResultRow
from reports.cores import cores_sentences


def row(
    routing: str, batch: int, threads: int, exposed_s: float, step_s: float = 5e-3
) -> ResultRow:
    """Return what the sentence reads of a row."""
    where = routing.partition("-")[0]
    return {  # type: ignore[typeddict-item]
        **{"routing": routing, "where": where, "batch": batch, "cpu_threads": threads},
        **{"exposed_routing_s": exposed_s, "step_s": step_s},
    }


def test_threads_are_enough_where_all_larger_numbers_are() -> None:
    rows = [row("cpu-mid", 1, 2, 4.0e-4), row("cpu-mid", 1, 8, 4.1e-4)]
    rows += [row("cpu-mid", 4, 2, 6.5e-4), row("cpu-mid", 4, 8, 6.4e-4)]
    # 4 threads look enough, 8 do not: from none on.
    rows += [row("cpu-mid", 8, 2, 9e-3, 12e-3), row("cpu-mid", 8, 8, 7e-4)]
    rows += [row("gpu-target", 1, 8, 1e-3)]
    assert cores_sentences(rows) == [
        "cpu-mid hides (but for handing over, at most 5% of a step is exposed) at batch 1 from 2 "
        "threads on, batch 4 from 2 threads on, batch 8 with no number swept."
    ]


def test_nothing_is_said_of_one_number_of_threads() -> None:
    assert cores_sentences([row("cpu-mid", 1, 8, 4e-4), row("cpu-mid", 8, 8, 1e-3)]) == []
