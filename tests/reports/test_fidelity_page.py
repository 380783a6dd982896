"""The page of a fidelity run, from rows alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reports import fidelity_figures as draw
from reports.fidelity import FidelityTables, fidelity_blocks
from reports.page import Chart, Details, Heading, Table, render

Row = dict[str, object]
QUALITY: list[Row] = [
    {"domain": "all", "selector": "dense", "perplexity": 10.0, "kl_nats": 0.0},
    *(
        {"domain": domain, "selector": "rocketkv", "query": query, "projection_rank": rank}
        | {"budget_tokens": 64, "perplexity": 11.0, "kl_nats": kl, "kl_se_nats": 0.01}
        for domain in ("all", "book")
        for query, rank, kl in (("target", None, 0.1), ("mid", None, 0.2), ("mid", 32, 0.3))
    ),
]
LAYERS: list[Row] = [
    {"domain": domain, "layer": layer, "query": query, "projection_rank": rank}
    | {"selector": selector, "budget_tokens": None if selector is None else 64}
    | {"cosine_frac": 0.9, "recall_frac": 0.8, "mass_frac": 0.1 * layer, "overlap_frac": 0.5}
    | {"oracle_recall_frac": 0.4}
    for domain in ("book", "code")
    for layer in (1, 2)
    for selector in (None, "rocketkv")
    for query, rank in (("target", None), ("in", None), ("mid", None), ("mid", 32))
]
POSITIONS: list[Row] = [
    {"measure": measure, "query": query, "position": at, "mean": 0.2, "low": 0.1, "high": 0.4}
    for measure in ("mass gap", "mass gap slope")
    for query in ("in", "mid")
    for at in (10.0, 20.0)
]
MIX: list[Row] = [
    {"domain": domain, "layer": layer, "gap_frac": 0.02, "anchor": "mid"}
    for domain in ("book", "code", "all")
    for layer in (1, 2)
]
PASSKEYS: list[Row] = [
    {"context_tokens": 512, "depth_frac": depth, "setting": setting, "found": found}
    for depth in (0.1, 0.9)
    for setting, found in (("dense", 1), ("rocketkv mid 64", 0))
]
FRONTIER: list[Row] = [
    {"selector": "rocketkv", "query": query, "projection_rank": None, "budget_tokens": 64}
    | {"kl_nats": kl, "where": where, "quality_of": "small <b>", "throughput_of": "big on h200"}
    | {"decode_tokens_per_s": speed, "frontier": best, "reason": None}
    for query, where, speed, kl, best in (
        *(("target", "gpu", 200.0, 0.1, "yes"), ("mid", "gpu_side", 210.0, 0.2, "yes")),
        *(("mid", "cpu", 150.0, 0.2, None), ("mid", "cpu", None, 0.2, None)),
    )
]
STABILITY: list[Row] = [{"domain": "book", "other_domain": "code", "pearson": 0.9}]
TABLES = FidelityTables(LAYERS, POSITIONS, MIX, STABILITY, QUALITY, PASSKEYS, FRONTIER)
ABOUT = {"model": "small <b>", "budget_tokens": 64, "tau": 0.01}
LOST = {"rocketkv target 64": 0.1, "rocketkv mid 64": 0.2, "rocketkv mid-r32 64": 0.3}


def test_order_of_the_page() -> None:
    blocks = fidelity_blocks(TABLES, ["Found."], LOST, ABOUT)
    assert [b.text if isinstance(b, Heading) else type(b).__name__ for b in blocks] == [
        *("Paragraph", "Quality", "Table", "Chart", "The choice", *["Chart"] * 5, "Table"),
        *("Passkeys", "Chart", "Quality against throughput", "Chart", "Details"),
        *("Details", "Details"),
    ]
    page = render("small <b>", blocks)
    assert "small &lt;b&gt;" in page
    assert "small <b>" not in page


def test_parts_without_rows_are_left_out() -> None:
    whole = [row for row in QUALITY if row["domain"] == "all"]
    bare = replace(TABLES, quality=whole, stability=[], passkeys=[], frontier=[])
    blocks = fidelity_blocks(bare, [], LOST, ABOUT)
    assert [b.text for b in blocks if isinstance(b, Heading)] == ["Quality", "The choice"]
    assert sum(isinstance(b, Details) for b in blocks) == 1
    assert sum(isinstance(b, Table) for b in blocks) == 1
    assert sum(isinstance(b, Chart) for b in blocks) == 6


def test_lines_by_layer_are_means_over_domains() -> None:
    rows = [row | {"mass_frac": 0.3} if row["domain"] == "code" else row for row in LAYERS]
    panels = {"recall_frac": ("recall", None), "mass_frac": ("mass", "rocketkv")}
    figure = draw.by_layer(rows, panels, "t")
    assert [(t.name, t.xaxis) for t in figure.data] == [
        *(("in", "x"), ("mid", "x"), ("target", "x2"), ("in", "x2"), ("mid", "x2"))
    ]
    assert list(figure.data[4].y) == pytest.approx([0.2, 0.25])


def test_ranks_end_with_the_whole_projection() -> None:
    rows = [row for row in LAYERS if row["selector"]]
    assert list(draw.over_rank(rows, "t").data[0].x) == ["32", "full"]


def test_positions_have_intervals_and_no_slopes() -> None:
    figure = draw.over_positions(POSITIONS, "t")
    assert [t.name for t in figure.data] == ["in", "mid"]
    assert list(figure.data[0].error_y.array) == pytest.approx([0.2, 0.2])
    assert list(figure.data[0].error_y.arrayminus) == pytest.approx([0.1, 0.1])


def test_the_frontier_is_a_line_through_its_points_alone() -> None:
    line = draw.quality_against_throughput(FRONTIER, "t").data[-1]
    assert (line.name, list(line.x), list(line.y)) == ("frontier", [200.0, 210.0], [0.1, 0.2])


def test_passkeys_have_a_row_a_setting_and_a_column_a_place() -> None:
    heat = draw.passkey_map(PASSKEYS, "t").data[0]
    assert list(heat.y) == ["dense", "rocketkv mid 64"]
    assert list(heat.x) == ["512 at 10 %", "512 at 90 %"]
    assert [list(row) for row in heat.z] == [[1, 1], [0, 0]]


def test_mass_and_quality_are_of_one_setting() -> None:
    whole = [row for row in QUALITY if row["domain"] == "all"]
    points = draw.mass_against_quality(whole, LOST, "t").data[0]
    assert list(points.x) == [0.1, 0.2, 0.3]
    assert list(points.y) == [0.1, 0.2, 0.3]
    assert list(points.text) == ["target 64", "mid 64", "mid-r32 64"]
