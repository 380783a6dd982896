"""What the figures of a sweep hold."""

from __future__ import annotations

from typing import Any

import pytest

from reports.figures import gain_over_batch, throughput_over_output
from reports.series import COLOURS, SPARE_COLOURS

Row = dict[str, object]


def lines(figure: Any) -> list[tuple[str, str | None, tuple[object, ...], tuple[object, ...]]]:
    return [(t.name, t.yaxis, tuple(t.x), tuple(t.y)) for t in figure.data]


def test_throughput_and_gain_over_output(few: list[Row]) -> None:
    first, second = throughput_over_output(few, "gpu-target")
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
    assert [t.line.dash for t in first.data] == ["solid", "solid", "dash", "dot"]
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
    figure = throughput_over_output(rows, "gpu-target")[0]
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
    bars_alone = throughput_over_output(alone, "gpu-target")[0]
    assert bars_alone.data[0].error_y.arrayminus == (20.0, 10.0)
    assert "Bars: 5th to 95th percentile." in bars_alone.layout.meta["notes"][0]
    hover = figure.data[1].hovertext[0]
    assert "decode gain, 5th percentile: +4.00 %" in hover
    assert "decode throughput, 95th percentile: 230.0 tokens/s" in hover


def test_titles_and_axes(few: list[Row]) -> None:
    layout = throughput_over_output(few, "gpu-target")[0].layout
    assert layout.title.text == "Decode throughput and gain over gpu-target, batch 1"
    assert layout.title.subtitle.text == "llama-3.1-8b · h200-sxm · 40,960 input tokens · rocketkv"
    assert layout.xaxis.title.text == "output length, tokens"
    assert layout.yaxis.title.text == "decode throughput, tokens/s"
    assert layout.yaxis2.title.text == "decode gain<br>over gpu-target, %"
    assert (layout.xaxis.type, layout.xaxis.tickvals) == ("log", (128, 256))
    assert layout.yaxis2.zeroline is True
    assert layout.yaxis2.autorangeoptions.include == (-0.513, 0.513)


def test_points_left_out_are_explained(few: list[Row]) -> None:
    first, second = throughput_over_output(few, "gpu-target")
    read = (
        "Dashed: decode gain. Below the line at 0 a routing costs more than it saves. "
        "Dotted: the largest gain possible, if routing cost nothing."
    )
    gap = "Not drawn: cpu-mid at output length 256: needs 90 GiB, 80 GiB are free."
    assert first.layout.meta == {"notes": [read]}
    assert second.layout.meta == {"notes": [read, gap]}


def test_infeasible_point_is_a_gap_even_with_numbers(few: list[Row]) -> None:
    few[0] |= {"status": "infeasible", "reason": "too large."}
    figure = throughput_over_output(few, "gpu-target")[0]
    assert figure.data[0].y == (None, 190.0)
    assert figure.layout.meta["notes"][1] == (
        "Not drawn: gpu-target at output length 128: too large."
    )


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "n/a"])
def test_missing_number_is_a_gap(few: list[Row], value: object) -> None:
    few[4]["decode_gain_frac"] = value
    figure = throughput_over_output(few, "gpu-target")[0]
    assert figure.data[1].y == (220.0, 209.5)
    assert figure.data[2].y == (None, 10.26)
    assert figure.layout.meta["notes"][1] == (
        "Not drawn: cpu-mid at output length 128: no decode gain is known."
    )


def test_equal_reasons_share_a_sentence(rows: list[Row]) -> None:
    notes = throughput_over_output(rows, "gpu-target")[2].layout.meta["notes"]
    assert notes[1:] == [
        "Not drawn: gpu-target, gpu-target-fused, gpu_side-mid at output length 8,192: "
        "KV cache and K-summaries need 151.2 GiB, 120.0 GiB are free."
    ]


def test_output_metric(few: list[Row]) -> None:
    for row in few:
        row |= {"output_tokens_per_s": 50.0, "output_gain_frac": 0.02}
    figure = throughput_over_output(few, "gpu-target", "output")[0]
    assert lines(figure) == [
        ("gpu-target", "y", (128, 256), (50.0, 50.0)),
        ("cpu-mid", "y", (128, 256), (50.0, 50.0)),
        ("gpu-target", "y2", (128, 256), (2.0, 2.0)),
        ("cpu-mid", "y2", (128, 256), (2.0, 2.0)),
    ]
    assert figure.layout.title.text == "End-to-end throughput and gain over gpu-target, batch 1"
    assert figure.layout.yaxis.title.text == "end-to-end throughput, tokens/s"


def test_gain_over_batch_at_longest_then_shortest(few: list[Row]) -> None:
    longest, shortest = gain_over_batch(few, "gpu-target")
    assert lines(longest) == [
        ("cpu-mid", "y", (1, 4), (10.26, None)),
        ("if routing cost nothing", "y", (1, 4), (12.5, 12.5)),
    ]
    assert lines(shortest) == [
        ("cpu-mid", "y", (1, 4), (10.0, -1.0)),
        ("if routing cost nothing", "y", (1, 4), (12.5, 12.5)),
    ]
    assert longest.layout.title.text == "Decode gain over gpu-target by batch, 256 output tokens"
    assert longest.layout.xaxis.title.text == "batch, sequences"
    assert longest.layout.yaxis.title.text == "decode gain<br>over gpu-target, %"
    assert longest.layout.yaxis.zeroline is True
    assert longest.layout.meta["notes"][1:] == [
        "Not drawn: cpu-mid at batch 4: needs 90 GiB, 80 GiB are free."
    ]


def test_one_value_on_an_axis_is_no_figure(few: list[Row]) -> None:
    one_batch = [row for row in few if row["batch"] == 1]
    one_length = [row for row in few if row["output_tokens"] == 128]
    assert gain_over_batch(one_batch, "gpu-target") == []
    assert len(throughput_over_output(one_batch, "gpu-target")) == 1
    assert throughput_over_output(one_length, "gpu-target") == []
    assert len(gain_over_batch(one_length, "gpu-target")) == 1


def test_the_baseline_alone_has_no_gain(few: list[Row]) -> None:
    rows = [row | {"gain_ceiling_frac": None} for row in few[:2]]
    (figure,) = throughput_over_output(rows, "gpu-target")
    assert lines(figure) == [("gpu-target", "y", (128, 256), (200.0, 190.0))]
    assert figure.layout.title.text == "Decode throughput, batch 1"
    assert "yaxis2" not in figure.to_plotly_json()["layout"]
    assert figure.layout.meta == {"notes": []}


def test_nothing_to_draw_is_no_figure(few: list[Row]) -> None:
    for row in few:
        row["status"] = "infeasible"
    assert throughput_over_output(few, "gpu-target") == []
    assert gain_over_batch(few, "gpu-target") == []
    assert throughput_over_output([], "gpu-target") == []
    assert gain_over_batch([], "gpu-target") == []


def test_a_routing_looks_the_same_in_every_figure(rows: list[Row]) -> None:
    figures = [*throughput_over_output(rows, "gpu-target"), *gain_over_batch(rows, "gpu-target")]
    looks: dict[str, set[tuple[str, str]]] = {}
    for figure in figures:
        for trace in figure.data:
            if trace.marker.symbol:
                looks.setdefault(trace.name, set()).add((trace.line.color, trace.marker.symbol))
    assert {name: len(found) for name, found in looks.items()} == dict.fromkeys(looks, 1)
    assert len({look for found in looks.values() for look in found}) == 6
    assert all(color == COLOURS[name] for name, found in looks.items() for color, _ in found)


def test_unknown_routing_gets_a_spare_colour(few: list[Row]) -> None:
    for row in few[4:]:
        row["routing"] = "npu-mid"
    figure = throughput_over_output(few, "gpu-target")[0]
    assert [t.line.color for t in figure.data[:2]] == [COLOURS["gpu-target"], SPARE_COLOURS[0]]


@pytest.mark.parametrize("colour", [*COLOURS.values(), *SPARE_COLOURS])
@pytest.mark.parametrize("paper", ["#ffffff", "#15181d"])
def test_colours_stand_out_on_both_papers(colour: str, paper: str) -> None:
    def luminance(code: str) -> float:
        parts = [int(code[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (p / 12.92 if p <= 0.04 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    low, high = sorted((luminance(colour), luminance(paper)))
    assert (high + 0.05) / (low + 0.05) > 3


def test_selector_is_named_when_several_are_swept(few: list[Row]) -> None:
    rows = few + [row | {"selector": "quest"} for row in few]
    figure = throughput_over_output(rows, "gpu-target")[0]
    assert [t.name for t in figure.data if t.yaxis == "y"] == [
        "rocketkv gpu-target",
        "rocketkv cpu-mid",
        "quest gpu-target",
        "quest cpu-mid",
    ]


def test_other_swept_columns_name_a_line(few: list[Row]) -> None:
    rows = [row | {"channels": n} for n in (32, 64) for row in few]
    with pytest.raises(ValueError, match="two rows of gpu-target at one output_tokens"):
        throughput_over_output(rows, "gpu-target")
    figure = throughput_over_output(rows, "gpu-target", by=["channels"])[0]
    assert [t.name for t in figure.data if t.yaxis == "y"][:2] == [
        "gpu-target, channels 32",
        "cpu-mid, channels 32",
    ]


def test_each_input_length_has_its_figures(few: list[Row]) -> None:
    rows = [row | {"input_tokens": n} for n in (8192, 40960) for row in few]
    subtitles = [f.layout.title.subtitle.text for f in throughput_over_output(rows, "gpu-target")]
    short = "llama-3.1-8b · h200-sxm · 8,192 input tokens · rocketkv"
    assert subtitles == [short, short, *[short.replace("8,192", "40,960")] * 2]
    assert len(gain_over_batch(rows, "gpu-target")) == 4


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
    text = throughput_over_output(few, "gpu-target")[0].data[1].hovertext[0]
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
    figure = throughput_over_output(few, "<i>")[0]
    assert figure.data[1].name == "&lt;b&gt;&amp;"
    assert "<i>" not in figure.layout.title.text + figure.layout.yaxis2.title.text
