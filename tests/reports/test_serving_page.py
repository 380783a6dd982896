"""The pages of `essim serve` and `essim plan`."""

from __future__ import annotations

import re
from pathlib import Path

from browser import needs_browser, opened

from reports.page import Block, render
from reports.serving_page import frontier, over_time, plan_blocks, serving_blocks, shares

MOMENTS = [
    {"time_s": 0.0, "waiting": 2, "prefilling": 1, "decoding": 0, "kv_frac": 0.25},
    {"time_s": 1.5, "waiting": 0, "prefilling": 0, "decoding": 3, "kv_frac": 0.5},
]
REQUESTS = [
    {"ttft_s": ttft, "tpot_s": 0.01 if counted else None, "counted": counted}
    for ttft, counted in ((9.0, 0), (0.2, 1), (0.1, 1), (0.4, 1), (0.3, 1))
]
LATENCY = dict.fromkeys(("mean_s", "p50_s", "p90_s", "p95_s", "p99_s"), 0.2)
LATENCY |= {"metric": "TTFT", "p95_low_s": None, "p95_high_s": None}
POINTS = [
    {"routing": "cpu-mid", "tokens_per_s_per_user": 90.0, "tokens_per_s_per_gpu": 800.0},
    {"routing": "gpu-target", "tokens_per_s_per_user": 80.0, "tokens_per_s_per_gpu": 500.0},
    {"routing": "cpu-mid", "tokens_per_s_per_user": 70.0, "tokens_per_s_per_gpu": 900.0},
]


def blocks(latencies: list[dict[str, object]]) -> list[Block]:
    row = {"name": "s", "gpus": 2, "kept_frac": 0.99}
    return serving_blocks(row, latencies, MOMENTS, REQUESTS, ["Kept."], {"seed": 0})


def test_over_time_is_steps_in_shown_units() -> None:
    figure = over_time(MOMENTS, ("waiting", "decoding"), "Requests")
    assert [(t.name, list(t.x), list(t.y)) for t in figure.data] == [
        ("waiting", [0.0, 1.5], [2.0, 0.0]),
        ("decoding", [0.0, 1.5], [0.0, 3.0]),
    ]
    (pool,) = over_time(MOMENTS, ("kv_frac",), "KV pool").data
    assert list(pool.y) == [25.0, 50.0]
    assert pool.line.shape == "hv"


def test_shares_count_what_is_counted() -> None:
    (line,) = shares(REQUESTS, "ttft_s", "Time to first token").data
    assert (list(line.x), list(line.y)) == ([0.1, 0.2, 0.3, 0.4], [25.0, 50.0, 75.0, 100.0])


def test_the_frontier_has_a_line_a_routing() -> None:
    lines = frontier(POINTS).data
    assert [(t.name, list(t.x), list(t.y)) for t in lines] == [
        ("cpu-mid", [70.0, 90.0], [900.0, 800.0]),
        ("gpu-target", [80.0], [500.0]),
    ]


def test_no_latencies_are_drawn_under_overload() -> None:
    assert render("s", blocks([])).count('class="plot"') == 2
    assert render("s", blocks([LATENCY])).count('class="plot"') == 4


@needs_browser
def test_both_pages_are_drawn(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    for drawn, shown in (
        (4, blocks([LATENCY])),
        (1, plan_blocks([{"deployment": "a", "gpus": 1}], POINTS, ["One GPU."], {"seed": 0})),
    ):
        page.write_text(render("A page", shown))
        dom, console = opened(page)
        assert console == []
        (root,) = re.findall(r"<html[^>]*>", dom)
        assert f'data-errors="0" data-theme="light" data-drawn="{drawn}"' in root
