"""What the figures of a sweep hold."""

from __future__ import annotations

import re
from typing import Any

import pytest
from plotly.graph_objects import Scatter

from reports.figures import curves
from reports.palette import ROUTINGS

Row = dict[str, object]


def lines(figure: Any) -> list[tuple[str, str | None, tuple[object, ...], tuple[object, ...]]]:
    return [(t.name, t.yaxis, tuple(t.x), tuple(t.y)) for t in figure.data]


def test_throughput_and_gain_over_output(few: list[Row]) -> None:
    first, second = curves(few, "gpu-target", "output_tokens")
    assert lines(first) == [
        ("gpu-target", "y", (128, 256), (200.0, 190.0)),
        ("cpu-mid", "y", (128, 256), (220.0, 209.5)),
        ("cpu-mid", "y2", (128, 256), (10.0, 10.26)),
        ("if routing cost nothing", "y2", (128, 256), (12.5, 12.5)),
    ]
    assert lines(second) == [
        ("gpu-target", "y", (128, 256), (700.0, 650.0)),
        ("cpu-mid", "y", (128, 256), (693.0, None)),
        ("cpu-mid", "y2", (128, 256), (-1.0, None)),
        ("if routing cost nothing", "y2", (128, 256), (12.5, 12.5)),
    ]
    assert [t.line.dash for t in first.data] == ["solid", "solid", "solid", "dot"]
    assert [t.showlegend for t in first.data] == [True, True, False, None]


def test_percentiles_are_bars(few: list[Row]) -> None:
    """One point of two has them: 190 to 230 tokens/s around 220, a gain of 4 to 12 % around 10."""
    ends = {"decode_tokens_per_s_p5": 190.0, "decode_tokens_per_s_p95": 230.0}
    ends |= {"decode_gain_frac_p5": 0.04, "decode_gain_frac_p95": 0.12}
    at = ("cpu-mid", 1, 128)
    rows = [
        row | ends if (row["routing"], row["batch"], row["output_tokens"]) == at else row
        for row in few
    ]
    figure = curves(rows, "gpu-target", "output_tokens")[0]
    bars = [(line.name, line.error_y.array, line.error_y.arrayminus) for line in figure.data]
    assert bars == [
        ("gpu-target", None, None),
        ("cpu-mid", (10.0, None), (30.0, None)),
        ("cpu-mid", (2.0, None), (6.0, None)),
        ("if routing cost nothing", None, None),
    ]
    assert figure.layout.meta["notes"][0].endswith(" Bars: 5th to 95th percentile.")
    alone = [row for row in rows if row["routing"] == "gpu-target"]
    alone = [row | {"decode_tokens_per_s_p5": 180.0} for row in alone]
    bars_alone = curves(alone, "gpu-target", "output_tokens")[0]
    assert bars_alone.data[0].error_y.arrayminus == (20.0, 10.0)
    assert "Bars: 5th to 95th percentile." in bars_alone.layout.meta["notes"][0]
    hover = hover_of(figure.data[1])
    assert "decode gain, 5th percentile: +4.00 %" in hover
    assert "decode throughput, 95th percentile: 230.0 tokens/s" in hover


def test_titles_and_axes(few: list[Row]) -> None:
    layout = curves(few, "gpu-target", "output_tokens")[0].layout
    assert layout.title.text == "Decode throughput and gain over gpu-target by output length"
    assert layout.title.subtitle.text == (
        "llama-3.1-8b · h200-sxm · batch 1 · 40,960 input tokens · rocketkv"
    )
    assert layout.xaxis.title.text == "output length, tokens"
    assert layout.yaxis.title.text == "decode throughput, tokens/s"
    assert layout.yaxis2.title.text == "decode gain<br>over gpu-target, %"
    assert (layout.xaxis.type, layout.xaxis.tickvals) == ("log", (128, 256))
    assert layout.yaxis2.zeroline is True
    assert layout.yaxis2.autorangeoptions.include == (-0.513, 0.513)


def test_points_left_out_are_explained(few: list[Row]) -> None:
    first, second = curves(few, "gpu-target", "output_tokens")
    read = (
        "Below the line at 0 a routing costs more than it saves. "
        "Dotted: the largest gain possible, if routing cost nothing."
    )
    gap = "Not drawn: cpu-mid at output length 256: needs 90 GiB, 80 GiB are free."
    assert first.layout.meta == {"notes": [read]}
    assert second.layout.meta == {"notes": [read, gap]}


def test_infeasible_point_is_a_gap_even_with_numbers(few: list[Row]) -> None:
    few[0] |= {"status": "infeasible", "reason": "too large."}
    figure = curves(few, "gpu-target", "output_tokens")[0]
    assert figure.data[0].y == (None, 190.0)
    assert figure.layout.meta["notes"][1] == (
        "Not drawn: gpu-target at output length 128: too large."
    )


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "n/a"])
def test_missing_number_is_a_gap(few: list[Row], value: object) -> None:
    few[4]["decode_gain_frac"] = value
    figure = curves(few, "gpu-target", "output_tokens")[0]
    assert figure.data[1].y == (220.0, 209.5)
    assert figure.data[2].y == (None, 10.26)
    assert figure.layout.meta["notes"][1] == (
        "Not drawn: cpu-mid at output length 128: no decode gain is known."
    )


def test_equal_reasons_share_a_sentence(rows: list[Row]) -> None:
    notes = curves(rows, "gpu-target", "output_tokens")[2].layout.meta["notes"]
    assert notes[1:] == [
        "Not drawn: gpu-target, gpu-target-fused, gpu_side-mid at output length 8,192: "
        "KV cache and K-summaries need 151.2 GiB, 120.0 GiB are free."
    ]


def test_output_metric(few: list[Row]) -> None:
    for row in few:
        row |= {"output_tokens_per_s": 50.0, "output_gain_frac": 0.02}
    figure = curves(few, "gpu-target", "output_tokens", "output")[0]
    assert lines(figure) == [
        ("gpu-target", "y", (128, 256), (50.0, 50.0)),
        ("cpu-mid", "y", (128, 256), (50.0, 50.0)),
        ("gpu-target", "y2", (128, 256), (2.0, 2.0)),
        ("cpu-mid", "y2", (128, 256), (2.0, 2.0)),
    ]
    title = "End-to-end throughput and gain over gpu-target by output length"
    assert figure.layout.title.text == title
    assert figure.layout.yaxis.title.text == "end-to-end throughput, tokens/s"


def test_a_routing_looks_the_same_in_every_figure(rows: list[Row]) -> None:
    figures = [*curves(rows, "gpu-target", "output_tokens"), *curves(rows, "gpu-target", "batch")]
    looks: dict[str, set[tuple[str, str]]] = {}
    for figure in figures:
        for trace in figure.data:
            if trace.marker.symbol:
                looks.setdefault(trace.name, set()).add((trace.line.color, trace.marker.symbol))
    assert {name: len(found) for name, found in looks.items()} == dict.fromkeys(looks, 1)
    assert len({own for found in looks.values() for own in found}) == 6
    assert all({color for color, _ in looks[name]} == {ROUTINGS[name].colour} for name in looks)


def test_selector_is_named_when_several_are_swept(few: list[Row]) -> None:
    rows = few + [row | {"selector": "quest"} for row in few]
    figure = curves(rows, "gpu-target", "output_tokens")[0]
    assert [t.name for t in figure.data if t.yaxis == "y"] == [
        "rocketkv gpu-target",
        "rocketkv cpu-mid",
        "quest gpu-target",
        "quest cpu-mid",
    ]


def test_other_swept_columns_name_a_line_and_its_dashes(few: list[Row]) -> None:
    rows = [
        row | {"kv_dtype": name, "decode_tokens_per_s": rate}
        for name, rate in (("bf16", 200.0), ("fp8", 300.0))
        for row in few[:2]
    ]
    with pytest.raises(ValueError, match="two rows of gpu-target at one output_tokens"):
        curves(rows, "gpu-target", "output_tokens")
    figure = curves(rows, "gpu-target", "output_tokens", by=["kv_dtype"])[0]
    assert [(t.name, t.line.color, t.line.dash) for t in figure.data] == [
        ("gpu-target, kv dtype bf16", "#e37509", "solid"),
        ("gpu-target, kv dtype fp8", "#e37509", "dash"),
    ]


def test_each_value_of_the_other_axes_has_its_figures(few: list[Row]) -> None:
    rows = [row | {"input_tokens": n} for n in (8192, 40960) for row in few]
    subtitles = [f.layout.title.subtitle.text for f in curves(rows, "gpu-target", "output_tokens")]
    assert subtitles == [
        f"llama-3.1-8b · h200-sxm · batch {batch} · {tokens} input tokens · rocketkv"
        for batch in (1, 4)
        for tokens in ("8,192", "40,960")
    ]
    assert len(curves(rows, "gpu-target", "batch")) == 4


def hover_of(line: Scatter, point: int = 0) -> str:
    """Return what is shown at a point of a line."""
    texts = line.customdata[point]
    shown = re.sub(r"%{customdata\[(\d+)\]}", lambda m: texts[int(m[1])], line.hovertemplate)
    return shown.removesuffix("<extra></extra>")


def test_hover_shows_numbers_units_and_sources(few: list[Row]) -> None:
    few[4] |= {
        "output_tokens_per_s": 45.678,
        "output_gain_frac": 0.0153,
        "prefill_s": 2.4,
        "decode_s": 0.58,
        "step_s": 0.00454545,
        "tpot_s": 0.00454545,
        "exposed_routing_s": 12.34e-6,
        "gpu_busy_frac": 0.97,
        "cpu_busy_frac": None,
        "kv_bytes": 5 * 2**30,
        "summary_gpu_bytes": 0,
        "summary_cpu_bytes": 2**26,
        "price_sources": "measured: gemm; roofline: <rope>",
    }
    text = hover_of(curves(few, "gpu-target", "output_tokens")[0].data[1])
    assert text.split("<br>") == [
        "<b>cpu-mid, batch 1</b>",
        "output length: 128 tokens",
        "decode throughput: 220.0 tokens/s",
        "decode gain: +10.00 %",
        "largest possible decode gain: +12.50 %",
        "end-to-end throughput: 45.7 tokens/s",
        "end-to-end gain: +1.53 %",
        "prefill: 2.400 s",
        "decode: 0.580 s",
        "mean step: 4.545 ms",
        "time per output token: 4.545 ms",
        "exposed routing per step: 12.3 us",
        "GPU busy: 97.0 %",
        "CPU busy: –",
        "KV cache: 5.000 GiB",
        "K-summary on the GPU: 0.000 GiB",
        "K-summary on the CPU: 0.062 GiB",
        "largest batch that fits: 21",
        "priced from measurements: 93.0 %",
        "prices measured: gemm; roofline: &lt;rope&gt;",
        "engine maxplus, seed 0",
    ]


def test_names_from_rows_are_escaped(few: list[Row]) -> None:
    for row in few[4:]:
        row["routing"] = "<b>&"
    figure = curves(few, "<i>", "output_tokens")[0]
    assert figure.data[1].name == "&lt;b&gt;&amp;"
    assert "<i>" not in figure.layout.title.text + figure.layout.yaxis2.title.text
