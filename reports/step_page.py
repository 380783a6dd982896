"""One step as a picture: a row a stream, the critical path outlined, exposed routing hatched."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from plotly.graph_objects import Bar, Figure

from essim.results.column import AnyRow, Rows, number
from reports.page import Block, Chart, Details, Heading, Paragraph, Table

# Legend name -> colour and the op kinds shown in it; what fits nowhere is routing.
_GROUPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "GEMM": ("#1f7fd6", ("gemm", "head")),
    "attention": ("#00966d", ("attn",)),
    "norm, RoPE, activation": ("#8a6fd1", ("norm", "rope", "act", "embed", "host")),
    "routing and hand-over": ("#d55e00", ("",)),
}
_WAITING = ("waiting for the router", "#808080")
_WINDOW = ("window: anchor to need", "#c27a00")
_STREAMS = {"gpu": "GPU", "gpu_side": "GPU, side stream", "cpu": "CPU router", "flags": "flags"}


def step_figure(rows: Rows, title: str) -> Figure:
    """Draw a step.

    Parameters
    ----------
    rows : sequence of mappings
        One row per op: ``name kind stream start_s end_s wait_s exposed_s window_s critical
        source``.
    title : str
        What is shown.
    """
    figure = Figure()
    for group, (colour, _) in _GROUPS.items():
        own = [row for row in rows if _group(str(row.get("kind"))) == group]
        if own:
            figure.add_trace(_bars(group, colour, own))
    waits = [row for row in rows if (number(row.get("wait_s")) or 0.0) > 0]
    if waits:
        figure.add_trace(_waits(waits))
    windows = [row for row in rows if number(row.get("window_s")) is not None]
    if windows:
        figure.add_trace(_windows(windows))
    streams = list(dict.fromkeys(_stream(row) for row in rows))
    figure.update_layout(
        title={"text": html.escape(title), "x": 0},
        barmode="overlay",
        bargap=0.25,
        height=240 + 70 * len(streams),
        xaxis={"title": {"text": "time in the step, us"}, "range": _first_view(rows)},
        yaxis={"categoryorder": "array", "categoryarray": streams[::-1], "type": "category"},
        legend={"orientation": "h", "y": -0.35},
        dragmode="pan",
        meta={
            "notes": [
                "Outlined: on the critical path. Hatched: exposed, time the step would not take "
                "if routing and hand-over cost nothing. Drag to move, use the tools to zoom; "
                "it opens at the first routed layers."
            ]
        },
    )
    return figure


def step_blocks(
    rows: Rows, parts: Rows, verdict: str, title: str, manifest: Mapping[str, object]
) -> list[Block]:
    """Compose the page of one point: verdict, the step, where its time goes, every op."""
    return [
        Paragraph(verdict, "verdict"),
        Heading("One decode step"),
        Chart(step_figure(rows, title)),
        Heading("Where a mean step goes on the main stream"),
        Table(list(parts), ["part", "time_s", "share_frac", "achieved_bytes_per_s", "source"]),
        Details("Every op", [Table(list(rows), list(rows[0]) if rows else [])]),
        Details("Versions and digests", [Table(_entries(manifest), ["key", "value"])]),
    ]


def _entries(manifest: Mapping[str, object]) -> list[dict[str, object]]:
    return [{"key": key, "value": str(value)} for key, value in manifest.items()]


def _group(kind: str) -> str:
    return next(n for n, (_, starts) in _GROUPS.items() if any(kind.startswith(s) for s in starts))


def _stream(row: AnyRow) -> str:
    return _STREAMS.get(str(row.get("stream")), str(row.get("stream")))


def _us(row: AnyRow, key: str) -> float:
    return round((number(row.get(key)) or 0.0) * 1e6, 6)


def _bars(name: str, colour: str, rows: Rows) -> Bar:
    on_main = name == "routing and hand-over"
    hatched = ["/" if on_main and _us(row, "exposed_s") > 0 else "" for row in rows]
    return Bar(
        name=name,
        orientation="h",
        y=[_stream(row) for row in rows],
        base=[_us(row, "start_s") for row in rows],
        x=[round(_us(row, "end_s") - _us(row, "start_s"), 6) for row in rows],
        text=[html.escape(str(row.get("name"))) for row in rows],
        textposition="inside",
        insidetextanchor="middle",
        constraintext="inside",
        hovertext=[_hover(row) for row in rows],
        hoverinfo="text",
        marker={
            "color": colour,
            "pattern": {"shape": hatched, "fgcolor": "#ffffff", "size": 6},
            "line": {
                "width": [2.0 if row.get("critical") else 0.0 for row in rows],
                "color": "#d6455d",
            },
        },
    )


def _waits(rows: Rows) -> Bar:
    name, colour = _WAITING
    return Bar(
        name=name,
        orientation="h",
        y=[_stream(row) for row in rows],
        base=[round(_us(row, "start_s") - _us(row, "wait_s"), 6) for row in rows],
        x=[_us(row, "wait_s") for row in rows],
        hovertext=[f"{row.get('name')} waits {_us(row, 'wait_s'):,.2f} us" for row in rows],
        hoverinfo="text",
        marker={
            "color": "rgba(128,128,128,0.15)",
            "pattern": {"shape": "/", "fgcolor": colour, "size": 6},
        },
    )


def _windows(rows: Rows) -> Bar:
    """Thin bars on the router's row: from the anchor's hand-over until the answer is needed."""
    name, colour = _WINDOW
    widths = [_us(row, "window_s") for row in rows]
    return Bar(
        name=name,
        orientation="h",
        y=[_stream(row) for row in rows],
        base=[_us(row, "window_start_s") for row in rows],
        x=widths,
        width=0.12,
        offset=0.42,
        hovertext=[
            f"window of {row.get('name')}: {w:,.2f} us" for row, w in zip(rows, widths, strict=True)
        ],
        hoverinfo="text",
        marker={"color": colour},
    )


def _hover(row: AnyRow) -> str:
    lines = [
        f"<b>{html.escape(str(row.get('name')))}</b>",
        f"{_us(row, 'start_s'):,.3f} to {_us(row, 'end_s'):,.3f} us",
        f"price {_us(row, 'end_s') - _us(row, 'start_s'):,.3f} us, {row.get('source')}",
    ]
    if _us(row, "wait_s"):
        lines.append(f"waited {_us(row, 'wait_s'):,.3f} us")
    if number(row.get("window_s")) is not None:
        lines.append(f"window {_us(row, 'window_s'):,.3f} us")
    return "<br>".join(lines)


def _first_view(rows: Sequence[AnyRow]) -> list[float]:
    """Return the time of layers 1 to 3, or of everything where there are fewer."""
    starts = [_us(row, "start_s") for row in rows if row.get("name") == "norm1.1"]
    ends = [_us(row, "end_s") for row in rows if row.get("name") == "down.3"]
    if starts and ends:
        return [starts[0], ends[0]]
    return [0.0, max((_us(row, "end_s") for row in rows), default=1.0)]
