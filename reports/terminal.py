"""Tables in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.table import Table

from essim.results.column import AnyRow, Row
from essim.results.columns import ResultRow, differing
from essim.results.notes import QUALITY_NOTE, gains_over_others
from essim.text.units import format_bytes
from reports.by_batch import ByBatch, by_batch
from reports.console import GAP, console, fitting, heading, least_width, say, text_of
from reports.verdict import Verdict, at_most_five

# A longer table is cut to the shortest and longest output length, then to this many rows.
_MOST_ROWS = 60

_RESULTS = (
    *("decode_tokens_per_s", "decode_gain_frac", "gain_ceiling_frac", "step_s"),
    *("exposed_routing_s", "cpu_busy_frac", "output_gain_frac"),
    "gain_over_dense_frac",
)
# More tables of routings by batch are cut to so many.
_MOST_TABLES = 4


def run(row: ResultRow, baseline: str, parts: Sequence[Row]) -> None:
    """Print one point: its numbers, and where a mean decode step goes."""
    screen = console()
    table = Table(box=SIMPLE_HEAD, show_header=False, title=row["name"], title_justify="left")
    for key, value in gains_over_others(row, baseline).items():
        if value not in (None, "") and key != "name":
            table.add_row(key, text_of(key, value))
    screen.print(table)
    if parts:
        print(
            "A mean decode step on the main stream; GB/s are the bytes an op must move, by its time"
        )
        keys = ("part", "time_s", "share_frac", "achieved_bytes_per_s", "source")
        columns(parts, keys)


def sweep(rows: Sequence[ResultRow], baselines: Sequence[str], verbose: bool) -> None:
    """Print the grid: what differs, throughput, gains and exposure; then routings by batch."""
    shown = [gains_over_others(*pair) for pair in zip(rows, baselines, strict=True)]
    if len(shown) > 40:
        outputs = sorted({row["output_tokens"] for row in shown})
        shown = [row for row in shown if row["output_tokens"] in (outputs[0], outputs[-1])]
    shown = shown[:_MOST_ROWS]
    axes = differing(rows) or ["routing"]
    results = [key for key in _RESULTS if any(row.get(key) is not None for row in shown)]
    keys = fitting(axes, results, shown)
    notes = []
    if len(shown) < len(rows):
        notes.append(f"{len(shown)} of {len(rows)} rows shown")
    left_out = [heading(key) for key in results if key not in keys]
    if left_out:
        notes.append(f"no room for {', '.join(left_out)}")
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for key in keys:
        left = key in axes and any(isinstance(row.get(key), str) for row in rows)
        table.add_column(
            heading(key), justify="left" if left else "right", no_wrap=left, overflow="fold"
        )
    for row in shown:
        cells = [text_of(key, row.get(key)) for key in keys]
        if row["status"] != "ok":
            cells[len(axes)] = str(row["reason"])
        table.add_row(*cells)
    console().print(table)
    if notes:
        say(f"({'; '.join(notes)}; --out writes everything)", "")
    tables = by_batch(rows, baselines)
    for own in tables if verbose else tables[:_MOST_TABLES]:
        _by_batch(own)
    if len(tables) > _MOST_TABLES and not verbose:
        print(f"{_MOST_TABLES} of {len(tables)} such tables shown; --verbose prints all of them")


def _by_batch(own: ByBatch) -> None:
    """Print a table of routings by batch, in parts where it is wider than the terminal."""
    screen = console()
    say(own.title)
    names = list(own.rows[0])[1:]
    routings = max(len(row["routing"]) for row in own.rows)
    cell = max(len(row[name]) for row in own.rows for name in names)
    each = max(1, (screen.width - routings - 2) // (cell + GAP))
    for start in range(0, len(names), each):
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        table.add_column("routing", no_wrap=True)
        part = names[start : start + each]
        for name in part:
            table.add_column(name, justify="right")
        for row in own.rows:
            table.add_row(row["routing"], *(row[name] for name in part))
        screen.print(table)


def sentences(verdict: Verdict, verbose: bool) -> None:
    """Print what everybody reads, and the rest if asked for."""
    say(*verdict.sentences, *(verdict.more if verbose else []))
    if verdict.more and not verbose:
        print(f"[{len(verdict.more)} more with --verbose]")


def columns(rows: Sequence[AnyRow], keys: Sequence[str]) -> None:
    """Print rows with the given columns, from the first on as many as there is room for."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    shown = fitting(keys[:1], keys[1:], rows)
    for i, key in enumerate(shown):
        justify: Literal["left", "right"] = "right" if i else "left"
        width = least_width(key, rows)
        table.add_column(heading(key), justify=justify, overflow="fold", min_width=width)
    for row in rows:
        table.add_row(*(text_of(key, row[key]) for key in shown))
    console().print(table)
    if len(shown) < len(keys):
        say(f"(no room for {', '.join(map(heading, keys[len(shown) :]))})", "")


def entries(found: Sequence[dict[str, str]]) -> None:
    """Print names with a line about each, below a header where there is more to say."""
    keys = list(found[0]) if found else []
    heads = [key.replace("_", " ") for key in keys]
    table = Table(*heads, box=None, show_header=len(keys) > 2, pad_edge=False)
    for entry in found:
        table.add_row(*entry.values())
    console().print(table)


_TITLES = {
    "hardware": "tables",
    "unstable_rows": "table rows whose samples spread by more than 10%",
}


def listed(parts: Mapping[str, Sequence[dict[str, str]]]) -> None:
    """Print lists of names, each under its title where there are several."""
    for name, found in parts.items():
        if len(parts) > 1 and found:
            say(f"{_TITLES.get(name, name)}:")
        entries(found)
        if len(parts) > 1 and found:
            say("")


def break_even(cells: Sequence[Row], x: str, y: str) -> None:
    """Print the break-even map: the fastest early routing in each cell and what it gains."""
    names = list(
        dict.fromkeys(c["early_routing"] for c in cells if c["early_gain_frac"] is not None)
    )
    marks = {name: chr(ord("a") + i) for i, name in enumerate(names)} if len(names) > 1 else {}
    for setting in dict.fromkeys(str(cell["setting"]) for cell in cells):
        own = [cell for cell in cells if cell["setting"] == setting]
        if all(cell["early_gain_frac"] is None for cell in own):
            continue
        title = "Gain of the fastest early routing over the fastest that waits for the layer's own "
        say(f"{title}query{f'  [{setting}]' if setting else ''}")
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        table.add_column(f"{heading(y)} \\ {heading(x)}", overflow="fold")
        columns = list(dict.fromkeys(cell[x] for cell in own))
        for value in columns:
            table.add_column(str(value), justify="right", overflow="fold")
        for value in dict.fromkeys(cell[y] for cell in own):
            at = {cell[x]: cell for cell in own if cell[y] == value}
            table.add_row(str(value), *(_map_cell(at.get(column), marks) for column in columns))
        console().print(table)
    legend = [f"{mark}: {name}" for name, mark in marks.items()]
    if names:
        say(f"Fastest early routing: {', '.join(legend) or f'{names[0]} in every cell'}", "")


def _map_cell(cell: Row | None, marks: Mapping[Any, str]) -> str:
    if cell is None or cell["early_gain_frac"] is None:
        return "-"
    return f"{cell['early_gain_frac']:+.1%} {marks.get(cell['early_routing'], '')}".strip()


def memory(name: str, lines: Sequence[Row], facts: Sequence[str], verbose: bool) -> None:
    """Print the derivation of every byte."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title=name, title_justify="left")
    for name in ("where", "what", "from"):
        table.add_column(name, overflow="fold")
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    last = ""
    for line in lines:
        place = str(line["place"])
        count = int(line["bytes"] or 0)
        shown = "" if place == last else place
        table.add_row(
            shown, str(line["what"]), str(line["formula"]), f"{count:,}", format_bytes(count)
        )
        last = place
    console().print(table)
    sentences(at_most_five(facts, [QUALITY_NOTE]), verbose)


def comparison(result: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], cells: bool) -> None:
    """Print errors and gains by mode, op by op where steps were traced, and cell by cell."""
    if cells:
        low_high = ["predicted_low_s", "predicted_high_s"] if result["coverage"] else []
        cell = ["mode", "batch", "context_tokens", "attended_tokens"]
        measured = ["predicted_s", "measured_s", "error_frac", "unsteady"]
        columns(result["pairs"], [*cell, *measured, *low_high])
    group = ["mode", "attended_tokens"]
    errors = ["cells", "unsteady_cells", "bias_frac", "mape_frac", "worst_frac", "worst_cell"]
    columns(result["errors"], [*group, *errors])
    if result["gains"]:
        columns(result["gains"], [*group, "gains", "mean_points", "worst_points", "worst_cell"])
    for step in steps:
        print(f"{step['of']['mode']}, op by op:")
        shown = ["kind", "predicted_ops", "real_ops", "predicted_s", "real_s", "error_s"]
        columns(step["errors"], [*shown, "error_frac"])
