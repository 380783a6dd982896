"""Predictions beside a real run: pairs, what is dropped, errors, gains, intervals, exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest
from pairs import measured, predicted, write

from essim.errors import InputError
from essim.hardware.profile import find_profile, load_profile
from essim.results.files import result_files
from essim.results.tables import PAIR_COLUMNS
from essim.simulate.plan import load_scenario
from essim.simulate.sweep import Simulator
from essim.validate.binomial import clopper_pearson
from essim.validate.calibration import calibration_points, on_the_grid
from essim.validate.compare import compare
from essim.validate.measured_run import read_facts, read_measured, read_predicted
from essim.validate.traces import op_errors

ROOT = Path(__file__).parents[2]
REAL = ROOT / "reports" / "data" / "h200-decode" / "decode.csv"


def cells(tmp_path: Path, *rows: dict[str, object]):
    return read_measured(write(tmp_path / "decode.csv", list(rows)))


def test_pairs_carry_the_mean_and_the_spread_of_repetitions(tmp_path: Path) -> None:
    real = cells(
        tmp_path,
        measured("dense", 4e-3),
        measured("gpu-target", 6e-3),
        measured("cpu-mid", 4e-3, 1),
        measured("cpu-mid", 6e-3, 2),
    )
    rows = [predicted("cpu-mid", 4e-3), predicted("dense", 5e-3), predicted("gpu-target", 6e-3)]
    result = compare(rows, real, {})
    assert result.dropped == []
    dense, target, mid = result.pairs
    assert (mid["measured_s"], mid["repetitions"]) == (5e-3, 2)
    assert (mid["measured_low_s"], mid["measured_high_s"]) == (4e-3, 6e-3)
    assert mid["error_frac"] == pytest.approx(-0.2)
    assert mid["predicted_gain_frac"] == pytest.approx(0.5)
    assert mid["measured_gain_frac"] == pytest.approx(0.2)
    assert mid["gain_error_points"] == pytest.approx(30)
    # The baseline has no gain over itself; dense attends to other tokens.
    assert target["gain_error_points"] is dense["gain_error_points"] is None
    total, *modes = result.errors
    assert total["cells"] == 3
    assert total["bias_frac"] == pytest.approx(0.05 / 3)
    assert total["mape_frac"] == pytest.approx(0.45 / 3)
    assert total["worst_frac"] == pytest.approx(0.25)
    assert total["worst_cell"] == "dense, batch 2, context 512"
    assert [(row["mode"], row["cells"]) for row in modes] == [
        ("dense", 1),
        ("gpu-target", 1),
        ("cpu-mid", 1),
    ]
    assert [(row["mode"], row["mean_points"]) for row in result.gains] == [
        ("all", pytest.approx(30)),
        ("cpu-mid", pytest.approx(30)),
    ]
    assert result.coverage is None


def test_a_measurement_is_unsteady_where_repetitions_or_steps_are_apart(tmp_path: Path) -> None:
    real = cells(
        tmp_path,
        *(measured("dense", s, r, unstable=False) for r, s in enumerate((1.0, 1.09), 1)),
        *(measured("gpu-target", s, r, unstable=False) for r, s in enumerate((1.0, 1.11), 1)),
        *(measured("cpu-mid", 1.0, r, unstable=flag) for r, flag in enumerate((False, True), 1)),
    )
    assert [row["unsteady"] for row in real] == [False, True, True]
    rows = [predicted(mode) for mode in ("dense", "gpu-target", "cpu-mid")]
    result = compare(rows, real, {})
    assert [pair["unsteady"] for pair in result.pairs] == [False, True, True]
    assert [row["unsteady_cells"] for row in result.errors] == [2, 0, 1, 1]
    for ending in (".csv", ".parquet"):
        file = tmp_path / f"pairs{ending}"
        assert result_files(result.pairs, file, {}, PAIR_COLUMNS)[file]


def test_what_has_no_partner_is_dropped_with_its_reason(tmp_path: Path) -> None:
    real = cells(
        tmp_path, measured("gpu-target", 6e-3), measured("cpu-mid", 6e-3), measured("cpu-in", 6e-3)
    )
    rows = [
        predicted("gpu-target"),
        predicted("cpu-mid", output_tokens=33),
        predicted("cpu-mix", None, status="infeasible", reason="8 router threads on 1 cores"),
        predicted("cpu-target", top_pages=32),
        predicted("gpu-target-fused", selector="quest"),
        predicted("cpu-in", projection_rank=64),
    ]
    result = compare(rows, real, {"rank": 128, "selector": {"page_tokens": 4}})
    assert [(r["side"], r["mode"], r["attended_tokens"], r["reason"]) for r in result.dropped] == [
        ("predicted", "cpu-mid", 64, "32 steps predicted, 16 measured"),
        ("predicted", "cpu-mix", 64, "8 router threads on 1 cores"),
        ("predicted", "cpu-target", 128, "not measured"),
        ("predicted", "gpu-target-fused", 64, "a real run has no selector quest"),
        ("predicted", "cpu-in", 64, "projection_rank is 64, measured with 128"),
        ("measured", "cpu-mid", 64, "32 steps predicted, 16 measured"),
        ("measured", "cpu-in", 64, "projection_rank is 64, measured with 128"),
    ]
    assert len(result.pairs) == 1


MIX = ["mid"] * 2 + ["in"]
OTHER_SETTINGS = [
    ({"weight_dtype": "fp8"}, "weight_dtype is fp8, measured with bf16"),
    ({"kv_dtype": "fp8"}, "kv_dtype is fp8, measured with bf16"),
    ({"summary_dtype": "bf16"}, "summary_dtype is bf16, measured with fp8"),
    ({"kv_block_tokens": 16}, "kv_block_tokens is 16, measured with 4"),
    ({"mix": "3 in"}, "mix is 3 in, measured with 2 mid, 1 in"),
]


@pytest.mark.parametrize(("other", "reason"), OTHER_SETTINGS)
@pytest.mark.parametrize("block_tokens", [4, None])
def test_a_prediction_of_other_dtypes_blocks_or_mix_is_dropped(
    tmp_path: Path, other: dict[str, object], reason: str, block_tokens: int | None
) -> None:
    """A block that neither side names is a page."""
    real = cells(tmp_path, measured("cpu-mix", 4e-3, dtype="bf16"))
    selector = {"page_tokens": 4, "kv_block_tokens": block_tokens, "summary_dtype": "fp8"}
    facts = {"selector": selector, "mix": MIX}
    same = {
        "weight_dtype": "bf16",
        "kv_dtype": "bf16",
        "summary_dtype": "fp8",
        "mix": "2 mid, 1 in",
    }
    result = compare(
        [predicted("cpu-mix", **same | other), predicted("cpu-mix", **same)], real, facts
    )
    assert [row["reason"] for row in result.dropped] == [reason]
    assert list(result.pairs[0]) == list(PAIR_COLUMNS)
    # A run that does not say, and a sweep from before such columns.
    unsaid = cells(tmp_path, measured("cpu-mix", 4e-3))
    assert len(compare([predicted("cpu-mix", **other)], unsaid, {"selector": {}}).pairs) == 1
    old = {key: value for key, value in predicted("cpu-mix").items() if key not in same | other}
    assert len(compare([old], real, facts).pairs) == 1


def test_a_sweep_says_the_settings_that_a_run_is_compared_by(tmp_path: Path) -> None:
    one = ("workload.batch=1", "workload.input_tokens=4480", "routing=cpu-mix")
    mix = f"routing.mix=[{', '.join(['in'] * 31)}]"
    _, points = load_scenario(ROOT / "scenarios" / "validate-h200.yaml", (*one, mix))
    file = tmp_path / "p.csv"
    file.write_bytes(result_files(Simulator().rows(points), file, {})[file])
    dense, routed, _ = read_predicted(file)
    keys = ("mix", "weight_dtype", "kv_dtype", "summary_dtype", "kv_block_tokens")
    assert [routed[key] for key in keys] == ["31 in", "bf16", "bf16", "fp8", 4]
    assert [dense[key] for key in keys] == [None, "bf16", "bf16", None, None]
    result = compare([dense, routed], read_measured(REAL), read_facts(REAL))
    assert [pair["mode"] for pair in result.pairs] == ["dense"]
    assert result.dropped[0]["reason"] == "mix is 31 in, measured with 20 mid, 11 in"
    fp8 = dense | {"weight_dtype": "fp8"}
    with pytest.raises(InputError, match="Reasons: weight_dtype is fp8, measured with bf16"):
        compare([fp8], read_measured(REAL), read_facts(REAL))


def test_several_output_lengths_pair_by_their_steps(tmp_path: Path) -> None:
    real = cells(tmp_path, measured("gpu-target", 4e-3))
    rows = [predicted(step_s=1.0, output_tokens=5), predicted(step_s=4e-3)]
    result = compare(rows, real, {})
    assert [pair["error_frac"] for pair in result.pairs] == [0.0]
    assert [row["side"] for row in result.dropped] == ["predicted"]


def test_errors_by_budget_where_it_varies(tmp_path: Path) -> None:
    real = cells(
        tmp_path, measured("cpu-mid", 4e-3), measured("cpu-mid", 4e-3, attended_tokens=128)
    )
    rows = [predicted("cpu-mid", 5e-3), predicted("cpu-mid", 3e-3, top_pages=32)]
    errors = compare(rows, real, {}).errors
    assert [(e["mode"], e["attended_tokens"], e["bias_frac"]) for e in errors] == [
        ("all", None, 0.0),
        ("cpu-mid", None, 0.0),
        ("cpu-mid", 64, pytest.approx(0.25)),
        ("cpu-mid", 128, pytest.approx(-0.25)),
    ]


def test_measured_cells_inside_the_predicted_interval_are_counted(tmp_path: Path) -> None:
    ends = {"decode_tokens_per_s_p5": 400.0, "decode_tokens_per_s_p95": 500.0}  # 5 to 4 ms
    modes = {"gpu-target": 5e-3, "cpu-in": 4e-3, "cpu-mid": 3.9e-3, "cpu-target": 4.5e-3}
    real = cells(tmp_path, *(measured(mode, time_s) for mode, time_s in modes.items()))
    rows = [predicted(mode, **ends) for mode in ("gpu-target", "cpu-in", "cpu-mid")]
    result = compare([*rows, predicted("cpu-target")], real, {})
    pair = result.pairs[0]
    assert (pair["predicted_low_s"], pair["predicted_high_s"]) == (4e-3, 5e-3)
    assert result.coverage == {
        **{"inside": 2, "cells": 3, "share_frac": pytest.approx(2 / 3)},
        **{"low_frac": pytest.approx(0.0942993), "high_frac": pytest.approx(0.9915962)},
    }


@pytest.mark.parametrize(
    ("inside", "of", "low", "high"),
    [
        (0, 10, 0.0, 0.3084971),
        (10, 10, 0.6915029, 1.0),
        (9, 10, 0.5549839, 0.9974714),
        (1100, 2000, 0.5278869, 0.5719663),
    ],
)
def test_binomial_intervals_are_exact(inside: int, of: int, low: float, high: float) -> None:
    assert clopper_pearson(inside, of) == (pytest.approx(low), pytest.approx(high))


def test_two_predictions_of_a_cell_are_refused(tmp_path: Path) -> None:
    real = cells(tmp_path, measured("gpu-target", 4e-3))
    with pytest.raises(InputError, match="two predictions of gpu-target, batch 2, context 512, 64"):
        compare([predicted(), predicted(hardware="a100-sxm-80gb")], real, {})


def test_nothing_in_common_is_an_error_with_the_reasons(tmp_path: Path) -> None:
    real = cells(tmp_path, measured("gpu-target", 4e-3))
    with pytest.raises(InputError, match="model is m, measured with other"):
        compare([predicted()], real, {"model": "other"})


def test_csv_and_parquet_of_a_sweep_read_the_same(tmp_path: Path) -> None:
    rows = [predicted(), predicted("dense", decode_tokens_per_s_p5=300.0)]
    read = []
    for ending in ("csv", "parquet"):
        file = tmp_path / f"p.{ending}"
        file.write_bytes(result_files(rows, file, {})[file])
        read.append(read_predicted(file))
    assert read[0] == read[1]
    assert [row["decode_tokens_per_s_p5"] for row in read[0]] == [None, 300.0]
    assert [row["top_pages"] for row in read[0]] == [16, None]


BAD = [
    ([measured("dense", 0.0)], "decode.csv:2: mean_s: '0.0' is not a finite number above zero"),
    ([measured("dense", 1.0, batch="two")], "2: batch: 'two' is not a count above zero"),
    ([measured("dense", 1.0, batch="")], "2: batch: the cell is empty"),
    ([measured("dense", 1.0, kind="gemm")], "2: gemm is no decode step"),
    ([measured("dense", 1.0), measured("dense", 1.0, 2, calls=8)], "3: 8 steps, another"),
    ([predicted()], "decode.csv: there is no column 'kind'"),
]


@pytest.mark.parametrize(("rows", "message"), BAD)
def test_a_measured_file_that_is_none_is_named(
    tmp_path: Path, rows: list[dict[str, object]], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        cells(tmp_path, *rows)


def test_steps_on_a_calibration_point_are_named() -> None:
    points = {"attn_dense": [(1, 4096), (2, 8192)]}
    pairs = [
        {"batch": batch, "context_tokens": context, "steps": 16}
        for batch, context in ((1, 4096), (1, 4090), (1, 4097), (2, 4096), (2, 8176))
    ]
    found = on_the_grid(pairs, points)
    assert [(p["batch"], p["context_tokens"]) for p in found] == [(1, 4096), (1, 4090), (2, 8176)]
    shipped = calibration_points(load_profile(find_profile("h200-sxm", ROOT)))
    assert {name: len(own) for name, own in shipped.items()} == {
        **{"gpu_route_stepwise": 60, "gpu_route_fused": 60, "gpu_side_slowdown": 25},
        **{"cpu_route": 24, "attn_dense": 136},
    }


def test_op_errors_are_of_mean_durations_by_kind() -> None:
    def op(kind: str, end_s: float) -> dict[str, object]:
        return {"name": kind, "kind": kind, "stream": "gpu", "start_s": 1.0, "end_s": end_s}

    mine = [op("norm", 1.5), op("norm", 2.5), op("key_d2h", 2.0)]
    rows = op_errors(mine, [op("norm", 3.0), op("host", 2.0)])
    assert [tuple(row.values()) for row in rows] == [
        ("norm", 2, 1, 1.0, 2.0, -1.0, -0.5),
        ("key_d2h", 1, 0, 1.0, None, None, None),
        ("host", 0, 1, None, 1.0, None, None),
    ]
