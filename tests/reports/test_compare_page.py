"""The page of predictions beside a real run."""

from __future__ import annotations

from plotly.graph_objects import Figure, Scatter

from reports.compare import curves, grid, parity
from reports.compare_page import compare_blocks
from reports.page import Chart, Details, Heading, Paragraph, Table
from reports.palette import look

Row = dict[str, object]


def test_order_of_the_page(comparison: dict[str, object], step: dict[str, object]) -> None:
    points = {"attn_dense": [(1, 1024)]}
    blocks = compare_blocks(comparison, points, [step], ["Close."], {"seed": 0})
    assert [b.text if isinstance(b, Heading) else type(b).__name__ for b in blocks] == [
        *("Paragraph", "Parity", "Chart", "Errors by mode", "Table"),
        *("Throughput", *["Chart"] * 4, "Gain over gpu-target", *["Chart"] * 4),
        *("Gains by mode", "Table"),
        *("A step of cpu-mid, predicted and real", "Chart", "Paragraph", "Table"),
        *("Calibration and validation", "Chart", "Details", "Details", "Details"),
    ]
    notes = [b.text for b in blocks if isinstance(b, Paragraph) and b.style == "note"]
    assert "about a microsecond" in notes[0]
    tables = [b for b in blocks if isinstance(b, Table)]
    assert list(tables[0].columns[:2]) == ["mode", "cells"]
    assert [b.summary for b in blocks if isinstance(b, Details)] == [
        *("Every pair", "Without a partner", "Versions and settings")
    ]


def test_parity_has_a_marker_a_cell_and_the_line_of_equality(
    comparison: dict[str, list[Row]],
) -> None:
    figure = parity(comparison["pairs"])
    assert [(t.name, len(t.x)) for t in figure.data] == [
        *(("equal", 2), ("gpu-target", 4), ("cpu-mid", 4))
    ]
    assert (figure.data[1].x[0], figure.data[1].y[0]) == (5.0, 4.0)


def bars(trace: Scatter) -> tuple[list[float], list[float]]:
    """Return the least and the largest value that a trace's error bars reach."""
    up = [y + more for y, more in zip(trace.y, trace.error_y.array, strict=True)]
    return [y - less for y, less in zip(trace.y, trace.error_y.arrayminus, strict=True)], up


def notes(figure: Figure) -> list[str]:
    return list(figure.layout.meta["notes"])


SO_FAR = (
    "In a decode the context is the kept prompt and the output so far: this axis stands for output "
    "length. A real run times one output length from several positions; a marker is the mean of "
    "the steps timed from one of them."
)


def test_throughput_over_batch(comparison: dict[str, list[Row]]) -> None:
    first, last = curves(comparison["pairs"], "tokens_per_s", "batch")
    assert first.layout.title.text == "Throughput over batch"
    assert first.layout.title.subtitle.text == "context 1,000, 64 attended tokens"
    assert last.layout.title.subtitle.text == "context 2,000, 64 attended tokens"
    assert first.layout.xaxis.title.text == "batch"
    assert first.layout.yaxis.title.text == "throughput, tokens/s"
    assert notes(first) == [
        "Lines: predicted. Areas: its interval. Markers: measured. "
        "Bars: least and largest of the repetitions."
    ]
    area, line, markers = first.data[:3]
    assert (area.fill, list(area.x)) == ("toself", [1, 2, 2, 1])
    assert list(area.y) == [200.0, 125.0, 250.0, 400.0]
    assert (line.mode, line.name, list(line.y)) == ("lines", "gpu-target", [250.0, 200.0])
    assert (markers.mode, list(markers.x), list(markers.y)) == ("markers", [1, 2], [200.0, 250.0])
    assert bars(markers) == ([125.0, 200.0], [250.0, 400.0])
    area, line, markers = first.data[3:]
    assert list(area.y) == [250.0, 200.0, 400.0, 400.0]
    assert (line.name, list(line.y), list(markers.y)) == ("cpu-mid", [312.5, 250.0], [250.0, 312.5])
    assert bars(markers) == ([200.0, 250.0], [400.0, 400.0])


def test_throughput_over_the_tokens_in_the_cache(comparison: dict[str, list[Row]]) -> None:
    first, last = curves(comparison["pairs"], "tokens_per_s", "context_tokens")
    assert first.layout.title.subtitle.text == "batch 1, 64 attended tokens"
    assert last.layout.title.subtitle.text == "batch 2, 64 attended tokens"
    assert first.layout.xaxis.title.text == "context, tokens (kept prompt + output so far)"
    assert notes(first)[1:] == notes(last)[1:] == [SO_FAR]
    area, line, markers = first.data[:3]
    assert (list(line.x), list(line.y)) == ([1000, 2000], [250.0, 125.0])
    assert list(area.y) == [200.0, 100.0, 200.0, 400.0]
    assert (list(markers.x), list(markers.y)) == ([1000, 2000], [200.0, 100.0])
    assert bars(markers) == ([125.0, 62.5], [250.0, 125.0])


def test_gains_have_the_spread_of_both_modes(comparison: dict[str, list[Row]]) -> None:
    figure = curves(comparison["pairs"], "gain_frac", "batch")[0]
    assert [trace.name for trace in figure.data] == ["cpu-mid", "cpu-mid"]
    line, markers = figure.data
    assert (line.mode, list(line.y)) == ("lines", [25.0, 25.0])
    assert (markers.mode, list(markers.y)) == ("markers", [25.0, 25.0])
    # 4 ms over 5 and 8 over 2.5; 5 over 8 and 10 over 5.
    assert bars(markers) == ([-20.0, -37.5], [220.0, 100.0])
    assert notes(figure) == [
        "Lines: predicted. Markers: measured. Bars: from the least repetition of gpu-target over "
        "the mode's largest step time, to the largest of gpu-target over the mode's least."
    ]
    along = curves(comparison["pairs"], "gain_frac", "context_tokens")[0]
    assert along.layout.xaxis.title.text == "context, tokens (kept prompt + output so far)"
    assert notes(along)[1:] == [SO_FAR]
    assert bars(along.data[1]) == ([-20.0, -20.0], [220.0, 220.0])


def test_what_is_not_known_is_not_drawn(comparison: dict[str, list[Row]]) -> None:
    without = {"predicted_low_s": None, "predicted_high_s": None, "measured_high_s": None}
    rows = [row | without for row in comparison["pairs"]]
    figure = curves(rows, "tokens_per_s", "batch")[0]
    assert [trace.mode for trace in figure.data] == ["lines", "markers"] * 2
    assert list(figure.data[1].error_y.arrayminus) == [None, None]
    assert list(figure.data[1].error_y.array) == [50.0, 150.0]
    assert notes(figure)[0].startswith("Lines: predicted. Markers: measured.")


def test_calibration_and_validation_points_are_counted(comparison: dict[str, list[Row]]) -> None:
    figure = grid(comparison["pairs"], {"a": [(1, 512), (1, 1024)], "b": [(1, 512)]})
    assert [trace.name for trace in figure.data] == [
        *("calibration, 2 points", "validation, 4 points")
    ]


def test_one_cell_has_parity_alone(comparison: dict[str, list[Row]]) -> None:
    one = {**comparison, "pairs": comparison["pairs"][:1], "gains": [], "dropped": []}
    blocks = compare_blocks(one, {}, [], [], {})
    assert sum(isinstance(block, Chart) for block in blocks) == 1


def test_unsteady_measurements_are_hollow_and_the_legend_says_so(
    comparison: dict[str, list[Row]],
) -> None:
    rows = [row | {"unsteady": row["batch"] == 2} for row in comparison["pairs"]]
    hollow = "hollow: unsteady measurement"
    figure = parity(rows)
    assert list(figure.data[1].marker.symbol) == ["square", "square", *["square-open"] * 2]
    assert figure.data[-1].name == hollow
    first = curves(rows, "tokens_per_s", "batch")[0]
    assert list(first.data[2].marker.symbol) == ["square", "square-open"]
    assert first.data[-1].name == hollow
    steady = curves(rows, "tokens_per_s", "context_tokens")[0]
    assert hollow not in [trace.name for trace in steady.data]
    assert hollow not in [trace.name for trace in parity(comparison["pairs"]).data]


def test_a_mode_looks_as_its_routing_does(comparison: dict[str, list[Row]]) -> None:
    modes = parity(comparison["pairs"]).data[1:]
    assert [trace.marker.color for trace in modes] == [
        look(name).colour for name in ("gpu-target", "cpu-mid")
    ]


def test_a_traced_step_shows_what_the_main_stream_does_for_routing() -> None:
    def ops(waits: float) -> list[Row]:
        ops = (("norm1.1", "norm", "gpu", 0.0, 1e-5), ("route.1", "cpu_route", "cpu", 0.0, 3e-5))
        rest = (
            ("await.1", "await", "gpu", 1e-5 + waits, 4e-5),
            ("down.3", "gemm", "gpu", 4e-5, 5e-5),
        )
        names = ("name", "kind", "stream", "start_s", "end_s")
        return [dict(zip(names, each, strict=True)) for each in (*ops, *rest)]

    of = {"mode": "cpu-mid", "batch": 1, "context_tokens": 1004}
    step = {"of": of, "predicted": ops(2e-5), "real": ops(0.0), "errors": []}
    pair = {"mode": "cpu-mid", "batch": 1, "context_tokens": 1000, "attended_tokens": 64}
    pair |= {"predicted_s": 1.0, "measured_s": 1.0}
    result = {"pairs": [pair], "errors": [], "gains": [], "dropped": []}
    blocks = compare_blocks(result, {}, [step], [], {})
    figure = [block for block in blocks if isinstance(block, Chart)][1].figure
    bars = {trace.name: trace for trace in figure.data}
    exposed = bars["exposed routing and hand-over"]
    assert list(zip(exposed.y, exposed.base, exposed.x, strict=True)) == [
        ("main, predicted", 30.0, 10.0),
        ("main, real", 10.0, 30.0),
    ]
    waiting = bars["exposed: waiting for the router"]
    assert list(zip(waiting.y, waiting.base, waiting.x, strict=True)) == [
        ("main, predicted", 10.0, 20.0)
    ]
    assert set(bars["routing, hidden"].y) == {"router, predicted", "router, real"}
