"""What the page of a sweep is made of."""

from __future__ import annotations

from essim.results.notes import gains_over_others
from essim.results.prices import PriceSources
from reports.page import Chart, Details, Heading, Paragraph, Table
from reports.sweep_page import sweep_blocks, sweep_figures

Row = dict[str, object]


def outline(blocks: list[object]) -> list[str]:
    names = [b.text if isinstance(b, Heading) else type(b).__name__ for b in blocks]
    return [n for i, n in enumerate(names) if i == 0 or n != names[i - 1]]


def test_order_of_the_page(rows: list[Row]) -> None:
    blocks = sweep_blocks(rows, ["It pays.", "Up to batch 4."], "gpu-target", {"seed": 0})
    assert outline([*blocks]) == [
        "Paragraph",
        "Details",
        "Decode by output length",
        "Chart",
        "Decode by batch",
        "Chart",
        "End to end by output length",
        "Chart",
        "Routings by batch",
        "Paragraph",
        "Table",
        "Results",
        "Table",
        "Where the numbers come from",
        "Paragraph",
        "Table",
        "Details",
    ]
    assert sum(isinstance(block, Chart) for block in blocks) == 3 + 2 + 3
    assert [b.text for b in blocks if isinstance(b, Paragraph)] == [
        "It pays.",
        "Up to batch 4.",
        "Mean decode step and gain over gpu-target, at 8192 output tokens; * is the fastest.",
        "Every operation has a price, and each price says where it comes from.",
    ]
    assert isinstance(blocks[2], Details)
    assert [b.text for b in blocks[2].blocks if isinstance(b, Paragraph)] == [
        "126 points, 3 of which cannot run.",
        "Swept: routing gpu-target, gpu-target-fused, cpu-target, cpu-in, cpu-mid, gpu_side-mid; "
        "batch 1, 4, 8; output length 128, 256, 512, 1,024, 2,048, 4,096, 8,192 tokens.",
        "The same everywhere: model llama-3.1-8b; hardware h200-sxm; selector rocketkv; "
        "input length 40,960 tokens.",
    ]


def test_one_point_has_no_figures(few: list[Row]) -> None:
    blocks = sweep_blocks(few[:1], [], "gpu-target", {})
    assert not any(isinstance(block, Chart) for block in blocks)
    assert [b.text for b in blocks if isinstance(b, Heading)] == [
        "Results",
        "Where the numbers come from",
    ]


def test_results_leave_out_what_is_equal_or_unknown(few: list[Row]) -> None:
    rows = [row | {"tpot_s": None, "channels": i} for i, row in enumerate(few)]
    table = next(b for b in sweep_blocks(rows, [], "gpu-target", {}) if isinstance(b, Table))
    assert [*table.columns[:4], table.columns[-1]] == [
        *("routing", "batch", "output_tokens", "status"),
        "reason",
    ]
    assert "tpot_s" not in table.columns
    by = sweep_blocks(rows[:4], [], "gpu-target", {}, by=["channels"])
    table = next(b for b in by if isinstance(b, Table))
    assert list(table.columns[:3]) == ["batch", "output_tokens", "channels"]
    assert "status" not in table.columns
    assert list(table.rows) == [gains_over_others(row, "gpu-target") for row in rows[:4]]
    assert {row["decode_gain_frac"] for row in table.rows} == {None}  # of the baseline alone


def test_price_sources_are_gathered(few: list[Row]) -> None:
    few[0]["price_sources"] = PriceSources({"measured": ("gemm",), "roofline": ("rope",)})
    few[0]["prefill_sources"] = PriceSources({"extrapolated": ("gemm",)})
    few[1]["price_sources"] = None
    rows = few[:3]
    rows[2]["price_sources"] = PriceSources({"measured": ("norm", "gemm")})
    blocks = sweep_blocks(rows, [], "gpu-target", {})
    table = [b for b in blocks if isinstance(b, Table)][1]
    assert list(table.rows) == [
        {
            "price": "measured",
            "means": "timed on the profile's hardware at this size",
            "points": 2,
            "operations": "gemm norm",
        },
        {
            "price": "roofline",
            "means": "computed from peak rates and small kernels, not timed",
            "points": 1,
            "operations": "rope",
        },
        {
            "price": "extrapolated",
            "means": "beyond the sizes timed, along the last slope, never below the roofline",
            "points": 1,
            "operations": "gemm",
        },
    ]
    assert not [b for b in blocks if isinstance(b, Paragraph) and b.style == "note"]


def test_manifest_is_flattened_and_folded(few: list[Row]) -> None:
    manifest = {"versions": {"essim": "0.1.0"}, "seed": 0, "profiles": {"h": {"provisional": True}}}
    blocks = sweep_blocks(few, [], "gpu-target", manifest)
    details = blocks[-1]
    assert isinstance(details, Details)
    (table,) = details.blocks
    assert isinstance(table, Table)
    assert list(table.rows) == [
        {"key": "versions.essim", "value": "0.1.0"},
        {"key": "seed", "value": "0"},
        {"key": "profiles.h.provisional", "value": "true"},
    ]
    notes = [b.text for b in blocks if isinstance(b, Paragraph) and b.style == "note"]
    assert notes == ["Provisional: first numbers of this hardware, not a calibration."]


def test_a_large_sweep_is_cut_and_says_so(few: list[Row]) -> None:
    rows = [row | {"hardware": f"gpu {i}"} for i in range(130) for row in few]
    blocks = sweep_blocks(rows, [], "gpu-target", {})
    results = [block for block in blocks if isinstance(block, Table) and len(block.rows) > 100]
    assert [len(table.rows) for table in results] == [1000]
    said = [block.text for block in blocks if isinstance(block, Paragraph)]
    assert "The first 1,000 of 1,040 points; --out writes all of them." in said
    # Over output length and batch, and end to end over one of them.
    assert sum(isinstance(block, Chart) for block in blocks) == 3 * 6
    assert said.count("The first 6 figures; essim.plot draws all of them, or some rows.") == 3
    assert sum(text.startswith("Mean decode step and gain") for text in said) == 6
    every = sweep_figures(rows[:64], "gpu-target")
    assert {len(own) for own in every.values()} == {16}


def test_a_sweep_that_is_not_large_is_whole(few: list[Row]) -> None:
    blocks = sweep_blocks(few, [], "gpu-target", {})
    assert not any("The first" in block.text for block in blocks if isinstance(block, Paragraph))
