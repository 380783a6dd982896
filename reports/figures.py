"""Figures of a sweep: throughput, TPOT and gain over what was swept.

A figure's `layout.meta["notes"]` lists sentences to print under it, such as the points left out.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from plotly.graph_objects import Figure, Scatter

from essim.results.column import AnyRow, Column, Rows
from essim.results.tables import column
from reports.axes import axis_title, fixed_texts, groups, is_count, place_text, places
from reports.palette import NEUTRAL
from reports.series import Series, hover, series_of, value_of

Metric: TypeAlias = Literal["decode", "output"]

_RATE = {"decode": "decode_tokens_per_s", "output": "output_tokens_per_s"}
_GAIN = {"decode": "decode_gain_frac", "output": "output_gain_frac"}
_HEIGHTS = {1: 440, 2: 620, 3: 800}
_BREAK_EVEN = "Below the line at 0 a routing costs more than it saves."
_BARS = "Bars: 5th to 95th percentile."
_DOTTED = "Dotted: the largest gain possible, if routing cost nothing."


def curves(
    rows: Rows,
    baseline: str,
    axis: str,
    metric: Metric = "decode",
    by: Sequence[str] = (),
    most: int | None = None,
) -> list[Figure]:
    """Draw throughput over an axis, TPOT over batch, and the gain where there is one.

    Parameters
    ----------
    rows : sequence of mappings
        One row per point.
    baseline : str
        Routing that the rows' gains are against.
    axis : str
        Column of the x axis. The other axes are fixed: a figure for each of their values.
    metric : {"decode", "output"}
        Decode throughput, or end-to-end throughput with prefill.
    by : sequence of str
        Further swept columns; those that are no numbers tell lines apart.
    most : int, optional
        Draw no more figures; default all.

    Returns
    -------
    list of Figure
        Empty where the axis has fewer than two values.
    """
    lines = [key for key in by if key != axis and not is_count(rows, key)]
    shown = [column(_RATE[metric])]
    if (metric, axis) == ("decode", "batch"):
        shown.append(column("tpot_s"))
    figures: list[Figure] = []
    for group in groups(rows, axis, by):
        if len(figures) == most:
            break
        series = series_of(rows, group, axis, lines)
        if any(len(s.xs) > 1 and any(v is not None for v in s.values(shown[0])) for s in series):
            figures.append(_figure(series, group, shown, column(_GAIN[metric]), axis, baseline, by))
    return figures


def _figure(
    series: Sequence[Series],
    group: Rows,
    shown: Sequence[Column],
    gain: Column,
    axis: str,
    baseline: str,
    by: Sequence[str],
) -> Figure:
    gains = [s for s in series if any(s.values(gain))]
    ceiling = _ceiling(series) if gain.name == _GAIN["decode"] and gains else []
    figure, names = Figure(), [c.heading for c in shown]
    for i, each in enumerate(shown):
        figure.add_traces([_line(s, each, i) for s in series])
    if gains:
        figure.add_traces([_line(s, gain, len(shown)) for s in gains])
        figure.add_traces([line.update(yaxis=_axis("y", len(shown))) for line in ceiling])
        names.append(f"gain over {baseline}")
    *most, last = names
    what = f"{', '.join(most)} and {last}" if most else last
    title = f"{what[:1].upper()}{what[1:]} by {column(axis).heading}"
    _lay_out(figure, title, group, axis, len(names), by)
    for i, each in enumerate(shown):
        figure.layout[_axis("yaxis", i)].title.text = each.title
    if gains:
        figure.layout[_axis("yaxis", len(shown))].update(_gain_axis(gains, gain, baseline))
    drawn = [*shown, gain] if gains else [*shown]
    notes = [_BREAK_EVEN] * bool(gains) + [_DOTTED] * bool(ceiling)
    notes += [_BARS] * any(_bars(s, c) is not None for s in series for c in drawn)
    gaps = _gaps(series, column(axis).heading, drawn, baseline)
    figure.layout.meta = {"notes": [" ".join(notes), *gaps] if notes else gaps}
    return figure


def _axis(prefix: str, i: int) -> str:
    return prefix if i == 0 else f"{prefix}{i + 1}"


def _line(series: Series, shown: Column, panel: int) -> Scatter:
    texts, template = hover(series.name, series.rows)
    return Scatter(
        x=list(series.xs),
        y=series.values(shown),
        name=html.escape(series.name),
        legendgroup=series.name,
        showlegend=panel == 0,
        yaxis=_axis("y", panel),
        mode="lines+markers",
        connectgaps=False,
        line={"color": series.look.colour, "width": 2, "dash": series.dash},
        marker={"color": series.look.colour, "symbol": series.look.symbol, "size": 9},
        error_y=_bars(series, shown),
        customdata=texts,
        hovertemplate=template,
    )


def _bars(series: Series, shown: Column) -> dict[str, object] | None:
    """Return error bars to a column's 5th and 95th percentile, None where rows have none."""
    middle = series.values(shown)
    low, high = (series.values(column(f"{shown.name}_{end}")) for end in ("p5", "p95"))
    if all(value is None for value in (*low, *high)):
        return None
    return {
        "type": "data",
        "symmetric": False,
        "array": _apart(high, middle),
        "arrayminus": _apart(middle, low),
        "thickness": 1,
        "width": 3,
    }


def _apart(above: Sequence[float | None], below: Sequence[float | None]) -> list[float | None]:
    """Return how far each number is above another; below it an end is drawn as none."""
    pairs = zip(above, below, strict=True)
    return [None if a is None or b is None else round(max(0.0, a - b), 9) for a, b in pairs]


def _ceiling(series: Sequence[Series]) -> list[Scatter]:
    """Return a dotted line of the largest gain possible, or nothing where no row knows it."""
    shown = column("gain_ceiling_frac")
    at_x = zip(*(s.values(shown) for s in series), strict=True)
    best = [max((v for v in values if v is not None), default=None) for values in at_x]
    if all(value is None for value in best):
        return []
    line = Scatter(
        x=list(series[0].xs),
        y=best,
        name="if routing cost nothing",
        mode="lines",
        connectgaps=False,
        line={"color": NEUTRAL, "width": 2, "dash": "dot"},
        hovertemplate="if routing cost nothing: %{y:+.2f} %<extra></extra>",
    )
    return [line]


def _gaps(
    series: Sequence[Series], label: str, shown: Sequence[Column], baseline: str
) -> list[str]:
    """Return a sentence for each reason and set of points that are not drawn."""
    at_reason: dict[tuple[str, str], list[str]] = {}
    for s in series:
        for x, row in zip(s.xs, s.rows, strict=True):
            reason = _why_missing(row, shown, baseline)
            if reason:
                at_reason.setdefault((s.name, reason), []).append(place_text(x))
    names: dict[tuple[str, str], list[str]] = {}
    for (name, reason), at in at_reason.items():
        names.setdefault((", ".join(at), reason), []).append(name)
    return [
        f"Not drawn: {', '.join(who)} at {label} {at}: {reason.rstrip('.')}."
        for (at, reason), who in names.items()
    ]


def _why_missing(row: AnyRow | None, shown: Sequence[Column], baseline: str) -> str:
    """Return why a point lacks a value, or nothing; a baseline needs no gain over itself."""
    if row is None:
        return ""
    if row.get("status") != "ok":
        return str(row.get("reason") or row.get("status") or "no status")
    needed = [c for c in shown if row.get("routing") != baseline or c.name not in _GAIN.values()]
    lacking = [c.heading for c in needed if value_of(row, c) is None]
    return f"no {lacking[0]} is known" if lacking else ""


def _gain_axis(series: Sequence[Series], gain: Column, baseline: str) -> dict[str, object]:
    """Return the axis of a gain, reaching a little past 0 so that the line there is seen."""
    sizes = [abs(value) for s in series for value in s.values(gain) if value is not None]
    margin = round(0.05 * max(sizes, default=1.0), 9)
    return {
        "title": {"text": f"{gain.heading}<br>over {html.escape(baseline)}, %"},
        "autorangeoptions": {"include": [-margin, margin]},
        "zeroline": True,
        "zerolinewidth": 2,
    }


def _lay_out(
    figure: Figure, title: str, group: Rows, axis: str, panels: int, by: Sequence[str]
) -> None:
    """Set title, setting, the x axis with a tick at each swept value, and a panel an axis."""
    ticks = places(group, axis)
    setting = " · ".join(fixed_texts(group, axis, by))
    numbers = [tick for tick in ticks if isinstance(tick, int | float)]
    x: dict[str, Any] = {
        "title": {"text": axis_title(axis), "standoff": 8},
        "type": ("log" if min(numbers) > 0 else "linear") if numbers else "category",
        "anchor": _axis("y", panels - 1),
    }
    if numbers:
        x |= {"tickvals": ticks, "ticktext": [place_text(tick) for tick in ticks]}
    figure.update_layout(
        title={"text": html.escape(title), "subtitle": {"text": html.escape(setting)}},
        height=_HEIGHTS[panels],
        xaxis=x,
        hovermode="closest",
    )
    # The first panel is the highest; a little room between two.
    share = 1 / panels
    for i in range(panels):
        domain = [1 - (i + 1) * share + (0.09 if i < panels - 1 else 0), 1 - i * share]
        figure.layout[_axis("yaxis", i)] = {"domain": domain}
