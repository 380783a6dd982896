"""The page of predictions beside a real run."""

from __future__ import annotations

from reports.compare import curves, grid, parity
from reports.compare_page import compare_blocks
from reports.page import Chart, Details, Heading, Paragraph, Table

Row = dict[str, object]


def test_order_of_the_page(comparison: dict[str, object], step: dict[str, object]) -> None:
    points = {"attn_dense": [(1, 1024)]}
    blocks = compare_blocks(comparison, points, [step], ["Close."], {"seed": 0})
    assert [b.text if isinstance(b, Heading) else type(b).__name__ for b in blocks] == [
        *("Paragraph", "Parity", "Chart", "Errors by mode", "Table"),
        *("Step time", *["Chart"] * 4, "Gain over gpu-target", *["Chart"] * 4),
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
    assert (figure.data[1].x[0], figure.data[1].y[0]) == (5.0, 5.5)


def test_predictions_are_lines_and_measurements_markers_with_their_spread(
    comparison: dict[str, list[Row]],
) -> None:
    figure = curves(comparison["pairs"], "s", "batch")[0]
    line, markers = figure.data[0], figure.data[1]
    assert (line.mode, list(line.x), list(line.y)) == ("lines", [1, 2], [5.5, 6.5])
    assert (markers.mode, list(markers.y)) == ("markers", [5.0, 6.0])
    assert list(markers.error_y.array) == [0.5, 0.5]
    assert [round(v, 9) for v in markers.error_y.arrayminus] == [0.25, 0.25]
    (first, last) = (
        f.layout.title.subtitle.text for f in curves(comparison["pairs"], "s", "batch")
    )
    assert first == "context 1,000, 64 attended tokens"
    assert last == "context 2,000, 64 attended tokens"


def test_gains_have_no_line_for_the_baseline(comparison: dict[str, list[Row]]) -> None:
    figure = curves(comparison["pairs"], "gain_frac", "context_tokens")[0]
    assert [trace.name for trace in figure.data] == ["cpu-mid", "cpu-mid"]
    assert list(figure.data[0].y) == [10.0, 10.0]


def test_an_interval_is_an_area(comparison: dict[str, list[Row]]) -> None:
    rows = [r | {"predicted_low_s": 4e-3, "predicted_high_s": 7e-3} for r in comparison["pairs"]]
    area = curves(rows, "s", "batch")[0].data[0]
    assert (area.fill, list(area.x), list(area.y)) == ("toself", [1, 2, 2, 1], [4.0, 4, 7, 7])


def test_calibration_and_validation_points_are_counted(comparison: dict[str, list[Row]]) -> None:
    figure = grid(comparison["pairs"], {"a": [(1, 512), (1, 1024)], "b": [(1, 512)]})
    assert [trace.name for trace in figure.data] == [
        *("calibration, 2 points", "validation, 4 points")
    ]


def test_one_cell_has_parity_alone(comparison: dict[str, list[Row]]) -> None:
    one = {**comparison, "pairs": comparison["pairs"][:1], "gains": [], "dropped": []}
    blocks = compare_blocks(one, {}, [], [], {})
    assert sum(isinstance(block, Chart) for block in blocks) == 1
