"""Figures of predictions beside a real run: parity, curves, calibration and validation points."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from plotly.graph_objects import Figure, Scatter

from reports.columns import Row, Rows, column, number
from reports.series import COLOURS, SPARE_COLOURS, SYMBOLS

_STEP, _GAIN = column("measured_s"), column("measured_gain_frac")


def parity(pairs: Rows) -> Figure:
    """Draw predicted over measured step time, a marker a cell, with the line where they agree."""
    times = [t for row in pairs for key in ("predicted_s", "measured_s") if (t := _ms(row, key))]
    ends = [min(times) * 0.95, max(times) * 1.05]
    figure = Figure(
        [
            Scatter(
                x=ends,
                y=ends,
                mode="lines",
                name="equal",
                line={"color": "#808080", "dash": "dot"},
                hoverinfo="skip",
            )
        ]
    )
    for mode, own in _by_mode(pairs).items():
        figure.add_trace(
            _markers(mode, pairs, own, [_ms(r, "measured_s") for r in own], "predicted", "s")
        )
    figure.update_layout(
        title={"text": "Predicted over measured mean step", "x": 0},
        height=560,
        xaxis={"title": {"text": "measured, ms"}, "type": "log"},
        yaxis={"title": {"text": "predicted, ms"}, "type": "log"},
        hovermode="closest",
    )
    return figure


def curves(pairs: Rows, which: str, axis: str) -> list[Figure]:
    """Draw predictions as lines and measurements as markers over batch or context.

    Parameters
    ----------
    which : {"s", "gain_frac"}
        Step time, with the spread of repetitions and the predicted interval, or the gain.
    axis : {"batch", "context_tokens"}
        The other of the two is at its smallest and its largest value; a figure for each, and for
        each budget of attended tokens.
    """
    other = "context_tokens" if axis == "batch" else "batch"
    shown = [row for row in pairs if number(row.get(f"predicted_{which}")) is not None]
    if not shown:
        return []
    counts = sorted({int(number(row[other]) or 0) for row in shown})
    budgets = dict.fromkeys(row["attended_tokens"] for row in shown if row["mode"] != "dense")
    figures = []
    for fixed in dict.fromkeys((counts[0], counts[-1])):
        for budget in budgets or {None: None}:
            own = [
                row
                for row in shown
                if row[other] == fixed
                and (row["mode"] == "dense" or row["attended_tokens"] == budget)
            ]
            if len({row[axis] for row in own}) > 1:
                where = f"{column(other).label} {fixed:,}"
                figures.append(_curve(pairs, own, which, axis, where, budget))
    return figures


def _curve(pairs: Rows, shown: Rows, which: str, axis: str, where: str, budget: object) -> Figure:
    figure = Figure()
    for mode, own in _by_mode(shown).items():
        rows = sorted(own, key=lambda row: number(row[axis]) or 0.0)
        xs = [row[axis] for row in rows]
        for trace in _band(rows, xs, _colour(pairs, mode)) if which == "s" else ():
            figure.add_trace(trace)
        figure.add_trace(_line(mode, pairs, rows, xs, which))
        figure.add_trace(_markers(mode, pairs, rows, xs, "measured", which, legend=False))
    _lay_out(figure, which, axis, where, budget)
    return figure


def grid(pairs: Rows, points: Mapping[str, Sequence[tuple[int, int]]]) -> Figure:
    """Draw where tables were calibrated and where steps were validated."""
    calibrated = sorted({tuple(point) for own in points.values() for point in own})
    validated = sorted({(row["batch"], row["context_tokens"]) for row in pairs}, key=str)
    figure = Figure()
    for name, places, symbol, colour in (
        (f"calibration, {len(calibrated)} points", calibrated, "circle-open", "#808080"),
        (f"validation, {len(validated)} points", validated, "x", "#d55e00"),
    ):
        figure.add_trace(
            Scatter(
                x=[batch for batch, _ in places],
                y=[context for _, context in places],
                mode="markers",
                name=name,
                marker={"symbol": symbol, "color": colour, "size": 9},
                hovertemplate="batch %{x}, context %{y}<extra></extra>",
            )
        )
    figure.update_layout(
        title={"text": "Calibration and validation points", "x": 0},
        height=460,
        xaxis={"title": {"text": "batch, sequences"}, "type": "log"},
        yaxis={"title": {"text": "context, tokens"}, "type": "log"},
        meta={"notes": [f"Tables: {', '.join(points)}."]},
    )
    return figure


def _by_mode(rows: Rows) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(str(row["mode"]), []).append(row)
    return groups


def _ms(row: Row, key: str) -> float | None:
    return _STEP.scaled(row.get(key))


def _value(row: Row, side: str, which: str) -> float | None:
    return (_STEP if which == "s" else _GAIN).scaled(row.get(f"{side}_{which}"))


def _colour(pairs: Rows, mode: str) -> str:
    unknown = [name for name in _by_mode(pairs) if name not in COLOURS]
    return COLOURS.get(mode) or SPARE_COLOURS[unknown.index(mode) % len(SPARE_COLOURS)]


def _line(mode: str, pairs: Rows, rows: Rows, xs: Sequence[object], which: str) -> Scatter:
    return Scatter(
        x=xs,
        y=[_value(row, "predicted", which) for row in rows],
        name=html.escape(mode),
        legendgroup=mode,
        mode="lines",
        line={"color": _colour(pairs, mode), "width": 2},
        hoverinfo="skip",
    )


def _markers(
    mode: str,
    pairs: Rows,
    rows: Rows,
    xs: Sequence[object],
    side: str,
    which: str,
    legend: bool = True,
) -> Scatter:
    """Return a marker a cell; a measured step time carries the spread of its repetitions."""
    modes, values = list(_by_mode(pairs)), [_value(row, side, which) for row in rows]
    spread: dict[str, Any] = {}
    if side == "measured" and which == "s":
        ends = [[_ms(row, f"measured_{end}_s") or 0.0 for row in rows] for end in ("low", "high")]
        up, down = (
            [abs(end - (value or 0.0)) for end, value in zip(own, values, strict=True)]
            for own in reversed(ends)
        )
        spread = {"error_y": {"type": "data", "symmetric": False, "array": up, "arrayminus": down}}
    return Scatter(
        x=xs,
        y=values,
        name=html.escape(mode),
        legendgroup=mode,
        showlegend=legend,
        mode="markers",
        marker={
            "color": _colour(pairs, mode),
            "symbol": SYMBOLS[modes.index(mode) % len(SYMBOLS)],
            "size": 8,
        },
        hovertext=[_hover(row) for row in rows],
        hovertemplate="%{hovertext}<extra></extra>",
        **spread,
    )


def _band(rows: Rows, xs: Sequence[object], colour: str) -> list[Scatter]:
    """Return the predicted interval as an area, nothing where it is not known."""
    low, high = ([_ms(row, f"predicted_{end}_s") for row in rows] for end in ("low", "high"))
    if None in (*low, *high):
        return []
    return [
        Scatter(
            x=[*xs, *xs[::-1]],
            y=[*low, *high[::-1]],
            mode="lines",
            line={"width": 0},
            fill="toself",
            fillcolor=f"rgba{(*bytes.fromhex(colour[1:]), 0.18)}",
            showlegend=False,
            hoverinfo="skip",
        )
    ]


def _hover(row: Row) -> str:
    keys = (
        *("context_tokens", "attended_tokens", "predicted_s", "measured_s", "measured_low_s"),
        *("measured_high_s", "error_frac", "predicted_gain_frac", "measured_gain_frac"),
    )
    shown = [(column(key), row.get(key)) for key in keys if row.get(key) is not None]
    lines = [f"{c.label}: {c.text_with_unit(value)}" for c, value in shown]
    return "<br>".join([f"<b>{html.escape(str(row['mode']))}, batch {row['batch']}</b>", *lines])


def _lay_out(figure: Figure, which: str, axis: str, fixed: str, budget: object) -> None:
    what = "Mean step" if which == "s" else "Gain over gpu-target"
    attended = f", {budget} attended tokens" if budget is not None else ""
    spread = " Bars: least and largest of the repetitions." if which == "s" else ""
    ticks = sorted({int(x) for trace in figure.data for x in trace.x})
    figure.update_layout(
        title={
            "text": f"{what} over {column(axis).label}",
            "subtitle": {"text": f"{fixed}{attended}"},
            "x": 0,
        },
        height=460,
        xaxis={
            "title": {"text": column(axis).heading},
            "type": "log",
            "tickvals": ticks,
            "ticktext": [f"{tick:,}" for tick in ticks],
        },
        yaxis={
            "title": {"text": f"mean step, {_STEP.unit}" if which == "s" else f"gain, {_GAIN.unit}"}
        },
        hovermode="closest",
        meta={"notes": [f"Lines: predicted. Markers: measured.{spread}"]},
    )
