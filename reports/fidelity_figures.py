"""Figures of a fidelity run: by layer, position and rank; quality, passkeys, throughput."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean

from plotly.graph_objects import Figure, Heatmap, Scatter
from plotly.subplots import make_subplots

from essim.results.column import AnyRow, Rows, number
from essim.results.columns import unique
from essim.results.fidelity import setting_name
from reports.palette import METHODS, NEUTRAL, ROUTINGS, Look

# A query looks as the routing does that is made with it; domains and selectors as methods do.
_QUERIES = {"target": "gpu-target", "in": "cpu-in", "mid": "cpu-mid", "mix": "cpu-mix"}
_LOOKS = (*METHODS.values(), ROUTINGS["gpu-target"], ROUTINGS["cpu-mix"], ROUTINGS["dense"])
_NOBODY = Look(NEUTRAL, "circle")


def by_layer(rows: Rows, panels: Mapping[str, tuple[str, str | None]], title: str) -> Figure:
    """Draw measures over layers, a line a query, means over domains (Figures 6 and 10).

    Parameters
    ----------
    rows
        By domain, layer and query, of one selector and budget.
    panels
        Column -> (what it is, and the selector of rows that have it, None for queries' rows).
    """
    figure = make_subplots(cols=len(panels), horizontal_spacing=0.12)
    for at, (column, (label, selector)) in enumerate(panels.items(), start=1):
        figure.update_yaxes(title_text=label, col=at)
        own = [row for row in rows if row.get("selector") == selector]
        own = [row for row in own if not row["projection_rank"]]
        for kind in ("target", "in", "mid"):
            lines = [row for row in own if row["query"] == kind]
            if not lines or (selector is None and kind == "target"):
                continue
            layers = unique(lines, "layer")
            means = [_mean(row[column] for row in lines if row["layer"] == n) for n in layers]
            line = _line(layers, means, kind, _of_query(kind), showlegend=at == len(panels))
            figure.add_trace(line, row=1, col=at)
    figure.update_xaxes(title_text="target layer")
    return _laid(figure, title, 420)


def over_positions(rows: Rows, title: str) -> Figure:
    """Draw measures over decode position with their 95 % intervals (Figure 7)."""
    measures = [str(name) for name in unique(rows, "measure") if not str(name).endswith("slope")]
    figure = make_subplots(cols=len(measures), horizontal_spacing=0.12)
    for at, name in enumerate(measures, start=1):
        figure.update_yaxes(title_text=name, col=at)
        for kind in unique(rows, "query"):
            own = [row for row in rows if row["measure"] == name and row["query"] == kind]
            middle, low, high = (_column(own, key) for key in ("mean", "low", "high"))
            line = _line(
                _column(own, "position"),
                middle,
                str(kind),
                _of_query(str(kind)),
                showlegend=at == 1,
            )
            line.error_y = {
                "array": [h - m for h, m in zip(high, middle, strict=True)],
                "arrayminus": [m - n for m, n in zip(middle, low, strict=True)],
                "thickness": 1,
            }
            figure.add_trace(line, row=1, col=at)
    figure.update_xaxes(title_text="decode position")
    return _laid(figure, title, 400)


def over_rank(rows: Rows, title: str) -> Figure:
    """Draw what a low-rank projection keeps of the choice, over rank (Figure 9)."""
    panels = {"mass_frac": "retained mass", "overlap_frac": "overlap with the real query's choice"}
    figure = make_subplots(cols=2, horizontal_spacing=0.15)
    for at, (column, label) in enumerate(panels.items(), start=1):
        figure.update_yaxes(title_text=label, col=at)
        own = [row for row in rows if row["query"] == "mid" and row.get("selector") == "rocketkv"]
        ranks = sorted({int(str(r)) for r in unique(own, "projection_rank") if r})
        means = [_mean(r[column] for r in own if r["projection_rank"] == rank) for rank in ranks]
        whole = _mean(row[column] for row in own if not row["projection_rank"])
        x = [*map(str, ranks), "full"]
        line = _line(x, [*means, whole], "mid", _of_query("mid"), showlegend=False)
        figure.add_trace(line, row=1, col=at)
    figure.update_xaxes(title_text="rank of the projection", type="category")
    return _laid(figure, title, 380)


def gaps(rows: Rows, tau: float, title: str) -> Figure:
    """Draw mass(Mid) - mass(In) over layers, a line a domain, with the tolerance."""
    figure = Figure()
    for at, domain in enumerate(d for d in unique(rows, "domain") if d != "all"):
        own = [row for row in rows if row["domain"] == domain]
        layers, values = _column(own, "layer"), _column(own, "gap_frac")
        figure.add_trace(_line(layers, values, str(domain), _LOOKS[at % len(_LOOKS)]))
    figure.add_hline(y=tau, line_dash="dot", annotation_text=f"tau = {tau:g}")
    figure.update_xaxes(title_text="target layer")
    figure.update_yaxes(title_text="mass(Mid) - mass(In)")
    return _laid(figure, title, 420)


def mass_against_quality(quality: Rows, lost_mass: Mapping[str, float], title: str) -> Figure:
    """Draw KL to dense over the mass that is not retained, a point a setting."""
    figure = Figure()
    known = [row for row in quality if setting_name(row) in lost_mass]
    for at, selector in enumerate(unique(known, "selector")):
        own = [row for row in known if row["selector"] == selector]
        figure.add_trace(
            Scatter(
                x=[lost_mass[setting_name(row)] for row in own],
                y=_column(own, "kl_nats"),
                error_y={"array": _column(own, "kl_se_nats"), "thickness": 1},
                text=[setting_name(row).removeprefix(f"{selector} ") for row in own],
                mode="markers+text",
                textposition="top center",
                name=str(selector),
                marker=_marker(_LOOKS[at % len(_LOOKS)]),
            )
        )
    figure.update_xaxes(title_text="attention mass that is not retained")
    figure.update_yaxes(title_text="KL to dense, nats a token", type="log")
    return _laid(figure, title, 460)


def passkey_map(rows: Rows, title: str) -> Figure:
    """Draw which passkeys are found: a row a setting, a column a length and depth (Figure 13)."""
    settings = [str(name) for name in unique(rows, "setting")]
    places = list(dict.fromkeys((row["context_tokens"], row["depth_frac"]) for row in rows))
    found = {(r["setting"], r["context_tokens"], r["depth_frac"]): r["found"] for r in rows}
    labels = [f"{length} at {100 * (number(depth) or 0):.0f} %" for length, depth in places]
    values = [[found.get((name, *place)) for place in places] for name in settings]
    scale = [[0, ROUTINGS["gpu-target"].colour], [1, ROUTINGS["cpu-mid"].colour]]
    figure = Figure(
        Heatmap(z=values, x=labels, y=settings, zmin=0, zmax=1, colorscale=scale, showscale=False)
    )
    figure.update_yaxes(autorange="reversed", automargin=True)
    figure.update_layout(meta={"notes": ["Blue: found. Empty: dense attention fails, too."]})
    return _laid(figure, title, 160 + 26 * len(settings))


def quality_against_throughput(rows: Rows, title: str) -> Figure:
    """Draw KL to dense over simulated throughput; the frontier is a line."""
    known = [row for row in rows if number(row.get("decode_tokens_per_s")) is not None]
    figure = Figure()
    groups = dict.fromkeys((row["selector"], row["where"], row["query"]) for row in known)
    for selector, where, query in groups:
        keys = (selector, where, query)
        own = [row for row in known if (row["selector"], row["where"], row["query"]) == keys]
        marker = _marker(ROUTINGS[f"{where}-{query}" if where else "dense"])
        if selector not in ("rocketkv", "dense"):
            marker["symbol"] = f"{marker['symbol']}-open"
        figure.add_trace(
            Scatter(
                x=_column(own, "decode_tokens_per_s"),
                y=_column(own, "kl_nats"),
                mode="markers",
                name=html.escape(f"{selector}, {where}-{query}" if where else str(selector)),
                marker=marker,
                hovertext=[setting_name(row) for row in own],
                hovertemplate="%{hovertext}<br>%{x:.1f} tokens/s, %{y:.3f} nats<extra></extra>",
            )
        )
    best = sorted((row for row in known if row["frontier"]), key=_speed)
    line = _line(_column(best, "decode_tokens_per_s"), _column(best, "kl_nats"), "frontier")
    line.mode = "lines"
    figure.add_trace(line)
    first = known[0] if known else {}
    figure.update_xaxes(title_text=f"decode tokens/s: {first.get('throughput_of', '')}, simulated")
    figure.update_yaxes(title_text=f"KL to dense, nats a token:<br>{first.get('quality_of', '')}")
    return _laid(figure, title, 520)


def _speed(row: AnyRow) -> float:
    return number(row["decode_tokens_per_s"]) or 0.0


def _column(rows: Rows, key: str) -> list[float]:
    return [value for row in rows if (value := number(row.get(key))) is not None]


def _mean(values: Iterable[object]) -> float:
    return mean(value for given in values if (value := number(given)) is not None)


def _of_query(kind: str) -> Look:
    return ROUTINGS[_QUERIES[kind]]


def _marker(own: Look) -> dict[str, object]:
    return {"color": own.colour, "symbol": own.symbol, "size": 9}


def _line(
    x: Sequence[object],
    y: Sequence[float],
    name: str,
    own: Look = _NOBODY,
    showlegend: bool = True,
) -> Scatter:
    return Scatter(
        x=list(x),
        y=list(y),
        name=html.escape(name),
        legendgroup=name,
        showlegend=showlegend,
        mode="lines+markers",
        line={"color": own.colour, "width": 2},
        marker={"symbol": own.symbol, "size": 6},
    )


def _laid(figure: Figure, title: str, height: int) -> Figure:
    figure.update_layout(title={"text": html.escape(title), "x": 0}, height=height)
    return figure
