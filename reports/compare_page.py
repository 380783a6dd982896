"""The page of predictions beside a real run: parity, curves, errors, one step over the other."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from plotly.graph_objects import Figure, Scatter

from reports.columns import Row, Rows, column, number
from reports.page import Block, Chart, Details, Heading, Paragraph, Table
from reports.series import COLOURS, SPARE_COLOURS, SYMBOLS
from reports.step_page import step_figure
from reports.sweep_page import flat

_STEP, _GAIN = column("measured_s"), column("measured_gain_frac")
_ERRORS = ("cells", "bias_frac", "mape_frac", "worst_frac", "worst_cell")
_OPS = ("kind", "predicted_ops", "real_ops", "predicted_s", "real_s", "error_s", "error_frac")
_TRACED = (
    "Mean duration of an op by kind. Tracing itself lengthens each real op by a stamp, about a "
    "microsecond: a traced step is longer than a timed one, and a small op looks worse here than "
    "it is. A kind that one of the two does not show has no error."
)


def compare_blocks(
    result: Mapping[str, Any],
    points: Mapping[str, Sequence[tuple[int, int]]],
    steps: Sequence[Mapping[str, Any]],
    sentences: Sequence[str],
    manifest: Mapping[str, object],
) -> list[Block]:
    """Compose the page.

    Parameters
    ----------
    result : mapping
        ``pairs``, ``dropped``, ``errors`` and ``gains`` as rows.
    points : mapping
        Of each table that prices routing or attention, its calibrated (batch, context).
    steps : sequence of mapping
        One predicted step beside a traced one: ``of``, rows ``predicted``, ``real``, ``errors``.
    sentences : sequence of str
        What the comparison found.
    manifest : mapping
        Versions, settings; may be nested.
    """
    pairs: Rows = result["pairs"]
    blocks: list[Block] = [Paragraph(text, "verdict") for text in sentences]
    blocks += [Heading("Parity"), Chart(parity(pairs))]
    blocks += [Heading("Errors by mode")]
    blocks += [Table(result["errors"], ["mode", *_budget(result["errors"]), *_ERRORS])]
    for heading, which in (("Step time", "s"), ("Gain over gpu-target", "gain_frac")):
        figures = [f for axis in ("batch", "context_tokens") for f in curves(pairs, which, axis)]
        if figures:
            blocks += [Heading(heading), *(Chart(figure) for figure in figures)]
    if result["gains"]:
        shown = ["mode", "gains", "mean_points", "worst_points", "worst_cell"]
        blocks += [Heading("Gains by mode"), Table(result["gains"], shown)]
    for step in steps:
        blocks += _step(step)
    if points:
        blocks += [Heading("Calibration and validation"), Chart(grid(pairs, points))]
    blocks += [Details("Every pair", [Table(pairs, list(pairs[0]))])]
    if result["dropped"]:
        dropped: Rows = result["dropped"]
        blocks.append(Details("Without a partner", [Table(dropped, list(dropped[0]))]))
    blocks.append(Details("Versions and settings", [Table(list(flat(manifest)), ["key", "value"])]))
    return blocks


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
        The other of the two is at its first value; a figure for every budget of attended tokens.
    """
    other = "context_tokens" if axis == "batch" else "batch"
    shown = [row for row in pairs if number(row.get(f"predicted_{which}")) is not None]
    if not shown:
        return []
    fixed = min(int(number(row[other]) or 0) for row in shown)
    shown = [row for row in shown if row[other] == fixed]
    routed = [row for row in shown if row["mode"] != "dense"]
    budgets = dict.fromkeys(row["attended_tokens"] for row in routed) or {None: None}
    figures = []
    for budget in budgets:
        own = [r for r in shown if r["mode"] == "dense" or r["attended_tokens"] == budget]
        if len({row[axis] for row in own}) < 2:
            continue
        figure = Figure()
        for mode, rows in _by_mode(own).items():
            rows = sorted(rows, key=lambda row: number(row[axis]) or 0.0)
            xs = [row[axis] for row in rows]
            for trace in _band(rows, xs, _colour(pairs, mode)) if which == "s" else ():
                figure.add_trace(trace)
            figure.add_trace(_line(mode, pairs, rows, xs, which))
            figure.add_trace(_markers(mode, pairs, rows, xs, "measured", which, legend=False))
        _lay_out(figure, which, axis, f"{column(other).label} {fixed:,}", budget)
        figures.append(figure)
    return figures


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


def _step(step: Mapping[str, Any]) -> list[Block]:
    """Return one predicted step over the traced one, and errors by op kind."""
    rows: list[Row] = [
        {**row, "stream": f"{_STREAMS.get(row['stream'], row['stream'])}, {side}"}
        for side in ("predicted", "real")
        for row in step[side]
    ]
    of = step["of"]
    order = sorted(dict.fromkeys(str(row["stream"]) for row in rows))
    rows.sort(key=lambda row: order.index(str(row["stream"])))
    title = f"{of['mode']}, predicted at batch {of['batch']}, context {of['context_tokens']}"
    figure = step_figure(rows, title)
    figure.layout.meta = {
        "notes": [
            "The real step is the one that the run traced for this mode: its first cell. Drag to "
            "move, use the tools to zoom; it opens at the first routed layers."
        ]
    }
    return [
        Heading(f"A step of {of['mode']}, predicted and real"),
        Chart(figure),
        Paragraph(_TRACED, "note"),
        Table(step["errors"], _OPS),
    ]


_STREAMS = {"gpu": "main", "gpu_side": "side", "cpu": "router"}


def _by_mode(rows: Rows) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(str(row["mode"]), []).append(row)
    return groups


def _budget(rows: Rows) -> list[str]:
    key = "attended_tokens"
    return [key] if any(row.get(key) is not None for row in rows) else []


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
        yaxis={"title": {"text": (_STEP if which == "s" else _GAIN).heading}},
        hovermode="closest",
        meta={"notes": [f"Lines: predicted. Markers: measured.{spread}"]},
    )
