"""The page of published comparisons: parity over all systems, EarlySelectKV's figures, tables."""

from __future__ import annotations

from collections.abc import Mapping

from plotly.graph_objects import Figure, Scatter

from essim.results.column import Rows, number
from essim.results.columns import unique
from reports.axes import place_text
from reports.page import Block, Chart, Details, Heading, Paragraph, Table
from reports.palette import NEUTRAL
from reports.sweep_page import flat

_ROWS = (
    *("system", "setting", "metric", "published", "predicted", "error_frac", "kind"),
    *("fitted", "fitted_on", "held_out"),
)
_PARITY = (
    "Predicted over published, each number over its own published one: on the line both are the "
    "same. Upper bounds may lie below it. Gains and shares are in the table below."
)


def published_blocks(
    rows: Rows, systems: Rows, missing: Rows, curves: Rows, manifest: Mapping[str, object]
) -> list[Block]:
    """Compose the page.

    Parameters
    ----------
    rows : sequence of mappings
        A published number each, with its prediction.
    systems : sequence of mappings
        Errors by system and kind.
    missing : sequence of mappings
        Numbers that have no prediction, and why.
    curves : sequence of mappings
        EarlySelectKV's figures: ``figure``, ``line``, ``x``, ``gain_percent``, ``published``.
    manifest : mapping
        Versions.
    """
    figures = [
        block
        for name in unique(curves, "figure")
        for block in (
            Heading(f"EarlySelectKV, {name}"),
            Chart(gains([row for row in curves if row["figure"] == name])),
        )
    ]
    return [
        Heading("Errors by system"),
        Table(systems, list(systems[0])),
        Heading("Parity"),
        Paragraph(_PARITY),
        Chart(parity(rows)),
        *figures,
        Heading("Every number"),
        Table(rows, _ROWS),
        Details("Without a prediction", [Table(missing, ["system", "number", "reason"])]),
        Details("Versions", [Table(list(flat(manifest)), ["key", "value"])]),
    ]


def parity(rows: Rows) -> Figure:
    """Draw predicted over published, both axes logarithmic, a colour a system."""
    figure = Figure()
    low, high = 1e9, 0.0
    for system in unique(rows, "system"):
        own = [row for row in rows if row["system"] == system and row["unit"] != "%"]
        pairs = [
            (x, y, f"{row['setting']}; {row['metric']}, {row['unit']}; {row['kind']}")
            for row in own
            if (x := number(row["published"])) and (y := number(row["predicted"]))
        ]
        if not pairs:
            continue
        xs, ys, texts = zip(*pairs, strict=True)
        low, high = min(low, *xs, *ys), max(high, *xs, *ys)
        bound = all(row["kind"] == "upper bound" for row in own)
        marker = {"symbol": "triangle-up" if bound else "circle", "size": 7}
        name = str(system)
        figure.add_trace(Scatter(x=xs, y=ys, text=texts, mode="markers", name=name, marker=marker))
    line = {"color": NEUTRAL, "width": 1}
    ends = [low, high]
    figure.add_trace(Scatter(x=ends, y=ends, mode="lines", line=line, showlegend=False))
    figure.update_layout(title="Predicted over published", height=640)
    figure.update_xaxes(type="log", title="published", exponentformat="power")
    figure.update_yaxes(type="log", title="predicted", exponentformat="power")
    return figure


def gains(rows: Rows) -> Figure:
    """Draw gains in percent over output length or batch, with what was published."""
    figure = Figure()
    for line in unique(rows, "line"):
        own = [row for row in rows if row["line"] == line]
        xs, ys = ([row[key] for row in own] for key in ("x", "gain_percent"))
        figure.add_trace(Scatter(x=xs, y=ys, mode="lines+markers", name=str(line)))
    known = [row for row in rows if row["published"] is not None]
    if known:
        xs, ys = ([row[key] for row in known] for key in ("x", "published"))
        marker = {"symbol": "x", "size": 9, "color": NEUTRAL}
        figure.add_trace(Scatter(x=xs, y=ys, mode="markers", name="published", marker=marker))
    ticks = unique(rows, "x")
    texts = [place_text(x) for x in ticks]
    figure.update_layout(title=str(rows[0]["figure"]), height=480)
    axis = str(rows[0]["axis"])
    figure.update_xaxes(type="log", title=axis, tickvals=ticks, ticktext=texts)
    figure.update_yaxes(title="gain of early CPU routing, %", rangemode="tozero")
    return figure
