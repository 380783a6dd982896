"""What is drawn of pairs: predicted lines and intervals, measured markers and their spread."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from plotly.graph_objects import Scatter

from essim.results.column import AnyRow, Rows
from essim.results.tables import column
from reports.palette import NEUTRAL, look


def value(row: AnyRow, key: str) -> float | None:
    """Return a number of a pair in the unit that its column is shown in."""
    return column(key).shown.scaled(row.get(key))


def line(mode: str, rows: Rows, xs: Sequence[object], which: str) -> Scatter:
    """Return a mode's predictions."""
    return Scatter(
        x=xs,
        y=[value(row, f"predicted_{which}") for row in rows],
        name=html.escape(mode),
        legendgroup=mode,
        mode="lines",
        line={"color": look(mode).colour, "width": 2},
        hoverinfo="skip",
    )


def markers(mode: str, rows: Rows, xs: Sequence[object], key: str) -> Scatter:
    """Return a marker for each pair of a mode, hollow where it is not steady."""
    return Scatter(
        x=xs,
        y=[value(row, key) for row in rows],
        name=html.escape(mode),
        legendgroup=mode,
        mode="markers",
        marker={
            "color": look(mode).colour,
            "symbol": [_symbol(mode, row) for row in rows],
            "size": 9,
        },
        hovertext=[_hover(row) for row in rows],
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _symbol(mode: str, row: AnyRow) -> str:
    """Return a mode's marker, hollow where its measurement is not steady."""
    return look(mode).symbol + ("-open" if row.get("unsteady") else "")


def unsteady(rows: Rows) -> list[Scatter]:
    """Return a legend entry for hollow markers, nothing where there are none."""
    if not any(row.get("unsteady") for row in rows):
        return []
    return [
        Scatter(
            x=[None],
            y=[None],
            name="hollow: unsteady measurement",
            mode="markers",
            marker={"color": NEUTRAL, "symbol": "circle-open", "size": 9},
            hoverinfo="skip",
        )
    ]


def spread(rows: Rows, which: str) -> dict[str, Any]:
    """Return error bars from a measurement to its ends, none where they are not known."""
    middle, low, high = (
        [value(row, f"measured{end}_{which}") for row in rows] for end in ("", "_low", "_high")
    )
    return {
        "type": "data",
        "symmetric": False,
        "array": [_away(*pair) for pair in zip(high, middle, strict=True)],
        "arrayminus": [_away(*pair) for pair in zip(low, middle, strict=True)],
    }


def _away(end: float | None, middle: float | None) -> float | None:
    return None if end is None or middle is None else round(abs(end - middle), 9)


def band(rows: Rows, xs: Sequence[object], which: str, colour: str) -> list[Scatter]:
    """Return the predicted interval as an area, nothing where it is not known."""
    low, high = (
        [value(row, f"predicted_{end}_{which}") for row in rows] for end in ("low", "high")
    )
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


def _hover(row: AnyRow) -> str:
    keys = (
        *("context_tokens", "attended_tokens", "predicted_s", "measured_s", "measured_low_s"),
        *("measured_high_s", "error_frac", "predicted_tokens_per_s", "measured_tokens_per_s"),
        *("predicted_gain_frac", "measured_gain_frac", "measured_low_gain_frac"),
        "measured_high_gain_frac",
    )
    shown = [(column(key), row.get(key)) for key in keys if row.get(key) is not None]
    lines = [f"{c.heading}: {c.shown.text_with_unit(value)}" for c, value in shown]
    return "<br>".join([f"<b>{html.escape(str(row['mode']))}, batch {row['batch']}</b>", *lines])
