"""The page of ranked selectors: gain over dense attention by context, and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plotly.graph_objects import Figure, Scatter

from essim.results.column import Rows, number
from essim.results.columns import unique
from reports.axes import place_text
from reports.page import Block, Chart, Details, Heading, Paragraph, Table
from reports.palette import NEUTRAL
from reports.sweep_page import flat

# So many lines are drawn; the others are in the legend.
_FASTEST = 12
_SYMBOLS = ("circle", "square", "diamond", "cross", "triangle-up", "star")


def ranking_blocks(
    rows: Rows, ranked: Rows, sentences: Sequence[str], manifest: Mapping[str, object]
) -> list[Block]:
    """Compose the page.

    Parameters
    ----------
    rows : sequence of mappings
        Results of the sweep.
    ranked : sequence of mappings
        A selector each, fastest first.
    sentences : sequence of str
        The answers.
    manifest : mapping
        Versions and settings.
    """
    return [
        *(Paragraph(text, "verdict") for text in sentences),
        Heading("Faster than dense attention, by input length"),
        Chart(over_dense(rows, [str(row["selector"]) for row in ranked])),
        Heading("Selectors, fastest first"),
        Table(ranked, list(ranked[0])),
        Details("Versions and settings", [Table(list(flat(manifest)), ["key", "value"])]),
    ]


def over_dense(rows: Rows, order: Sequence[str]) -> Figure:
    """Draw each selector's gain over dense attention with its fastest routing at each length."""
    figure = Figure()
    for i, kind in enumerate(order):
        best: dict[float, float] = {}
        for row in rows:
            tokens, gain = number(row["input_tokens"]), number(row.get("gain_over_dense_frac"))
            if row["selector"] == kind and tokens is not None and gain is not None:
                best[tokens] = max(100 * gain, best.get(tokens, -100.0))
        if best:
            xs = sorted(best)
            ys = [best[x] for x in xs]
            line = {"color": NEUTRAL} if kind == "dense" else {}
            shown = i < _FASTEST or kind == "dense" or "legendonly"
            marker = {"symbol": _SYMBOLS[i % len(_SYMBOLS)], "size": 8}
            figure.add_trace(
                Scatter(
                    **{"x": xs, "y": ys, "name": kind, "visible": shown, "line": line},
                    **{"mode": "lines+markers", "marker": marker},
                )
            )
    ticks = unique(rows, "input_tokens")
    texts = [place_text(tokens) for tokens in ticks]
    figure.update_layout(title="Gain over dense attention, fastest routing", height=640)
    figure.update_xaxes(type="log", title="input tokens", tickvals=ticks, ticktext=texts)
    figure.update_yaxes(title="decodes faster than dense attention, %")
    return figure
