"""What the pages of published comparisons and of ranked selectors draw."""

from __future__ import annotations

from reports.page import Chart, Details, Table
from reports.published import gains, parity, published_blocks
from reports.ranking import over_dense, ranking_blocks

NUMBER = {
    **{"setting": "here", "metric": "step", "unit": "ms", "error_frac": 0.0, "fitted": 0},
    **{"fitted_on": 0, "held_out": "no fit", "note": ""},
}
ROWS = [
    NUMBER | {"system": "A", "published": 2.0, "predicted": 3.0, "kind": "table"},
    NUMBER | {"system": "B", "published": 7.0, "predicted": 5.0, "kind": "upper bound"},
    NUMBER | {"system": "C", "published": 1.0, "predicted": 1.2, "kind": "table", "unit": "%"},
]
CURVE = [
    {"figure": "F", "line": line, "axis": "batch", "x": x, "gain_percent": g, "published": p}
    for line, x, g, p in (("a", 1, 2.0, 2.5), ("a", 8, 3.0, None), ("b", 1, 4.0, 2.5))
]


def test_parity_has_a_trace_a_system_and_no_percentages() -> None:
    figure = parity(ROWS)
    assert [(t.name, list(t.x), list(t.y)) for t in figure.data[:-1]] == [
        ("A", [2.0], [3.0]),
        ("B", [7.0], [5.0]),
    ]
    assert [t.marker.symbol for t in figure.data[:-1]] == ["circle", "triangle-up"]
    assert list(figure.data[-1].x) == list(figure.data[-1].y) == [2.0, 7.0]


def test_gains_have_a_line_each_and_what_is_published() -> None:
    figure = gains(CURVE)
    assert [(t.name, list(t.x), list(t.y)) for t in figure.data] == [
        ("a", [1, 8], [2.0, 3.0]),
        ("b", [1], [4.0]),
        ("published", [1, 1], [2.5, 2.5]),
    ]


def test_the_page_has_parity_figures_and_every_number() -> None:
    systems = [{"system": "A", "kind": "table", "numbers": 1}]
    missing = [{"system": "D", "number": "3x", "reason": "none"}]
    blocks = published_blocks(ROWS, systems, missing, CURVE, {"essim": "0"})
    assert sum(isinstance(block, Chart) for block in blocks) == 2
    tables = [block for block in blocks if isinstance(block, Table)]
    assert [len(table.rows) for table in tables] == [1, 3]
    assert sum(isinstance(block, Details) for block in blocks) == 2


def test_a_selector_is_drawn_with_its_fastest_routing() -> None:
    rows = [
        {"selector": kind, "input_tokens": tokens, "gain_over_dense_frac": gain}
        for kind, tokens, gain in (
            *(("a", 8, 0.1), ("a", 8, 0.3), ("a", 4, -0.2)),
            *(("b", 4, None), ("b", 8, 0.5)),
        )
    ]
    figure = over_dense(rows, ["b", "a"])
    assert [(t.name, list(t.x), list(t.y)) for t in figure.data] == [
        ("b", [8.0], [50.0]),
        ("a", [4.0, 8.0], [-20.0, 30.0]),
    ]
    blocks = ranking_blocks(rows, [{"selector": "b"}, {"selector": "a"}], ["So."], {"essim": "0"})
    assert sum(isinstance(block, Chart) for block in blocks) == 1
