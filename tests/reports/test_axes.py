"""Over what the figures of a sweep are drawn."""

from __future__ import annotations

from typing import Any

from reports.axes import axes_of
from reports.figures import curves

Row = dict[str, object]


def lines(figure: Any) -> list[tuple[str, str | None, tuple[object, ...], tuple[object, ...]]]:
    return [(t.name, t.yaxis, tuple(t.x), tuple(t.y)) for t in figure.data]


def test_over_batch_there_is_tpot_too(few: list[Row]) -> None:
    for row in few:
        row["tpot_s"] = 0.005 * int(str(row["batch"]))
    short, long = curves(few, "gpu-target", "batch")
    assert lines(short) == [
        ("gpu-target", "y", (1, 4), (200.0, 700.0)),
        ("cpu-mid", "y", (1, 4), (220.0, 693.0)),
        ("gpu-target", "y2", (1, 4), (5.0, 20.0)),
        ("cpu-mid", "y2", (1, 4), (5.0, 20.0)),
        ("cpu-mid", "y3", (1, 4), (10.0, -1.0)),
        ("if routing cost nothing", "y3", (1, 4), (12.5, 12.5)),
    ]
    assert lines(long)[4] == ("cpu-mid", "y3", (1, 4), (10.26, None))
    layout = long.layout
    assert layout.title.text == (
        "Decode throughput, time per output token and gain over gpu-target by batch"
    )
    assert "256 output tokens" in layout.title.subtitle.text
    assert layout.xaxis.title.text == "batch, sequences"
    assert layout.xaxis.anchor == "y3"
    assert layout.yaxis2.title.text == "time per output token, ms"
    assert layout.yaxis3.title.text == "decode gain<br>over gpu-target, %"
    assert layout.yaxis3.zeroline is True
    assert layout.yaxis3.domain[1] < layout.yaxis2.domain[0]
    assert layout.meta["notes"][1:] == [
        "Not drawn: cpu-mid at batch 4: needs 90 GiB, 80 GiB are free."
    ]


def test_of_many_values_of_another_axis_the_ends_have_a_figure(rows: list[Row]) -> None:
    subtitles = [f.layout.title.subtitle.text for f in curves(rows, "gpu-target", "batch")]
    lengths = [text.split(" · ")[2] for text in subtitles]
    assert lengths == ["8,192 output tokens", "128 output tokens"]
    assert len(curves(rows, "gpu-target", "output_tokens")) == 3


def dense(few: list[Row], **more: object) -> list[Row]:
    """Return the rows of a sweep of dense attention, which has no routing and no gain."""
    own = {"selector": "dense", "routing": "none", "decode_gain_frac": 0.0}
    own |= {"gain_ceiling_frac": 0.0}
    return [row | own | more for row in few if row["routing"] == "gpu-target"]


def test_dense_over_batch_has_throughput_and_tpot_and_no_line_at_zero(few: list[Row]) -> None:
    rows = [row | {"tpot_s": 0.005} for row in dense(few) if row["output_tokens"] == 128]
    assert axes_of(rows) == ["batch"]
    (figure,) = curves(rows, "none", "batch")
    assert lines(figure) == [
        ("dense", "y", (1, 4), (200.0, 700.0)),
        ("dense", "y2", (1, 4), (5.0, 5.0)),
    ]
    assert figure.layout.title.text == "Decode throughput and time per output token by batch"
    assert figure.layout.meta == {"notes": []}


def test_a_sweep_of_the_prompt_is_drawn_over_the_prompt(few: list[Row]) -> None:
    one = [row for row in few if (row["batch"], row["output_tokens"]) == (1, 128)]
    rows = [row | {"input_tokens": n} for n in (8192, 40960) for row in one]
    assert axes_of(rows) == ["input_tokens"]
    (figure,) = curves(rows, "gpu-target", "input_tokens")
    assert lines(figure)[1] == ("cpu-mid", "y", (8192, 40960), (220.0, 220.0))
    assert figure.layout.xaxis.title.text == "input length, tokens"
    assert figure.layout.title.subtitle.text == (
        "llama-3.1-8b · h200-sxm · 128 output tokens · batch 1 · rocketkv"
    )


def test_a_sweep_of_the_budget_is_drawn_over_the_budget(few: list[Row]) -> None:
    one = [row for row in few if (row["batch"], row["output_tokens"]) == (1, 128)]
    rows = [row | {"top_pages": n, "attended_tokens": 4 * n} for n in (32, 8) for row in one]
    # Dense attention has no budget: it is the same at each.
    rows += [row | {"top_pages": None} for row in dense(one)]
    assert axes_of(rows, ["top_pages"]) == ["top_pages"]
    (figure,) = curves(rows, "gpu-target", "top_pages", by=["top_pages"])
    assert lines(figure)[:3] == [
        ("rocketkv gpu-target", "y", (8, 32), (200.0, 200.0)),
        ("rocketkv cpu-mid", "y", (8, 32), (220.0, 220.0)),
        ("dense", "y", (8, 32), (200.0, 200.0)),
    ]
    assert figure.layout.xaxis.title.text == "top pages"


def test_budgets_of_different_selectors_are_no_axis(few: list[Row]) -> None:
    rows = [row | {"page_tokens": 4} for row in few]
    rows += [row | {"selector": "quest", "page_tokens": 16} for row in few]
    assert axes_of(rows, ["page_tokens"]) == ["output_tokens", "batch"]
    assert len(curves(rows, "gpu-target", "output_tokens", by=["page_tokens"])) == 2


def test_routings_alone_are_drawn_beside_each_other(few: list[Row]) -> None:
    rows = [row for row in few if (row["batch"], row["output_tokens"]) == (1, 128)]
    assert axes_of(rows) == ["routing"]
    (figure,) = curves(rows, "gpu-target", "routing")
    assert figure.layout.xaxis.type == "category"
    assert lines(figure)[:2] == [
        ("gpu-target", "y", ("gpu-target", "cpu-mid"), (200.0, None)),
        ("cpu-mid", "y", ("gpu-target", "cpu-mid"), (None, 220.0)),
    ]


def test_one_point_has_no_axis(few: list[Row]) -> None:
    assert axes_of(few[:1]) == []


def test_one_value_on_an_axis_is_no_figure(few: list[Row]) -> None:
    one_batch = [row for row in few if row["batch"] == 1]
    one_length = [row for row in few if row["output_tokens"] == 128]
    assert curves(one_batch, "gpu-target", "batch") == []
    assert len(curves(one_batch, "gpu-target", "output_tokens")) == 1
    assert curves(one_length, "gpu-target", "output_tokens") == []
    assert len(curves(one_length, "gpu-target", "batch")) == 1


def test_the_baseline_alone_has_no_gain(few: list[Row]) -> None:
    rows = [row | {"gain_ceiling_frac": None} for row in few[:2]]
    (figure,) = curves(rows, "gpu-target", "output_tokens")
    assert lines(figure) == [("gpu-target", "y", (128, 256), (200.0, 190.0))]
    assert figure.layout.title.text == "Decode throughput by output length"
    assert "yaxis2" not in figure.to_plotly_json()["layout"]
    assert figure.layout.meta == {"notes": []}


def test_nothing_to_draw_is_no_figure(few: list[Row]) -> None:
    for row in few:
        row["status"] = "infeasible"
    assert curves(few, "gpu-target", "output_tokens") == []
    assert curves(few, "gpu-target", "batch") == []
    assert curves([], "gpu-target", "output_tokens") == []
    assert curves([], "gpu-target", "batch") == []
