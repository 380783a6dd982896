"""Break-even maps and the timeline of a step: what is drawn, and in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from browser import needs_browser, opened
from plotly.graph_objects import Figure

from reports.maps import break_even_maps
from reports.page import Chart, render
from reports.palette import ATTENTION, EXPOSED, GEMM, look
from reports.step_page import share_figure, step_blocks, step_figure

CELLS = [
    {
        "setting": "",
        "batch": batch,
        "output_tokens": tokens,
        "best_routing": "gpu-target-fused",
        "early_routing": "cpu-mid" if batch == 1 else None,
        "early_gain_frac": 0.03 if batch == 1 else None,
        "sparse_gain_frac": -0.25,
    }
    for batch in (1, 8)
    for tokens in (128, 8192)
]


def maps(cells: list[dict], x: str, y: str, **by_routing: list[dict]) -> list[Figure]:
    """Draw the maps of the best routing, and of some alone; their names have _ for -."""
    alone = {name.replace("_", "-"): own for name, own in by_routing.items()}
    own = {None: cells} | alone
    return break_even_maps({"early_gain_frac": own, "sparse_gain_frac": own}, x, y)


def op(name: str, kind: str, stream: str, start_us: float, end_us: float, **more: object) -> dict:
    row = {"name": name, "kind": kind, "stream": stream, "source": "measured", "critical": 1}
    times = {"start_s": start_us * 1e-6, "end_s": end_us * 1e-6, "wait_s": 0.0, "exposed_s": 0.0}
    return row | times | {"window_s": None, "window_start_s": None} | more


STEP = [
    op("norm1.1", "norm", "gpu", 0, 2),
    op("qkv.1", "gemm_qkv", "gpu", 2, 18),
    op("publish.1", "publish", "gpu", 18, 20, exposed_s=2e-6),
    op("route.1", "cpu_route", "cpu", 20, 60, window_s=5e-6, window_start_s=20e-6),
    op("attn.1", "attn_sparse", "gpu", 60, 64, wait_s=40e-6, exposed_s=40e-6),
    op("down.3", "gemm_down", "gpu", 64, 96),
]
PARTS = [{"part": "gemm_qkv", "time_s": 16e-6, "share_frac": 0.2, "source": "measured"}]


def test_a_map_colours_gains_and_names_winners() -> None:
    early, sparse = maps(CELLS, "output_tokens", "batch")
    heat, _ = early.data
    assert (list(heat.x), list(heat.y)) == (["128", "8,192"], ["1", "8"])
    assert [list(row) for row in heat.z] == [[3.0, 3.0], [None, None]]
    assert heat.text[0][0] == "cpu-mid<br>+3.0%"
    assert heat.text[1][0] == ""
    assert (heat.zmin, heat.zmax) == (-50.0, 50.0)
    assert not early.layout.updatemenus
    assert sparse.data[0].text[1][1] == "gpu-target-fused<br>-25.0%"
    assert early.layout.title.text == "Where early routing pays"


def test_a_map_without_any_gain_is_left_out() -> None:
    cells = [cell | {"early_gain_frac": None} for cell in CELLS]
    (only,) = maps(cells, "output_tokens", "batch")
    assert only.layout.title.text == "Where sparse attention pays at all"


def test_every_setting_has_its_own_maps() -> None:
    cells = [cell | {"setting": s} for s in ("model a", "model b") for cell in CELLS]
    figures = maps(cells, "output_tokens", "batch")
    assert [f.layout.title.subtitle.text for f in figures] == ["model a"] * 2 + ["model b"] * 2


def test_a_map_has_a_choice_of_the_routing() -> None:
    mid = [cell | {"early_gain_frac": -0.1, "best_routing": "cpu-mid"} for cell in CELLS]
    fused = [cell | {"early_gain_frac": None} for cell in CELLS]
    axes = ("output_tokens", "batch")
    early, sparse = maps(CELLS, *axes, cpu_mid=mid, gpu_target_fused=fused)
    # One early routing alone: the fastest one is that one.
    assert not early.layout.updatemenus
    (menu,) = sparse.layout.updatemenus
    assert [button.label for button in menu.buttons] == [
        *("fastest routing", "cpu-mid", "gpu-target-fused")
    ]
    assert [trace.visible for trace in sparse.data] == [True, True, *[False] * 4]
    assert menu.buttons[1].args[0]["visible"] == [False, False, True, True, False, False]
    assert sparse.data[2].text[0][0] == "cpu-mid<br>-25.0%"


def test_an_op_is_busy_hidden_or_exposed() -> None:
    figure = step_figure(STEP, "a step", "cpu-mid")
    bars = {trace.name: trace for trace in figure.data}
    assert [(name, trace.marker.color) for name, trace in bars.items()][:5] == [
        ("GEMM", GEMM),
        ("attention", ATTENTION),
        ("norm, RoPE, activation", bars["norm, RoPE, activation"].marker.color),
        ("routing, hidden", look("cpu-mid").colour),
        ("exposed routing and hand-over", EXPOSED),
    ]
    assert (list(bars["GEMM"].base), list(bars["GEMM"].x)) == ([2.0, 64.0], [16.0, 32.0])
    assert list(bars["routing, hidden"].text) == ["route.1"]
    exposed = bars["exposed routing and hand-over"]
    assert (list(exposed.base), list(exposed.x)) == ([18.0], [2.0])
    waiting = bars["exposed: waiting for the router"]
    assert (list(waiting.base), list(waiting.x)) == ([20.0], [40.0])
    assert waiting.marker.color == EXPOSED
    window = bars["window: anchor to need"]
    assert (list(window.base), list(window.x), list(window.y)) == ([20.0], [5.0], ["CPU router"])
    assert len(bars["critical path"].x) == 6
    assert list(figure.layout.xaxis.range) == [0.0, 96.0]
    assert list(figure.layout.yaxis.categoryarray) == ["CPU router", "GPU"]


def test_a_lane_in_which_nothing_takes_time_is_left_out() -> None:
    flag = op("index_h2d.1", "index_h2d", "flags", 60, 60)
    figure = step_figure([*STEP, flag], "a step")
    assert list(figure.layout.yaxis.categoryarray) == ["CPU router", "GPU"]


def test_a_mean_step_is_one_bar() -> None:
    parts = [
        {"part": part, "time_s": us * 1e-6}
        for part, us in (("gemm_qkv", 50), ("head", 10), ("waiting", 30), ("await", 10))
    ]
    figure = share_figure(parts)
    assert [(t.name, list(t.x), list(t.text)) for t in figure.data] == [
        ("GEMM", [60.0], ["GEMM 60.0%"]),
        ("exposed routing and hand-over", [40.0], ["exposed 40.0%"]),
    ]
    assert figure.layout.title.text == "A mean step: 40.0% is exposed routing and hand-over"


@needs_browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_they_are_drawn_in_a_browser(tmp_path: Path, theme: str) -> None:
    page = tmp_path / "page.html"
    blocks = step_blocks(STEP, PARTS, "It waits.", "a step", {"seed": 0}, "cpu-mid")
    figures = maps(CELLS, "output_tokens", "batch", cpu_mid=CELLS, cpu_in=CELLS)
    page.write_text(render("A step", [*blocks, *map(Chart, figures)]))
    dom, console = opened(page, fragment=f"#{theme}")
    assert console == []
    assert f'data-errors="0" data-theme="{theme}" data-drawn="4"' in dom
    share, step, early, sparse = re.findall(r"<figure>.*?</figure>", dom, re.DOTALL)
    assert share.count('class="point"') == 1
    assert len(re.findall(r'class="trace bars', step)) == 8
    assert step.count('class="point"') == 14
    for figure in (early, sparse):
        assert figure.count('class="heatmaplayer mlayer"') == 1
        assert "<image" in figure
        assert "updatemenu-header" in figure


def test_cells_whose_routings_were_not_priced_alike_are_hatched() -> None:
    cells = [
        {"setting": "", "batch": batch, "hardware": "a", "early_routing": "cpu-mid"}
        | {"early_gain_frac": 0.1, "unlike_sources": int(batch == 4)}
        for batch in (1, 4)
    ]
    (figure,) = maps(cells, "batch", "hardware")
    _, hatching = figure.data
    assert (hatching.x, hatching.y) == (("4",), ("a",))
    assert "carried over" in figure.layout.meta["notes"][2]
    (plain,) = maps([cells[0]], "batch", "hardware")
    assert plain.data[1].x == ()
    assert len(plain.layout.meta["notes"]) == 2
