"""Break-even maps: two swept axes, a colour for what is gained."""

from __future__ import annotations

import html
from collections.abc import Sequence

from plotly.graph_objects import Figure, Heatmap, Scatter

from essim.results.column import Rows, number
from essim.results.tables import column

# Loss red, break-even near neutral grey, gain blue: readable on light and dark.
_SCALE = [[0.0, "#c8553d"], [0.5, "#8c939c"], [1.0, "#1f7fd6"]]
_MAPS = {
    "early_gain_frac": (
        "Where early routing pays",
        "early_routing",
        "The fastest early routing against the fastest that waits for the layer's own query.",
    ),
    "sparse_gain_frac": (
        "Where sparse attention pays at all",
        "best_routing",
        "The fastest sparse routing against dense attention over the whole cache.",
    ),
}

_HATCHED = "Hatched: one routing's time is mostly measured there and another's carried over."


def break_even_maps(cells: Rows, x: str, y: str) -> list[Figure]:
    """Draw both maps for every setting of the axes that they do not show.

    Parameters
    ----------
    cells : sequence of mappings
        One row per cell: ``setting``, the two axes, ``best_routing``, ``early_routing``,
        ``early_gain_frac``, ``sparse_gain_frac``.
    x, y : str
        Columns of the axes.
    """
    figures = []
    for setting in dict.fromkeys(str(cell.get("setting") or "") for cell in cells):
        own = [cell for cell in cells if str(cell.get("setting") or "") == setting]
        for gain in _MAPS:
            if any(number(cell.get(gain)) is not None for cell in own):
                figures.append(_map(own, x, y, gain, setting))
    return figures


def _map(cells: Rows, x: str, y: str, gain: str, setting: str) -> Figure:
    title, who, note = _MAPS[gain]
    xs, ys = (list(dict.fromkeys(cell.get(axis) for cell in cells)) for axis in (x, y))
    at = {(cell.get(x), cell.get(y)): cell for cell in cells}
    percent: list[list[float | None]] = []
    texts: list[list[str]] = []
    for row in ys:
        line = [at.get((place, row), {}) for place in xs]
        gains = [number(cell.get(gain)) for cell in line]
        percent.append([None if value is None else round(100 * value, 9) for value in gains])
        texts.append([_text(cell.get(who), value) for cell, value in zip(line, gains, strict=True)])
    heat = _heat(percent, texts, _labels(xs), _labels(ys), f"{x} %{{x}}<br>{y} %{{y}}")
    hatching = _hatching([cell for cell in cells if cell.get("unlike_sources")], x, y)
    figure = Figure([heat, *hatching])
    figure.update_layout(
        title={"text": title, "subtitle": {"text": html.escape(setting)}, "x": 0},
        height=200 + 46 * len(ys),
        xaxis={"title": {"text": column(x).title}, "type": "category"},
        yaxis={"title": {"text": column(y).title}, "type": "category", "autorange": "reversed"},
        meta={"notes": [note, *[_HATCHED] * bool(hatching)]},
        showlegend=False,
    )
    return figure


def _heat(
    percent: list[list[float | None]],
    texts: list[list[str]],
    xs: Sequence[str],
    ys: Sequence[str],
    where: str,
) -> Heatmap:
    reach = max((abs(value) for row in percent for value in row if value is not None), default=1.0)
    return Heatmap(
        x=xs,
        y=ys,
        z=percent,
        text=texts,
        texttemplate="%{text}",
        textfont={"color": "#ffffff"},
        colorscale=_SCALE,
        zmin=-(reach or 1.0),
        zmax=reach or 1.0,
        xgap=2,
        ygap=2,
        colorbar={"title": {"text": "gain, %"}},
        hovertemplate=f"{where}<br>%{{text}}<extra></extra>",
    )


def _hatching(cells: Rows, x: str, y: str) -> list[Scatter]:
    """Draw slanted lines over cells whose routings were not priced alike."""
    if not cells:
        return []
    return [
        Scatter(
            x=_labels([cell.get(x) for cell in cells]),
            y=_labels([cell.get(y) for cell in cells]),
            mode="markers",
            marker={"symbol": "line-ne", "size": 40, "line": {"width": 2, "color": "#ffffff"}},
            opacity=0.5,
            hoverinfo="skip",
        )
    ]


def _labels(values: Sequence[object]) -> list[str]:
    return [f"{value:,}" if isinstance(value, int) else html.escape(str(value)) for value in values]


def _text(who: object, gain: float | None) -> str:
    return "" if gain is None else f"{html.escape(str(who))}<br>{gain:+.1%}"
