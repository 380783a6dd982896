"""Break-even maps: two swept axes, a colour for what is gained."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from plotly.graph_objects import Figure, Heatmap, Scatter

from essim.results.column import AnyRow, Rows, number
from essim.results.tables import column

# Percent -> colour: loss orange, break-even grey, gain blue, each dark enough for white text.
# The ends are the same on every map, and so is what a colour means.
_END = 50.0
_COLOURS = {
    **{-50.0: "#8f2d04", -25.0: "#c2410c", -5.0: "#94604a", 0.0: "#6b7280"},
    **{5.0: "#4a6fa8", 25.0: "#1f6fd6", 50.0: "#1737c4"},
}
_SCALE = [[(at + _END) / (2 * _END), colour] for at, colour in _COLOURS.items()]
_MAPS = {
    "early_gain_frac": (
        "Where early routing pays",
        "early_routing",
        "fastest early routing",
        "Against the fastest routing that waits for the layer's own query.",
    ),
    "sparse_gain_frac": (
        "Where sparse attention pays at all",
        "best_routing",
        "fastest routing",
        "Against dense attention over the whole cache.",
    ),
}

_SCALED = "Grey: break-even. Colours are full from 50 % on, on every map."
_HATCHED = "Hatched: one routing's time is mostly measured there and another's carried over."


def break_even_maps(
    choices: Mapping[str, Mapping[str | None, Rows]], x: str, y: str
) -> list[Figure]:
    """Draw both maps for every setting of the axes that they do not show.

    Parameters
    ----------
    choices : mapping
        For ``early_gain_frac`` and ``sparse_gain_frac``: of each routing alone, and under None of
        the best of each cell, one row per cell: ``setting``, the two axes, ``best_routing``,
        ``early_routing``, and the two gains.
    x, y : str
        Columns of the axes.
    """
    figures = []
    for setting in dict.fromkeys(_setting(cell) for own in choices.values() for cell in own[None]):
        for gain, by_routing in choices.items():
            known = {}
            for routing, cells in by_routing.items():
                own = [cell for cell in cells if _setting(cell) == setting]
                if any(number(cell.get(gain)) is not None for cell in own):
                    known[routing] = own
            if known:
                figures.append(_map(known, x, y, gain, setting))
    return figures


def _setting(cell: AnyRow) -> str:
    return str(cell.get("setting") or "")


def _map(choices: Mapping[str | None, Rows], x: str, y: str, gain: str, setting: str) -> Figure:
    """Draw a map with a choice of the routing, where there is more than one."""
    title, who, best, note = _MAPS[gain]
    cells = choices[None]
    xs, ys = (list(dict.fromkeys(cell.get(axis) for cell in cells)) for axis in (x, y))
    figure = Figure()
    for own in choices.values():
        figure.add_trace(_heat(own, x, y, xs, ys, gain, who).update(visible=own is cells))
        hatching = _hatching([cell for cell in own if cell.get("unlike_sources")], x, y)
        figure.add_trace(hatching.update(visible=own is cells))
    hatched = any(cell.get("unlike_sources") for own in choices.values() for cell in own)
    figure.update_layout(
        title={"text": title, "subtitle": {"text": html.escape(setting)}},
        height=180 + 50 * len(ys),
        xaxis={"title": {"text": column(x).title}, "type": "category"},
        yaxis={"title": {"text": column(y).title}, "type": "category", "autorange": "reversed"},
        meta={"notes": [note, _SCALED, *[_HATCHED] * hatched]},
        showlegend=False,
    )
    # Of one routing alone the best is that one.
    if len(choices) > 2:
        figure.update_layout(margin={"t": 52}, updatemenus=[_menu([*choices], best)])
    return figure


def _menu(choices: Sequence[str | None], best: str) -> dict[str, object]:
    """Return a choice of the routing: each has a map and its hatching."""
    buttons = [
        {
            "label": html.escape(choice or best),
            "method": "update",
            "args": [{"visible": [shown == choice for shown in choices for _ in range(2)]}],
        }
        for choice in choices
    ]
    place = {"x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "pad": {"b": 8}}
    return {"buttons": buttons, "showactive": False, **place}


def _heat(
    cells: Rows, x: str, y: str, xs: Sequence[object], ys: Sequence[object], gain: str, who: str
) -> Heatmap:
    at = {(cell.get(x), cell.get(y)): cell for cell in cells}
    percent: list[list[float | None]] = []
    texts: list[list[str]] = []
    for row in ys:
        line = [at.get((place, row), {}) for place in xs]
        gains = [number(cell.get(gain)) for cell in line]
        percent.append([None if value is None else round(100 * value, 9) for value in gains])
        texts.append([_text(cell.get(who), value) for cell, value in zip(line, gains, strict=True)])
    return Heatmap(
        x=_labels(xs),
        y=_labels(ys),
        z=percent,
        text=texts,
        texttemplate="%{text}",
        textfont={"color": "#ffffff"},
        colorscale=_SCALE,
        zmin=-_END,
        zmax=_END,
        xgap=2,
        ygap=2,
        colorbar={"thickness": 12, "ticksuffix": " %", "tickvals": [-50, -25, 0, 25, 50]},
        hovertemplate=f"{x} %{{x}}<br>{y} %{{y}}<br>%{{text}}<extra></extra>",
    )


def _hatching(cells: Rows, x: str, y: str) -> Scatter:
    """Draw slanted lines over cells whose routings were not priced alike."""
    return Scatter(
        x=_labels([cell.get(x) for cell in cells]),
        y=_labels([cell.get(y) for cell in cells]),
        mode="markers",
        marker={"symbol": "line-ne", "size": 40, "line": {"width": 2, "color": "#ffffff"}},
        opacity=0.5,
        hoverinfo="skip",
    )


def _labels(values: Sequence[object]) -> list[str]:
    return [f"{value:,}" if isinstance(value, int) else html.escape(str(value)) for value in values]


def _text(who: object, gain: float | None) -> str:
    return "" if gain is None else f"{html.escape(str(who))}<br>{gain:+.1%}"
