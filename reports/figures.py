"""Figures of a sweep: throughput over output length, gain over batch.

A figure's `layout.meta["notes"]` lists sentences to print under it, such as the points left out.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Literal, TypeAlias

from plotly.graph_objects import Figure, Scatter

from essim.results.column import AnyRow, Column, Rows
from essim.results.columns import unique
from essim.results.tables import column
from reports.series import SETTING, Series, counts, hover_text, series_of, settings, value_of

Metric: TypeAlias = Literal["decode", "output"]

_RATE = {"decode": "decode_tokens_per_s", "output": "output_tokens_per_s"}
_GAIN = {"decode": "decode_gain_frac", "output": "output_gain_frac"}
_BREAK_EVEN = "Below the line at 0 a routing costs more than it saves."
_BARS = " Bars: 5th to 95th percentile."
_DOTTED = " Dotted: the largest gain possible, if routing cost nothing."


def throughput_over_output(
    rows: Rows, baseline: str, metric: Metric = "decode", by: Sequence[str] = ()
) -> list[Figure]:
    """Draw throughput and gain over output length, one figure per batch.

    Parameters
    ----------
    rows : sequence of mappings
        One row per point.
    baseline : str
        Routing that the rows' gains are against.
    metric : {"decode", "output"}
        Decode throughput, or end-to-end throughput with prefill.
    by : sequence of str
        Further swept columns that tell lines apart.

    Returns
    -------
    list of Figure
        Empty where fewer than two output lengths were swept.
    """
    rate, gain = column(_RATE[metric]), column(_GAIN[metric])
    figures = []
    for setting in settings(rows):
        for batch in counts(setting, "batch"):
            group = [row for row in setting if row.get("batch") == batch]
            series = series_of(rows, group, "output_tokens", by)
            if not _worth_drawing(series, rate):
                continue
            gains = [s for s in series if not _is_flat_baseline(s, gain, baseline)]
            ceiling = _ceiling(series, "y2") if metric == "decode" else []
            dashed = [_line(s, gain, yaxis="y2", dash="dash") for s in gains]
            figure = Figure([*(_line(s, rate) for s in series), *dashed, *ceiling])
            versus = f" and gain over {baseline}" if dashed else ""
            _lay_out(figure, f"{_capital(rate.heading)}{versus}, batch {batch:,}", group)
            figure.update_layout(height=620, yaxis={"title": {"text": rate.title}})
            if dashed or ceiling:
                lower = _gain_axis(gains, gain, baseline) | {"domain": [0, 0.4]}
                figure.update_layout(yaxis_domain=[0.46, 1], yaxis2=lower, xaxis_anchor="y2")
            note = f"Dashed: {gain.heading}. {_BREAK_EVEN}" + _DOTTED * len(ceiling)
            bars = _BARS * any(_bars(s, rate) is not None for s in series)
            note = (note if dashed else "") + bars
            gaps = _gaps(series, "output_tokens", (rate, gain), baseline)
            figure.layout.meta = {"notes": [note.strip(), *gaps] if note else gaps}
            figures.append(figure)
    return figures


def gain_over_batch(
    rows: Rows, baseline: str, metric: Metric = "decode", by: Sequence[str] = ()
) -> list[Figure]:
    """Draw the gain over batch, at the longest and at the shortest output length.

    Parameters
    ----------
    rows : sequence of mappings
        One row per point.
    baseline : str
        Routing that the rows' gains are against.
    metric : {"decode", "output"}
        Gain in decode throughput, or in end-to-end throughput with prefill.
    by : sequence of str
        Further swept columns that tell lines apart.

    Returns
    -------
    list of Figure
        Empty where fewer than two batches were swept.
    """
    gain = column(_GAIN[metric])
    figures = []
    for setting in settings(rows):
        lengths = counts(setting, "output_tokens")
        for length in dict.fromkeys(lengths[:-2:-1] + lengths[:1]):
            group = [row for row in setting if row.get("output_tokens") == length]
            series = series_of(rows, group, "batch", by)
            gains = [s for s in series if not _is_flat_baseline(s, gain, baseline)]
            if not _worth_drawing(gains, gain):
                continue
            ceiling = _ceiling(series, "y") if metric == "decode" else []
            figure = Figure([*(_line(s, gain) for s in gains), *ceiling])
            title = f"{_capital(gain.heading)} over {baseline} by batch, {length:,} output tokens"
            _lay_out(figure, title, group, axis="batch")
            figure.update_layout(height=460, yaxis=_gain_axis(gains, gain, baseline))
            note = _BREAK_EVEN + _DOTTED * len(ceiling)
            note += _BARS * any(_bars(s, gain) is not None for s in gains)
            figure.layout.meta = {"notes": [note, *_gaps(series, "batch", (gain,), baseline)]}
            figures.append(figure)
    return figures


def _worth_drawing(series: Sequence[Series], shown: Column) -> bool:
    """Say whether there are two places on the x axis and something to draw."""
    return any(len(s.xs) > 1 and any(v is not None for v in s.values(shown)) for s in series)


def _is_flat_baseline(series: Series, gain: Column, baseline: str) -> bool:
    """Say whether a line is the baseline against itself, which the line at 0 shows already."""
    return series.routing == baseline and not any(series.values(gain))


def _line(series: Series, shown: Column, yaxis: str = "y", dash: str = "solid") -> Scatter:
    return Scatter(
        x=list(series.xs),
        y=series.values(shown),
        name=html.escape(series.name),
        legendgroup=series.name,
        showlegend=yaxis == "y",
        yaxis=yaxis,
        mode="lines+markers",
        connectgaps=False,
        line={"color": series.colour, "width": 2, "dash": dash},
        marker={"color": series.colour, "symbol": series.symbol, "size": 8},
        error_y=_bars(series, shown),
        hovertext=[hover_text(series.name, row) for row in series.rows],
        hovertemplate="%{hovertext}<extra></extra>",
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


def _ceiling(series: Sequence[Series], yaxis: str) -> list[Scatter]:
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
        yaxis=yaxis,
        mode="lines",
        connectgaps=False,
        line={"color": "#808080", "width": 2, "dash": "dot"},
        hovertemplate="if routing cost nothing: %{y:+.2f} %<extra></extra>",
    )
    return [line]


def _gaps(series: Sequence[Series], axis: str, shown: Sequence[Column], baseline: str) -> list[str]:
    """Return a sentence for each reason and set of points that are not drawn."""
    places: dict[tuple[str, str], list[str]] = {}
    for s in series:
        for x, row in zip(s.xs, s.rows, strict=True):
            reason = _why_missing(row, shown, baseline)
            if reason:
                places.setdefault((s.name, reason), []).append(f"{x:,}")
    names: dict[tuple[str, str], list[str]] = {}
    for (name, reason), at in places.items():
        names.setdefault((", ".join(at), reason), []).append(name)
    label = "batch" if axis == "batch" else "output length"
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


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _lay_out(figure: Figure, title: str, group: Rows, axis: str = "output_tokens") -> None:
    """Set title, setting and the logarithmic x axis with a tick at each swept value."""
    ticks = counts(group, axis)
    fixed = {key: unique(group, key) for key in (*SETTING, "selector")}
    texts = [", ".join(column(k).shown.text(v) for v in values) for k, values in fixed.items()]
    model, hardware, tokens, selector = texts
    parts = (model, hardware, f"{tokens} input tokens" if tokens else "", selector)
    setting = " · ".join(part for part in parts if part)
    figure.update_layout(
        title={"text": html.escape(title), "subtitle": {"text": html.escape(setting)}, "x": 0},
        xaxis={
            "title": {
                "text": "batch, sequences" if axis == "batch" else column(axis).title,
                "standoff": 8,
            },
            "type": "log",
            "tickvals": ticks,
            "ticktext": [f"{tick:,}" for tick in ticks],
        },
        hovermode="closest",
    )
