"""The page in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from browser import needs_browser, opened

from essim.simulate.figure2 import figure2
from reports.compare_page import compare_blocks
from reports.figure2 import figure2_blocks
from reports.page import render
from reports.sweep_page import sweep_blocks

Row = dict[str, object]

pytestmark = needs_browser

THEMES = [
    ("light", (), ""),
    ("dark", ("--force-dark-mode",), ""),
    ("light", ("--force-dark-mode",), "#light"),
    ("dark", (), "#dark"),
]
PAPER = {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 24, 29)"}


@pytest.mark.parametrize(("theme", "flags", "fragment"), THEMES)
def test_every_figure_is_drawn(
    tmp_path: Path, rows: list[Row], theme: str, flags: tuple[str, ...], fragment: str
) -> None:
    page = tmp_path / "page.html"
    page.write_text(render("A sweep", sweep_blocks(rows, ["It pays."], "gpu-target", {"seed": 0})))
    dom, console = opened(page, *flags, fragment=fragment)
    assert console == []
    (root,) = re.findall(r"<html[^>]*>", dom)
    assert root == f'<html lang="en" data-errors="0" data-theme="{theme}" data-drawn="8">'
    figures = re.findall(r"<figure>.*?</figure>", dom, re.DOTALL)
    traces = [len(re.findall(r'class="trace scatter', figure)) for figure in figures]
    assert traces == [12, 12, 12, 18, 18, 11, 11, 11]
    for figure in figures:
        assert '<svg class="main-svg" xmlns="http://www.w3.org/2000/svg"' in figure
        assert f"background: {PAPER[theme]}" in figure
        assert len(re.findall(r'class="y[23]?zl zl crisp"', figure)) == 1


@pytest.mark.parametrize(("theme", "flags", "fragment"), THEMES[:2])
def test_figure_2_is_drawn(
    tmp_path: Path, theme: str, flags: tuple[str, ...], fragment: str
) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        render("Figure 2", figure2_blocks(figure2(), {"loki": "pca", "hsa_scan": "all"}))
    )
    dom, console = opened(page, *flags, fragment=fragment)
    assert console == []
    (root,) = re.findall(r"<html[^>]*>", dom)
    assert root == f'<html lang="en" data-errors="0" data-theme="{theme}" data-drawn="1">'
    (figure,) = re.findall(r"<figure>.*?</figure>", dom, re.DOTALL)
    assert len(re.findall(r'class="trace scatter', figure)) == 4
    assert len(re.findall(r'<path class="point', figure)) == 20
    assert f"background: {PAPER[theme]}" in figure


@pytest.mark.parametrize(("theme", "flags", "fragment"), THEMES[:2])
def test_predictions_are_drawn_beside_a_real_run(
    tmp_path: Path,
    comparison: dict[str, object],
    step: dict[str, object],
    theme: str,
    flags: tuple[str, ...],
    fragment: str,
) -> None:
    page = tmp_path / "page.html"
    points = {"attn_dense": [(1, 1024), (2, 1024)]}
    blocks = compare_blocks(comparison, points, [step], ["Close."], {"seed": 0})
    page.write_text(render("Predicted and measured", blocks))
    dom, console = opened(page, *flags, fragment=fragment)
    assert console == []
    (root,) = re.findall(r"<html[^>]*>", dom)
    assert root == f'<html lang="en" data-errors="0" data-theme="{theme}" data-drawn="11">'
    figures = re.findall(r"<figure>.*?</figure>", dom, re.DOTALL)
    assert all(f"background: {PAPER[theme]}" in figure for figure in figures)
    traces = [len(re.findall(r'class="trace scatter', figure)) for figure in figures]
    assert traces == [3, *[6] * 4, *[2] * 4, 0, 2]
    areas = [len(re.findall(r'<path class="js-fill" d="M', figure)) for figure in figures]
    assert areas == [0, *[2] * 4, *[0] * 4, 0, 0]
    spreads = [len(re.findall(r'<path class="yerror" [^>]*d="M', figure)) for figure in figures]
    assert spreads == [0, *[4] * 4, *[2] * 4, 0, 0]
    along = [f for f in figures if ">context, tokens (kept prompt + output so far)</text>" in f]
    assert along == [f for f in figures if "<p>In a decode the context is the kept" in f]
    assert along == [*figures[3:5], *figures[7:9]]
    assert len(re.findall(r'<g class="point">', figures[9])) == 6


def test_the_button_changes_the_theme_of_page_and_figures(tmp_path: Path, few: list[Row]) -> None:
    page = tmp_path / "page.html"
    page.write_text(render("A sweep", sweep_blocks(few, [], "gpu-target", {})))
    press = "<script>setTimeout(() => document.getElementById('theme').click(), 3000)</script>"
    page.write_text(page.read_text("utf-8").replace("</body>", f"{press}</body>"), "utf-8")
    dom, console = opened(page, fragment="#light")
    assert console == []
    assert 'data-errors="0" data-theme="dark"' in dom
    assert '<button type="button" id="theme">Light theme</button>' in dom
    assert "background: rgb(21, 24, 29)" in dom
    assert "background: rgb(255, 255, 255)" not in dom


def test_script_errors_are_counted(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(render("A sweep", []))
    broken = "<script>undefinedName()</script>"
    page.write_text(page.read_text("utf-8").replace("</body>", f"{broken}</body>"), "utf-8")
    dom, console = opened(page)
    assert 'data-errors="1"' in dom
    assert len(console) == 1
