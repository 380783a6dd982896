"""Routings by batch: a table of step times and gains, a row a routing, a column a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from essim.results.columns import ResultRow
from essim.results.notes import gains_over_others
from essim.text.units import format_seconds
from reports.verdict import grouped


@dataclass(frozen=True)
class ByBatch:
    """One table: points that differ in routing and batch alone.

    Attributes
    ----------
    title
        What its cells are.
    rows
        ``routing``, and ``batch N`` for each batch: the mean step, the gain over the baseline,
        and a star where no routing is faster. The baseline and dense attention have no gain.
    """

    title: str
    rows: list[dict[str, str]]


def by_batch(rows: Sequence[ResultRow], baselines: Sequence[str]) -> list[ByBatch]:
    """Return a table for each setting with several routings and batches, at its longest output."""
    tables = []
    for setting, members in grouped(rows).items():
        rated = {i: row for i, row in members.items() if row["step_s"] is not None}
        output = max((row["output_tokens"] for row in rated.values()), default=0)
        at: dict[str, dict[int, ResultRow]] = {}
        for row in rated.values():
            if row["output_tokens"] == output:
                at.setdefault(row["routing"], {})[row["batch"]] = row
        batches = sorted({batch for own in at.values() for batch in own})
        if len(at) > 1 and len(batches) > 1:
            baseline = baselines[next(iter(members))]
            title = f"Mean decode step and gain over {baseline}, at {output} output tokens"
            title += f"; * is the fastest{f'  [{setting}]' if setting else ''}"
            tables.append(ByBatch(title, _cells(at, batches, baseline)))
    return tables


def _cells(
    at: Mapping[str, Mapping[int, ResultRow]], batches: Sequence[int], baseline: str
) -> list[dict[str, str]]:
    least = {b: min(own[b]["step_s"] or 0.0 for own in at.values() if b in own) for b in batches}
    table = []
    for routing, own in at.items():
        cells = {"routing": routing}
        for batch in batches:
            row = own.get(batch)
            text = "does not run"
            if row is not None:
                gain = gains_over_others(row, baseline)["decode_gain_frac"]
                text = format_seconds(row["step_s"]) + ("" if gain is None else f" {gain:+.1%}")
                text += " *" if row["step_s"] == least[batch] else ""
            cells[f"batch {batch}"] = text
        table.append(cells)
    return table
