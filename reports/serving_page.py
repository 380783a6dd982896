"""The pages of `essim serve` and `essim plan`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plotly.graph_objects import Figure, Scatter

from essim.results.column import Rows, number
from essim.results.tables import column
from reports.page import Block, Chart, Details, Heading, Paragraph, Table
from reports.palette import ACCENT, look
from reports.sweep_page import flat

# What requests do, as figures have no routing here.
_STATES = {"waiting": "#d77e04", "prefilling": "#7231ff", "decoding": ACCENT, "kv_frac": ACCENT}
_LATENCIES = (*("metric", "mean_s", "p50_s", "p90_s", "p95_s", "p95_low_s", "p95_high_s", "p99_s"),)


def serving_blocks(
    row: Mapping[str, object],
    latencies: Rows,
    moments: Rows,
    requests: Rows,
    said: Sequence[str],
    manifest: Mapping[str, object],
) -> list[Block]:
    """Compose the page of one deployment.

    Parameters
    ----------
    row
        What the deployment did.
    latencies
        TTFT, TPOT, ITL and E2E with their percentiles; empty under overload.
    moments
        Queue and KV pool over time.
    requests
        One row a request.
    said
        Sentences of the verdict.
    """
    blocks: list[Block] = [Paragraph(text, "verdict") for text in said]
    if latencies:
        blocks += [Heading("Latencies"), Table(latencies, _LATENCIES)]
    blocks += [
        Heading("Over time"),
        Chart(over_time(moments, ("waiting", "prefilling", "decoding"), "Requests")),
        Chart(over_time(moments, ("kv_frac",), "KV pool")),
    ]
    if latencies:
        blocks += [
            Heading("How many requests are this fast"),
            Chart(shares(requests, "ttft_s", "Time to first token")),
            Chart(shares(requests, "tpot_s", "Time per output token")),
        ]
    known = [{"key": key, "value": column(key).shown.text_with_unit(v)} for key, v in row.items()]
    blocks += [
        Details("The deployment", [Table(known, ["key", "value"])]),
        Details("Versions and settings", [Table(list(flat(manifest)), ["key", "value"])]),
    ]
    return blocks


def plan_blocks(
    rows: Rows, points: Rows, said: Sequence[str], manifest: Mapping[str, object]
) -> list[Block]:
    """Compose the page of a plan.

    Parameters
    ----------
    rows
        One row a deployment, cheapest first.
    points
        The frontier: one row a deployment and rate.
    """
    shown = list(rows[0]) if rows else []
    return [
        *(Paragraph(text, "verdict") for text in said),
        Heading("Throughput a GPU over speed a user"),
        Chart(frontier(points)),
        Heading("Deployments"),
        Table(rows, shown),
        Details("Versions and settings", [Table(list(flat(manifest)), ["key", "value"])]),
    ]


def over_time(moments: Rows, keys: Sequence[str], title: str) -> Figure:
    """Draw columns over time, as steps."""
    figure = Figure()
    times = [moment["time_s"] for moment in moments]
    for key in keys:
        shown = column(key)
        figure.add_trace(
            Scatter(
                x=times,
                y=[shown.shown.scaled(moment[key]) for moment in moments],
                name=shown.heading,
                mode="lines",
                line={"color": _STATES[key], "width": 2, "shape": "hv"},
            )
        )
    unit = column(keys[0]).shown.unit
    figure.update_layout(
        title={"text": title, "x": 0},
        height=340,
        xaxis={"title": {"text": "time, s", "standoff": 8}},
        yaxis={"title": {"text": unit or "requests"}, "rangemode": "tozero"},
    )
    return figure


def shares(requests: Rows, key: str, title: str) -> Figure:
    """Draw which share of the counted requests is no slower."""
    counted = [number(row[key]) for row in requests if row["counted"]]
    values = sorted(value for value in counted if value is not None)
    every = max(1, len(values) // 400)
    places = [*range(0, len(values), every)]
    line = {"color": ACCENT, "width": 2}
    figure = Figure(
        Scatter(
            x=[values[i] for i in places],
            y=[100 * (i + 1) / len(values) for i in places],
            mode="lines",
            line=line,
            name=title,
        )
    )
    figure.update_layout(
        title={"text": title, "x": 0},
        height=340,
        xaxis={"title": {"text": column(key).title, "standoff": 8}, "rangemode": "tozero"},
        yaxis={"title": {"text": "requests, %"}, "range": [0, 100]},
    )
    return figure


def frontier(points: Rows) -> Figure:
    """Draw tokens a second a GPU over tokens a second a user, a line a placement of routing."""
    figure = Figure()
    for routing in dict.fromkeys(str(point["routing"]) for point in points):
        own = [point for point in points if point["routing"] == routing]
        own.sort(key=lambda point: number(point["tokens_per_s_per_user"]) or 0.0)
        figure.add_trace(
            Scatter(
                x=[point["tokens_per_s_per_user"] for point in own],
                y=[point["tokens_per_s_per_gpu"] for point in own],
                name=routing,
                mode="lines+markers",
                line={"color": look(routing).colour, "width": 2},
                marker={"size": 7, "symbol": look(routing).symbol},
            )
        )
    figure.update_layout(
        title={"text": "What keeps the promise", "x": 0},
        height=420,
        xaxis={"title": {"text": "tokens/s a user", "standoff": 8}, "rangemode": "tozero"},
        yaxis={"title": {"text": "tokens/s a GPU"}, "rangemode": "tozero"},
    )
    return figure
