"""What the page of Figure 2 draws."""

from __future__ import annotations

import pytest

from reports.figure2 import figure2_blocks, share_over_compression
from reports.page import Chart, Details, Paragraph, Table

Row = dict[str, object]


@pytest.fixture
def shares() -> list[Row]:
    """Two methods at two compressions."""
    return [
        {
            "method": method,
            "compression": c,
            "budget_tokens": 64 // c,
            "context_tokens": 1024,
            "page_tokens": page,
            "route_macs": 2.5e6,
            "sparse_macs": 7.5e6,
            "route_share_frac": share,
        }
        for method, page, points in (
            ("Quest", 16, {8: 0.2, 4: 0.25}),
            ("HSA", None, {8: 0.5, 4: 0.4}),
        )
        for c, share in points.items()
    ]


def test_a_line_for_each_method_in_per_cent(shares: list[Row]) -> None:
    figure = share_over_compression(shares)
    assert [(t.name, list(t.x), list(t.y)) for t in figure.data] == [
        ("Quest", [8, 4], [20.0, 25.0]),
        ("HSA", [8, 4], [50.0, 40.0]),
    ]
    assert len({t.line.color for t in figure.data}) == 2
    assert len({t.marker.symbol for t in figure.data}) == 2
    assert list(figure.layout.xaxis.tickvals) == [4, 8]
    assert figure.layout.title.subtitle.text == "1,024 cached tokens"


def test_chart_numbers_and_variants(shares: list[Row]) -> None:
    blocks = figure2_blocks(shares, {"essim": "0", "loki": "cached", "hsa_scan": "all"})
    assert sum(isinstance(block, Chart) for block in blocks) == 1
    (table,) = (block for block in blocks if isinstance(block, Table))
    assert list(table.rows) == shares
    html = table.html()
    assert '<td class="number">20.00</td>' in html
    assert '<td class="number">2.500</td>' in html
    notes = [b.text for b in blocks if isinstance(b, Paragraph) and b.style == "note"]
    assert notes == ["Variants: Loki cached, HSA scan all."]
    details = blocks[-1]
    assert isinstance(details, Details)
    assert "hsa_scan" in details.html()
