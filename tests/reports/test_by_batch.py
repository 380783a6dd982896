"""Routings by batch: step times, gains over others, and which is the fastest."""

from __future__ import annotations

from essim.results.columns import COLUMNS
from essim.results.notes import gains_over_others
from reports.by_batch import ByBatch, by_batch


def row(routing: str, batch: int, step_s: float | None, gain: float | None, output: int = 64):
    found = dict.fromkeys(COLUMNS) | {"routing": routing, "batch": batch, "step_s": step_s}
    found |= {"selector": "rocketkv", "output_tokens": output, "decode_gain_frac": gain}
    return found | {"gain_over_dense_frac": 0.2, "gain_ceiling_frac": 0.5}


def test_a_row_a_routing_a_column_a_batch() -> None:
    rows = [row("gpu-target", 1, 5e-3, 0.0), row("gpu-target", 4, 6e-3, 0.0)]
    rows += [row("cpu-mid", 1, 4e-3, 0.25), row("cpu-mid", 4, None, None)]
    rows += [row("cpu-mid", 1, 3e-3, 0.5, output=8)]
    assert by_batch(rows, ["gpu-target"] * 5) == [
        ByBatch(
            "Mean decode step and gain over gpu-target, at 64 output tokens; * is the fastest",
            [
                {"routing": "gpu-target", "batch 1": "5 ms", "batch 4": "6 ms *"},
                {"routing": "cpu-mid", "batch 1": "4 ms +25.0% *", "batch 4": "does not run"},
            ],
        )
    ]


def test_one_batch_or_one_routing_is_no_table() -> None:
    assert (
        by_batch([row("gpu-target", 1, 5e-3, 0.0), row("cpu-mid", 1, 4e-3, 0.2)], ["a"] * 2) == []
    )
    assert by_batch([row("cpu-mid", 1, 5e-3, 0.1), row("cpu-mid", 2, 6e-3, 0.2)], ["a"] * 2) == []


def test_nothing_gains_over_itself() -> None:
    base = gains_over_others(row("gpu-target", 1, 5e-3, 0.0), "gpu-target")
    assert (base["decode_gain_frac"], base["gain_over_dense_frac"]) == (None, 0.2)
    assert base["gain_ceiling_frac"] == 0.5
    other = gains_over_others(row("cpu-mid", 1, 5e-3, 0.0), "gpu-target")
    assert other["decode_gain_frac"] == 0.0
    dense = gains_over_others(row("none", 1, 5e-3, 0.0), "gpu-target")
    assert {dense[key] for key in ("decode_gain_frac", "gain_over_dense_frac")} == {None}
    assert dense["gain_ceiling_frac"] is None
