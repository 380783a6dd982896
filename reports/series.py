"""The lines of a figure: their names, looks, points and hover texts."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from essim.results.column import MISSING, AnyRow, Column, Rows, number
from essim.results.columns import unique
from essim.results.tables import column

# Readable on white and near-black; told apart by hue, lightness and marker.
COLOURS = {
    "gpu-target": "#808080",
    "gpu-target-fused": "#c27a00",
    "cpu-target": "#b5609b",
    "cpu-in": "#00966d",
    "cpu-mid": "#1f7fd6",
    "gpu_side-mid": "#d55e00",
    "cpu-mix": "#0f9aa8",
    "gpu_side-in": "#7a8f00",
    "gpu_side-mix": "#8a6fd1",
}
SPARE_COLOURS = ("#a07a3c", "#d6455d", "#3a95cc", "#cc6699")
SYMBOLS = ("circle", "square", "diamond", "cross", "star", "x", "triangle-up", "triangle-down")
SETTING = ("model", "hardware", "input_tokens")

_HOVER = (
    *("output_tokens", "decode_tokens_per_s", "decode_tokens_per_s_p5", "decode_tokens_per_s_p95"),
    *("decode_gain_frac", "decode_gain_frac_p5", "decode_gain_frac_p95", "gain_ceiling_frac"),
    *("output_tokens_per_s", "output_gain_frac", "prefill_s", "decode_s", "step_s", "tpot_s"),
    *("exposed_routing_s", "gpu_busy_frac", "cpu_busy_frac", "kv_bytes", "summary_gpu_bytes"),
    *("summary_cpu_bytes", "max_batch", "measured_frac"),
)


@dataclass(frozen=True)
class Series:
    """One line: its look, and its row at each x or None where there is none."""

    name: str
    routing: str
    colour: str
    symbol: str
    xs: tuple[int, ...]
    rows: tuple[AnyRow | None, ...]

    def values(self, shown: Column) -> list[float | None]:
        """Return a column's numbers in the shown unit; None for points that are not ok."""
        return [value_of(row, shown) for row in self.rows]


def value_of(row: AnyRow | None, shown: Column) -> float | None:
    """Return a row's number in the shown unit; None for a point that is not ok."""
    return shown.shown.scaled(row.get(shown.name)) if row and row.get("status") == "ok" else None


def settings(rows: Rows) -> list[list[AnyRow]]:
    """Split rows by what no axis or line shows, in order of first appearance."""
    groups: dict[tuple[object, ...], list[AnyRow]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(key) for key in SETTING), []).append(row)
    return list(groups.values())


def counts(rows: Rows, key: str) -> list[int]:
    """Return the distinct counts in a column, ascending."""
    values = (number(row.get(key)) for row in rows)
    return sorted({int(value) for value in values if value is not None})


def series_of(rows: Rows, group: Rows, axis: str, by: Sequence[str]) -> list[Series]:
    """Return the lines of a figure.

    Parameters
    ----------
    rows : sequence of mappings
        All rows: names and looks depend on them, so that they are the same in every figure.
    group : sequence of mappings
        The figure's rows.
    axis : str
        Column of the x axis.
    by : sequence of str
        Columns that tell lines apart, besides selector and routing.
    """
    keys = ("selector", "routing", *by)
    several = len(unique(rows, "selector")) > 1
    xs = tuple(counts(group, axis))
    lines = []
    for i, key in enumerate(dict.fromkeys(tuple(row.get(k) for k in keys) for row in rows)):
        own = [row for row in group if tuple(row.get(k) for k in keys) == key]
        name = _name(key, by, several)
        at = {row.get(axis): row for row in own}
        if len(at) < len(own):
            raise ValueError(f"two rows of {name} at one {axis}: put the column that differs in by")
        if own:
            look = (_colour(rows, str(key[1])), SYMBOLS[i % len(SYMBOLS)])
            lines.append(Series(name, str(key[1]), *look, xs, tuple(at.get(x) for x in xs)))
    return lines


def hover_text(name: str, row: AnyRow | None) -> str:
    """Return every number of a point with its unit, and where the prices come from."""
    if row is None:
        return ""
    known = (column(key) for key in _HOVER)
    texts = ((c.heading, c.shown.text_with_unit(row.get(c.name))) for c in known)
    lines = [f"{label}: {text}" for label, text in texts if text != MISSING]
    sources = textwrap.wrap(f"prices {row.get('price_sources') or 'not given'}", 60)
    engine = f"engine {row.get('engine')}, seed {row.get('seed')}"
    text = [html.escape(line) for line in (*lines, *sources, engine)]
    return "<br>".join([f"<b>{html.escape(name)}, batch {row.get('batch')}</b>", *text])


def _name(key: tuple[object, ...], by: Sequence[str], several_selectors: bool) -> str:
    selector, routing, *values = key
    settings = (f", {column(k).heading} {value}" for k, value in zip(by, values, strict=True))
    return (f"{selector} {routing}" if several_selectors else str(routing)) + "".join(settings)


def _colour(rows: Rows, routing: str) -> str:
    """Return a routing's own colour, else a spare one by its place among such routings."""
    if routing in COLOURS:
        return COLOURS[routing]
    names = dict.fromkeys(str(row.get("routing")) for row in rows)
    unknown = [name for name in names if name not in COLOURS]
    return SPARE_COLOURS[unknown.index(routing) % len(SPARE_COLOURS)]
