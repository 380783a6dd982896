"""Tables in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from essim.results.column import AnyRow, Row
from essim.results.columns import ResultRow, differing
from essim.results.tables import column
from essim.text.units import format_bytes, format_seconds

# A longer table is cut to the shortest and longest output length, then to this many rows.
_MOST_ROWS = 60

# Below this share of measured time a table comes with a warning.
_MEASURED_ENOUGH = 0.8

_RESULTS = (
    *("decode_tokens_per_s", "decode_gain_frac", "gain_ceiling_frac", "step_s"),
    *("exposed_routing_s", "cpu_busy_frac", "output_gain_frac"),
    "gain_over_dense_frac",
)
PROVISIONAL = "The hardware profile is provisional: first numbers, not a calibration."


# Piped output has no width of its own.
_PIPE_WIDTH = 120


def _console() -> Console:
    return Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH)


class TableProgress(Protocol):
    """How far a table is measured."""

    @property
    def done(self) -> int:
        """Points done."""

    @property
    def total(self) -> int:
        """Points to do."""


def _heading(key: str) -> str:
    return column(key).short or key


def _text(key: str, value: object) -> str:
    return column(key).brief(value)


def run(row: ResultRow, parts: Sequence[Row], provisional: bool) -> None:
    """Print one point: its numbers, and where a mean decode step goes."""
    console = _console()
    table = Table(box=SIMPLE_HEAD, show_header=False, title=row["name"], title_justify="left")
    for key, value in row.items():
        if value not in (None, "") and key != "name":
            table.add_row(key, _text(key, value))
    console.print(table)
    if parts:
        table = Table(
            box=SIMPLE_HEAD, title="a mean decode step on the main stream", title_justify="left"
        )
        table.add_column("part", overflow="fold")
        for heading in ("time", "share", "source"):
            table.add_column(heading, justify="right", overflow="fold")
        for part in parts:
            table.add_row(
                str(part["part"]),
                format_seconds(float(part["time_s"] or 0)),
                f"{part['share_frac']:.1%}",
                str(part["source"]),
            )
        console.print(table)
    _warn([row], provisional)


def sweep(rows: Sequence[ResultRow], provisional: bool) -> None:
    """Print the grid: what differs, then throughput, gains and exposure."""
    shown = list(rows)
    if len(shown) > 40:
        outputs = sorted({row["output_tokens"] for row in shown})
        shown = [row for row in shown if row["output_tokens"] in (outputs[0], outputs[-1])]
    axes = differing(rows) or ["routing"]
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for key in (*axes, *_RESULTS):
        left = key in axes and any(isinstance(row.get(key), str) for row in rows)
        table.add_column(
            _heading(key),
            justify="left" if left else "right",
            no_wrap=left,
            overflow="fold",
        )
    for row in shown[:_MOST_ROWS]:
        cells = [_text(key, row.get(key)) for key in (*axes, *_RESULTS)]
        if row["status"] != "ok":
            cells[len(axes)] = str(row["reason"])
        table.add_row(*cells)
    _console().print(table)
    if len(shown[:_MOST_ROWS]) < len(rows):
        print(f"{len(shown[:_MOST_ROWS])} of {len(rows)} rows shown; --out writes all of them.")
    kinds = _roofline_kinds(rows)
    if kinds:
        print(f"Priced by roofline, not timed: {' '.join(kinds)}.")
    _warn(rows, provisional)


def _roofline_kinds(rows: Sequence[ResultRow]) -> list[str]:
    """Return the op kinds that some row prices by roofline, in decode or prefill."""
    kinds: set[str] = set()
    for row in rows:
        for sources in (row["price_sources"], row["prefill_sources"]):
            kinds |= set(sources.kinds.get("roofline", ()) if sources else ())
    return sorted(kinds)


def _warn(rows: Sequence[ResultRow], provisional: bool) -> None:
    """Say it when numbers are weak."""
    if provisional:
        print(PROVISIONAL)
    least = min((r["measured_frac"] for r in rows if r["measured_frac"] is not None), default=1.0)
    if least < _MEASURED_ENOUGH:
        weak = ", ".join(f"{source} ({' '.join(kinds)})" for source, kinds in _weak(rows).items())
        print(f"Only {least:.0%} of the decode time is measured or interpolated. The rest is")
        print(f"{weak}: compare with care.")


def _weak(rows: Sequence[ResultRow]) -> dict[str, list[str]]:
    """Return by source the op kinds of a step that some row does not have measured."""
    kinds: dict[str, set[str]] = {}
    for row in rows:
        sources = row["price_sources"]
        for source, names in sources.kinds.items() if sources else ():
            if source not in ("measured", "interpolated"):
                kinds.setdefault(source, set()).update(names)
    return {source: sorted(names) for source, names in kinds.items()}


def columns(rows: Sequence[AnyRow], keys: Sequence[str]) -> None:
    """Print rows with the given columns."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for i, key in enumerate(keys):
        table.add_column(_heading(key), justify="right" if i else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_text(key, row[key]) for key in keys))
    _console().print(table)


def entries(found: Sequence[dict[str, str]]) -> None:
    """Print names with a line about each."""
    table = Table(box=None, show_header=False, pad_edge=False)
    for entry in found:
        table.add_row(entry["name"], entry["about"])
    _console().print(table)


def break_even(cells: Sequence[Row], x: str, y: str) -> None:
    """Print the break-even map: the fastest early routing in each cell and what it gains."""
    for setting in dict.fromkeys(str(cell["setting"]) for cell in cells):
        own = [cell for cell in cells if cell["setting"] == setting]
        title = "early routing's gain over waiting for the layer's own query"
        table = Table(box=SIMPLE_HEAD, pad_edge=False, title=f"{title}  {setting}".strip())
        table.title_justify = "left"
        table.add_column(f"{_heading(y)} \\ {_heading(x)}", overflow="fold")
        columns = list(dict.fromkeys(cell[x] for cell in own))
        for value in columns:
            table.add_column(str(value), justify="right", overflow="fold")
        for value in dict.fromkeys(cell[y] for cell in own):
            at = {cell[x]: cell for cell in own if cell[y] == value}
            table.add_row(str(value), *(_map_cell(at.get(column)) for column in columns))
        _console().print(table)


def _map_cell(cell: Row | None) -> str:
    if cell is None or cell["early_gain_frac"] is None:
        return "-"
    return f"{cell['early_gain_frac']:+.1%}\n{cell['early_routing']}"


def memory(name: str, lines: Sequence[Row], facts: Sequence[str]) -> None:
    """Print the derivation of every byte."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=name, title_justify="left")
    for heading in ("where", "what", "from"):
        table.add_column(heading, overflow="fold")
    table.add_column("bytes", justify="right", overflow="fold")
    table.add_column("", justify="right", overflow="fold")
    last = ""
    for line in lines:
        place = str(line["place"])
        count = int(line["bytes"] or 0)
        shown = "" if place == last else place
        table.add_row(
            shown, str(line["what"]), str(line["formula"]), f"{count:,}", format_bytes(count)
        )
        last = place
    _console().print(table)
    print(*facts, sep="\n")


def comparison(result: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], cells: bool) -> None:
    """Print errors and gains by mode, op by op where steps were traced, and cell by cell."""
    if cells:
        low_high = ["predicted_low_s", "predicted_high_s"] if result["coverage"] else []
        cell = ["mode", "batch", "context_tokens", "attended_tokens"]
        columns(result["pairs"], [*cell, "predicted_s", *low_high, "measured_s", "error_frac"])
    group = ["mode", "attended_tokens"]
    columns(
        result["errors"], [*group, "cells", "bias_frac", "mape_frac", "worst_frac", "worst_cell"]
    )
    if result["gains"]:
        columns(result["gains"], [*group, "gains", "mean_points", "worst_points", "worst_cell"])
    for step in steps:
        print(f"{step['of']['mode']}, op by op:")
        shown = ["kind", "predicted_ops", "real_ops", "predicted_s", "real_s", "error_s"]
        columns(step["errors"], [*shown, "error_frac"])


@contextmanager
def table_progress() -> Iterator[Callable[[str, TableProgress], None]]:
    """Yield a callback that shows which table is measured, on stderr, if someone is looking."""
    if not sys.stderr.isatty():
        yield lambda table, state: None
        return
    with Progress(*Progress.get_default_columns(), console=Console(stderr=True)) as bar:
        tasks: dict[str, TaskID] = {}

        def tell(table: str, state: TableProgress) -> None:
            if table not in tasks:
                tasks[table] = bar.add_task(table, total=state.total)
            bar.update(tasks[table], completed=state.done, total=state.total)

        yield tell
