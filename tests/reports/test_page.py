"""What a page's file holds."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from plotly.graph_objects import Figure, Scatter
from plotly.offline import get_plotlyjs_version

from reports.figures import curves
from reports.page import Block, Chart, Details, Heading, Paragraph, Table, plotly_script, render
from reports.sweep_page import sweep_blocks

Row = dict[str, object]


def page(tmp_path: Path, blocks: list[Block], title: str = "A sweep") -> str:
    """Write a page and return it without plotly's script."""
    path = tmp_path / "page.html"
    path.write_text(render(title, blocks))
    return path.read_text(encoding="utf-8").replace(plotly_script(), "PLOTLY")


def figures_in(text: str) -> list[dict[str, object]]:
    found = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    return [json.loads(part) for part in found]


def test_one_copy_of_plotly_for_all_figures(tmp_path: Path, few: list[Row]) -> None:
    charts = [Chart(figure) for figure in curves(few, "gpu-target", "output_tokens")]
    text = page(tmp_path, [*charts])
    assert text.count("PLOTLY") == 1
    assert text.count('<div class="plot"') == len(figures_in(text)) == 2


def test_the_script_is_of_plotlys_version() -> None:
    """Where this fails, `npm pack plotly.js-cartesian-dist-min@VERSION` has the new one."""
    head = plotly_script()[:200]
    assert f"plotly.js (cartesian - minified) v{get_plotlyjs_version()}\n" in head


def test_texts_of_a_line_are_there_once_a_figure(tmp_path: Path, few: list[Row]) -> None:
    figure = curves(few, "gpu-target", "output_tokens")[0]
    (drawn,) = figures_in(page(tmp_path, [Chart(figure)]))
    rate, gain = (line for line in drawn["data"] if line["name"] == "cpu-mid")
    assert (rate["yaxis"], gain["yaxis"]) == ("y", "y2")
    assert rate["customdata"] == gain["customdata"]
    texts = drawn["texts"][rate["customdata"]]
    assert texts == [list(own) for own in figure.data[1].customdata]
    assert len(texts) == 2


def test_no_plotly_without_figures(tmp_path: Path) -> None:
    assert "PLOTLY" not in page(tmp_path, [Paragraph("nothing was swept")])


def test_nothing_is_fetched(tmp_path: Path, rows: list[Row]) -> None:
    text = page(tmp_path, sweep_blocks(rows, ["It pays."], "gpu-target", {}))
    assert re.findall(r"https?://|\bsrc\s*=|\bhref\s*=|@import|url\(|fetch\(", text) == []
    assert "default-src 'none'" in text


def test_same_input_same_bytes(tmp_path: Path, rows: list[Row]) -> None:
    first, second = tmp_path / "first.html", tmp_path / "second.html"
    for path in (first, second):
        path.write_text(
            render("A sweep", sweep_blocks(rows, ["It pays."], "gpu-target", {"seed": 0}))
        )
    assert first.read_bytes() == second.read_bytes()


def test_values_are_escaped(tmp_path: Path) -> None:
    evil = "</script><script>alert('&')</script>"
    figure = Figure(Scatter(x=[1, 2], y=[1, 2], name=evil), layout={"meta": {"notes": [evil]}})
    rows = [{"routing": evil}]
    blocks: list[Block] = [
        Heading(evil),
        Paragraph(evil),
        Table(rows, ["routing", evil]),
        Chart(figure),
        Details(evil, [Paragraph(evil)]),
    ]
    text = page(tmp_path, blocks, title=evil)
    assert "<script>alert" not in text
    assert text.count("&lt;/script&gt;&lt;script&gt;alert(&#x27;&amp;&#x27;)") == 9
    (drawn,) = figures_in(text)
    assert drawn["data"] == [{"name": evil, "x": [1, 2], "y": [1, 2], "type": "scatter"}]


def test_template_characters_are_kept(tmp_path: Path) -> None:
    assert "<p>$title costs $$5</p>" in page(tmp_path, [Paragraph("$title costs $$5")])


@pytest.mark.parametrize("pack", [list, np.array])
def test_numbers_that_are_not_finite_become_null(tmp_path: Path, pack: type) -> None:
    y = pack([1.5, float("nan"), float("-inf")])
    text = page(tmp_path, [Chart(Figure(Scatter(x=pack([1.0, 2.0, 3.0]), y=y)))])
    (drawn,) = figures_in(text)
    assert drawn["data"] == [{"x": [1.0, 2.0, 3.0], "y": [1.5, None, None], "type": "scatter"}]
    assert "2 values are not finite numbers, drawn as gaps." in text


def test_matrix_keeps_its_shape(tmp_path: Path) -> None:
    figure = Figure({"type": "heatmap", "z": np.array([[1.0, np.nan], [3.0, 4.0]])})
    text = page(tmp_path, [Chart(figure)])
    assert figures_in(text)[0]["data"] == [{"z": [[1.0, None], [3.0, 4.0]], "type": "heatmap"}]
    assert "1 value is not a finite number, drawn as gaps." in text


def test_notes_are_printed_under_the_figure(tmp_path: Path, few: list[Row]) -> None:
    text = page(tmp_path, [Chart(curves(few, "gpu-target", "output_tokens")[1])])
    caption = re.findall(r"<figcaption>(.*?)</figcaption>", text)[0]
    assert caption.endswith(
        "<p>Not drawn: cpu-mid at output length 256: needs 90 GiB, 80 GiB are free.</p>"
    )


def test_table() -> None:
    rows: list[Row] = [
        {"routing": "cpu-mid", "batch": 1, "decode_gain_frac": 0.0767},
        {"routing": "cpu-in", "batch": 1000, "decode_gain_frac": float("nan")},
    ]
    assert Table(rows, ["routing", "batch", "decode_gain_frac", "reason"]).html() == (
        '<div class="table" tabindex="0"><table>\n'
        '<thead><tr><th>routing</th><th class="number">batch</th>'
        '<th class="number">decode gain, %</th><th>reason</th></tr></thead>\n'
        "<tbody>\n"
        '<tr><td>cpu-mid</td><td class="number">1</td>'
        '<td class="number">+7.67</td><td>–</td></tr>\n'
        '<tr><td>cpu-in</td><td class="number">1,000</td>'
        '<td class="number">–</td><td>–</td></tr>\n'
        "</tbody></table></div>"
        '<p class="note">1 value is not a finite number, shown as –.</p>'
    )


def test_importing_the_package_does_not_import_plotly() -> None:
    code = "import reports, reports.page, sys; assert 'plotly' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
