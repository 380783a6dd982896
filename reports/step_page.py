"""One step as a picture: a lane a stream, what is busy and what is exposed."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence

from plotly.graph_objects import Bar, Figure

from essim.results.column import AnyRow, Rows, number
from reports.page import Block, Chart, Details, Heading, Paragraph, Table
from reports.palette import ATTENTION, EXPOSED, GEMM, NEUTRAL, SMALL, look

# Legend name -> colour and the op kinds shown in it; what fits nowhere is routing.
_GROUPS: dict[str, tuple[str, tuple[str, ...]]] = {
    "GEMM": (GEMM, ("gemm", "head")),
    "attention": (ATTENTION, ("attn",)),
    "norm, RoPE, activation": (SMALL, ("norm", "rope", "act", "embed", "host")),
}
_STREAMS = {"gpu": "GPU", "gpu_side": "GPU, side stream", "cpu": "CPU router", "flags": "flags"}
_EXPOSED = "exposed routing and hand-over"
_HOW_TO_READ = (
    "Red: exposed, time the step would not take if routing and hand-over cost nothing; thin where "
    "the GPU waits. Empty: idle."
)
_ON_PATH = " Line under the ops: the critical path."
_HOW_TO_MOVE = "Drag to move, use the tools to zoom; it opens at the first routed layers."


def step_figure(rows: Rows, title: str, routing: str = "", whole: bool = False) -> Figure:
    """Draw a step.

    Parameters
    ----------
    rows : sequence of mappings
        One row per op: ``name kind stream start_s end_s wait_s exposed_s window_s critical
        source``.
    title : str
        What is shown.
    routing : str
        Name of the routing, which has a colour of its own.
    whole : bool
        Open at the whole step instead of its first routed layers.
    """
    rows = [row for row in rows if _us(row, "end_s") > _us(row, "start_s") - _us(row, "wait_s")]
    figure = Figure()
    for group, (colour, _) in _GROUPS.items():
        _add(figure, _bars(group, colour, [row for row in rows if _group(row) == group]))
    own = look(routing).colour
    routes = [row for row in rows if _group(row) == ""]
    _add(figure, _bars("routing, hidden", own, [r for r in routes if not _us(r, "exposed_s")]))
    _add(figure, _bars(_EXPOSED, EXPOSED, [r for r in routes if _us(r, "exposed_s")]))
    _add(figure, _waits([row for row in rows if _us(row, "wait_s") > 0]))
    _add(figure, _windows([r for r in rows if number(r.get("window_s")) is not None], own))
    path = [row for row in rows if row.get("critical")]
    _add(figure, _critical(path))
    streams = list(dict.fromkeys(_stream(row) for row in rows))
    figure.update_layout(
        title={"text": html.escape(title)},
        barmode="overlay",
        bargap=0.3,
        height=150 + 80 * len(streams),
        xaxis={
            "title": {"text": "time in the step, us"},
            "range": [0.0, _end(rows)] if whole else _first_view(rows),
        },
        yaxis={
            "categoryorder": "array",
            "categoryarray": streams[::-1],
            "type": "category",
            "ticklabelstandoff": 6,
        },
        dragmode="pan",
        meta={"notes": [_HOW_TO_READ + _ON_PATH * bool(path), _HOW_TO_MOVE]},
    )
    return figure


def share_figure(parts: Rows) -> Figure:
    """Draw where a mean step goes on the main stream, as one bar.

    Parameters
    ----------
    parts : sequence of mappings
        One row a part of the step: ``part``, an op kind or what the stream waits for; ``time_s``.
    """
    colours = {group: colour for group, (colour, _) in _GROUPS.items()} | {_EXPOSED: EXPOSED}
    times = dict.fromkeys(colours, 0.0)
    for part in parts:
        times[_group({"kind": part.get("part")}) or _EXPOSED] += number(part.get("time_s")) or 0.0
    whole = sum(times.values()) or 1.0
    figure = Figure()
    for name, time_s in times.items():
        share = f"{time_s / whole:.1%}"
        bar = Bar(
            name=name,
            orientation="h",
            y=[""],
            x=[round(time_s * 1e6, 6)],
            text=[f"{name.split()[0]} {share}" if time_s > 0.3 * whole else share],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            insidetextfont={"color": "#ffffff"},
            hovertext=[f"{name}: {time_s * 1e6:,.1f} us, {share}"],
            hoverinfo="text",
            marker={"color": colours[name]},
        )
        if time_s:
            figure.add_trace(bar)
    figure.update_layout(
        title={"text": f"A mean step: {times[_EXPOSED] / whole:.1%} is {_EXPOSED}"},
        barmode="stack",
        height=120,
        showlegend=False,
        xaxis={"title": {"text": "time on the main stream, us"}, "range": [0, whole * 1e6]},
        yaxis={"showticklabels": False},
    )
    return figure


def step_blocks(
    rows: Rows,
    parts: Rows,
    verdict: str,
    title: str,
    manifest: Mapping[str, object],
    routing: str = "",
) -> list[Block]:
    """Compose the page of one point: verdict, the step, where its time goes, every op."""
    return [
        Paragraph(verdict, "verdict"),
        Heading("One decode step"),
        Chart(share_figure(parts)),
        Chart(step_figure(rows, title, routing)),
        Heading("Where a mean step goes on the main stream"),
        Table(list(parts), ["part", "time_s", "share_frac", "achieved_bytes_per_s", "source"]),
        Details("Every op", [Table(list(rows), list(rows[0]) if rows else [])]),
        Details("Versions and digests", [Table(_entries(manifest), ["key", "value"])]),
    ]


def _entries(manifest: Mapping[str, object]) -> list[dict[str, object]]:
    return [{"key": key, "value": str(value)} for key, value in manifest.items()]


def _group(row: AnyRow) -> str:
    kind = str(row.get("kind"))
    return next((n for n, (_, starts) in _GROUPS.items() if kind.startswith(starts)), "")


def _add(figure: Figure, bars: Bar) -> None:
    """Add bars if there are any: a legend names nothing that is not there."""
    if len(bars.y):
        figure.add_trace(bars)


def _stream(row: AnyRow) -> str:
    return _STREAMS.get(str(row.get("stream")), str(row.get("stream")))


def _us(row: AnyRow, key: str) -> float:
    return round((number(row.get(key)) or 0.0) * 1e6, 6)


def _bars(name: str, colour: str, rows: Rows) -> Bar:
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
        insidetextfont={"color": "#ffffff"},
        hovertext=[_hover(row) for row in rows],
        hoverinfo="text",
        marker={"color": colour},
    )


def _waits(rows: Rows) -> Bar:
    return _strip(
        "exposed: waiting for the router",
        EXPOSED,
        rows,
        [(_us(row, "start_s") - _us(row, "wait_s"), _us(row, "wait_s")) for row in rows],
        [f"{row.get('name')} waits {_us(row, 'wait_s'):,.2f} us" for row in rows],
        (-0.12, 0.24),
    )


def _windows(rows: Rows, colour: str) -> Bar:
    """On the router's lane: from the anchor's hand-over until the answer is needed."""
    return _strip(
        "window: anchor to need",
        colour,
        rows,
        [(_us(row, "window_start_s"), _us(row, "window_s")) for row in rows],
        [f"window of {row.get('name')}: {_us(row, 'window_s'):,.2f} us" for row in rows],
        (0.38, 0.08),
        opacity=0.6,
    )


def _critical(rows: Rows) -> Bar:
    return _strip(
        "critical path",
        NEUTRAL,
        rows,
        [(_us(row, "start_s"), _us(row, "end_s") - _us(row, "start_s")) for row in rows],
        [_hover(row) for row in rows],
        (-0.45, 0.06),
    )


def _strip(
    name: str,
    colour: str,
    rows: Rows,
    spans: Sequence[tuple[float, float]],
    texts: Sequence[str],
    place: tuple[float, float],
    opacity: float = 1.0,
) -> Bar:
    """Return thin bars from starts, so long in us; `place` is their edge and width in a lane."""
    return Bar(
        name=name,
        orientation="h",
        y=[_stream(row) for row in rows],
        base=[round(start, 6) for start, _ in spans],
        x=[round(length, 6) for _, length in spans],
        offset=place[0],
        width=place[1],
        hovertext=list(texts),
        hoverinfo="text",
        marker={"color": colour, "opacity": opacity},
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
    return [0.0, _end(rows)]


def _end(rows: Sequence[AnyRow]) -> float:
    return max((_us(row, "end_s") for row in rows), default=1.0)
