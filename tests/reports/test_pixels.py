"""Pictures of pages: the marks that must be seen are there, in both themes and a narrow window."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser import colours, needs_browser, pictured
from test_maps_and_steps import CELLS, STEP, maps
from test_palette import apart

from reports.figures import curves
from reports.page import Chart, render
from reports.palette import ATTENTION, EXPOSED, GEMM, look
from reports.step_page import step_figure

Row = dict[str, object]

pytestmark = needs_browser

WINDOWS = [("light", 1366), ("dark", 1366), ("light", 390), ("dark", 390)]
GAINS = (-0.25, 0.0, 0.25)


def gallery(rows: list[Row]) -> str:
    """Return a page of the three kinds of figure that have colours of their own."""
    cells = [CELLS[0] | {"batch": i, "early_gain_frac": gain} for i, gain in enumerate(GAINS)]
    gains, _ = maps(cells, "output_tokens", "batch")
    over_batch = curves(rows, "gpu-target", "batch")[0]
    figures = (step_figure(STEP, "a step", "cpu-mid"), over_batch, gains)
    return render("A gallery", [Chart(figure) for figure in figures])


@pytest.mark.parametrize(("theme", "width"), WINDOWS)
def test_what_matters_is_seen(tmp_path: Path, rows: list[Row], theme: str, width: int) -> None:
    page, picture = tmp_path / "page.html", tmp_path / "page.png"
    page.write_text(gallery(rows))
    said = pictured(page, picture, theme, width, 2600)
    assert (said["errors"], said["drawn"], said["theme"]) == ("0", "3", theme)
    assert int(said["height"]) < 2600
    assert said["needs"] == str(width)
    assert said["overlaps"] == "0"
    found = colours(picture)
    # On the GPU's lane 48 us of GEMMs and 2 us of exposed ops are 0.7 high, 40 us of waiting 0.24.
    share = (2 * 0.7 + 40 * 0.24) / (48 * 0.7)
    assert found[EXPOSED] == pytest.approx(found[GEMM] * share, rel=0.1)
    assert found[EXPOSED] > 2 * found[ATTENTION]
    for routing in {str(row["routing"]) for row in rows}:
        assert found[look(routing).colour] > 300, routing
    # Each cell of the map is the largest area of its colour; a quarter is clearly no break-even.
    loss, even, gain = "#c2410c", "#6b7280", "#1f6fd6"
    cells = [found.get(colour, 0) for colour in (loss, even, gain)]
    assert min(cells) > 0.8 * max(cells) > 2000
    assert min(apart(even, colour, "all cones") for colour in (loss, gain)) > 0.1
