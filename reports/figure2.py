"""The page of EarlySelectKV's Figure 2: routing's share of attention-side compute."""

from __future__ import annotations

from collections.abc import Mapping

from plotly.graph_objects import Figure, Scatter

from essim.results.column import Rows, number
from essim.results.columns import unique
from essim.results.tables import column
from reports.page import Block, Chart, Details, Heading, Paragraph, Table
from reports.palette import look
from reports.sweep_page import flat

_SHOWN = (
    *("method", "compression", "budget_tokens", "page_tokens", "channels"),
    *("route_macs", "sparse_macs", "route_share_frac"),
)


def figure2_blocks(rows: Rows, manifest: Mapping[str, object]) -> list[Block]:
    """Compose the page.

    Parameters
    ----------
    rows : sequence of mappings
        One row per method and compression.
    manifest : mapping
        Versions, and under ``loki`` and ``hsa_scan`` the variants chosen.

    Returns
    -------
    list of Block
        For `reports.page.render`.
    """
    return [
        Paragraph(
            "Multiply-accumulates of choosing what to read, as a share of choosing and sparse "
            "attention together. One layer, one token; counts, not times.",
            "lead",
        ),
        Chart(share_over_compression(rows)),
        Paragraph(f"Variants: Loki {manifest['loki']}, HSA scan {manifest['hsa_scan']}.", "note"),
        Heading("Numbers"),
        Table(rows, _SHOWN),
        Details("Versions and variants", [Table(list(flat(manifest)), ["key", "value"])]),
    ]


def share_over_compression(rows: Rows) -> Figure:
    """Draw the share over compression c = S/B, a line for each method."""
    share = column("route_share_frac")
    figure = Figure()
    for method in unique(rows, "method"):
        own = [row for row in rows if row["method"] == method]
        own_look = look(str(method))
        figure.add_trace(
            Scatter(
                x=[row["compression"] for row in own],
                y=[share.shown.scaled(row["route_share_frac"]) for row in own],
                name=str(method),
                mode="lines+markers",
                line={"color": own_look.colour, "width": 2},
                marker={"color": own_look.colour, "symbol": own_look.symbol, "size": 9},
                hovertemplate=f"{method}, c = %{{x}}: %{{y:.2f}} %<extra></extra>",
            )
        )
    ticks = sorted(int(n) for v in unique(rows, "compression") if (n := number(v)) is not None)
    tokens = ", ".join(
        column("context_tokens").shown.text(v) for v in unique(rows, "context_tokens")
    )
    figure.update_layout(
        title={
            "text": "Routing's share of attention-side compute",
            "subtitle": {"text": f"{tokens} cached tokens"},
        },
        height=480,
        xaxis={
            "title": {"text": "compression c = S/B", "standoff": 8},
            "type": "log",
            "tickvals": ticks,
            "ticktext": [str(tick) for tick in ticks],
        },
        yaxis={"title": {"text": "routing, % of multiply-accumulates"}, "range": [0, 100]},
    )
    return figure
