"""The lines of a figure: their names, looks, points and hover texts."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from essim.results.column import MISSING, AnyRow, Column, Rows
from essim.results.columns import unique
from essim.results.tables import column
from reports.axes import Place, places
from reports.palette import Look, look

# Settings of one routing, told apart by their lines; dots are for ceilings.
_DASHES = ("solid", "dash", "longdash", "dashdot", "longdashdot")

_RATE = "decode_tokens_per_s"
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
    look: Look
    dash: str
    xs: tuple[Place, ...]
    rows: tuple[AnyRow | None, ...]

    def values(self, shown: Column) -> list[float | None]:
        """Return a column's numbers in the shown unit; None for points that are not ok."""
        return [value_of(row, shown) for row in self.rows]


def value_of(row: AnyRow | None, shown: Column) -> float | None:
    """Return a row's number in the shown unit; None for a point that is not ok."""
    return shown.shown.scaled(row.get(shown.name)) if row and row.get("status") == "ok" else None


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
    xs = tuple(places(group, axis))
    found = dict.fromkeys(tuple(row.get(k) for k in keys) for row in rows)
    variants = list(dict.fromkeys((selector, *values) for selector, _, *values in found))
    lines = []
    for key in found:
        own = [row for row in group if tuple(row.get(k) for k in keys) == key]
        name, routing = _name(key, by, several), str(key[1])
        at: dict[object, AnyRow] = {}
        for row in own:
            if at.setdefault(row.get(axis), row).get(_RATE) != row.get(_RATE):
                raise ValueError(f"two rows of {name} at one {axis}: put what differs in by")
        if own:
            dash = _DASHES[variants.index((key[0], *key[2:])) % len(_DASHES)]
            # What has no such setting, as a baseline without a projection, is the same everywhere.
            shown = tuple(at.get(x, at.get(None)) for x in xs)
            lines.append(Series(name, routing, look(routing), dash, xs, shown))
    return lines


def hover(name: str, rows: Sequence[AnyRow | None]) -> tuple[list[list[str]], str]:
    """Return what plotly calls ``customdata`` and ``hovertemplate`` of a line.

    Every number of a point is shown with its unit, and where the prices come from. What is the
    same at all points is in the template alone: these texts are most of a large page.
    """
    points = [_texts(name, row) if row else {} for row in rows]
    known = [point for point in points if point]
    lines: list[str] = []
    changing: list[str] = []
    for label in known[0] if known else ():
        texts = {point[label] for point in known}
        if texts == {MISSING}:
            continue
        if len(texts) == 1:
            lines.append(label + texts.pop())
        else:
            lines.append(f"{label}%{{customdata[{len(changing)}]}}")
            changing.append(label)
    data = [[point.get(label, "") for label in changing] for point in points]
    return data, "<br>".join(lines) + "<extra></extra>"


def _texts(name: str, row: AnyRow) -> dict[str, str]:
    """Return the lines about a point: what each starts with, and how it goes on."""
    sources = textwrap.wrap(f"prices {row.get('price_sources') or 'not given'}", 60)
    engine = f"engine {row.get('engine')}, seed {row.get('seed')}"
    return {
        "<b>": f"{html.escape(name)}, batch {row.get('batch')}</b>",
        **{
            f"{html.escape(shown.heading)}: ": shown.shown.text_with_unit(row.get(shown.name))
            for shown in map(column, _HOVER)
        },
        "": "<br>".join(html.escape(line) for line in (*sources, engine)),
    }


def _name(key: tuple[object, ...], by: Sequence[str], several: bool) -> str:
    selector, routing, *values = key
    settings = (f", {column(k).heading} {value}" for k, value in zip(by, values, strict=True))
    # Dense attention has no routing to be called by.
    name = selector if routing == "none" else f"{selector} {routing}" if several else routing
    return str(name) + "".join(settings)
