"""Intervals of predicted decode rates: factors of tables, drawn from their held-out points."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from firstday import FIRST_DAY

from essim.errors import InputError
from essim.hardware.holdout import ratios
from essim.hardware.profile import load_profile
from essim.hardware.table import read_table
from essim.model.shape import PRESETS
from essim.simulate import uncertainty
from essim.simulate.scenario import Scenario
from essim.simulate.sweep import Simulator

PERCENTILES = [f"decode_tokens_per_s_p{p}" for p in (5, 50, 95)]
ATTENTION = "attn_dense"


def scenario(hardware: Path, routing: str = "gpu-target", **workload: int) -> Scenario:
    load = {"batch": 1, "input_tokens": 8000, "output_tokens": 65} | workload
    selector = {"kind": "dense"}
    if routing != "gpu-target":
        selector = {"kind": "rocketkv", "prompt_budget": 4096, "page_tokens": 4, "top_pages": 32}
    where, anchor = routing.split("-")
    return Scenario.model_validate(
        {
            "name": "x",
            "model": PRESETS["llama-3.1-8b"],
            "hardware": str(hardware),
            "selector": selector,
            "routing": {"where": where, "anchor": anchor},
            "workload": load,
        }
    )


@pytest.fixture(autouse=True)
def tables_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices from beside a table are taken as right: here it is about those of tables."""
    monkeypatch.setattr(uncertainty, "error_factors", lambda error, ranks: np.ones_like(ranks))


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """The first day's profile; dense attention says that it was held out at some points."""
    file = tmp_path / FIRST_DAY.name
    lines = FIRST_DAY.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(f"  {ATTENTION}:"))
    lines.insert(at + 1, "    heldout: {points: 1, median_frac: 0.1, worst_frac: 0.1}")
    file.write_text("\n".join(lines) + "\n")
    shutil.copytree(FIRST_DAY.with_suffix(""), file.with_suffix(""))
    return file


def hold_out(profile: Path, *factors: float) -> None:
    """Points inside the table that took so many times what it predicts."""
    folder = profile.with_suffix("")
    table = read_table(folder / f"{ATTENTION}.csv", ATTENTION, (), ("batch", "context_tokens"))
    grid = table.grid({})
    assert grid is not None
    rows = ["batch,context_tokens,mean_s"]
    for i, factor in enumerate(factors):
        tokens = 5000 + 100 * i
        rows.append(f"1,{tokens},{float(factor * grid.at([1, tokens]).mean_s)!r}")
    (folder / "heldout").mkdir(exist_ok=True)
    (folder / "heldout" / f"{ATTENTION}.csv").write_text("\n".join(rows) + "\n")


def row_of(profile: Path, seed: int = 0, **options):
    simulator = Simulator(seed=seed)
    (row,) = simulator.rows([scenario(profile, **options)])
    return row


def test_ratios_are_measured_over_predicted(profile: Path) -> None:
    hold_out(profile, 1.1, 0.8)
    found = load_profile(profile).heldout
    assert list(found) == [(ATTENTION,)]
    assert found[ATTENTION,] == pytest.approx([1.1, 0.8])
    folder = profile.with_suffix("")
    table = read_table(folder / f"{ATTENTION}.csv", ATTENTION, (), ("batch", "context_tokens"))
    first = ratios(table, folder / "heldout" / f"{ATTENTION}.csv", lambda r: r["batch"] == "2")
    assert first == {}


def test_one_factor_moves_the_whole_table_and_nothing_else(profile: Path) -> None:
    """Attention 10 % off: the step longer or shorter by a tenth of it, half of the draws each."""
    hold_out(profile, 1.1)
    row = row_of(profile)
    (point,) = [scenario(profile)]
    parts = {p["part"]: p["time_s"] for p in Simulator().breakdown(point)}
    slow = 1 / (row["step_s"] + 0.1 * parts[ATTENTION])
    fast = 1 / (row["step_s"] - (1 - 1 / 1.1) * parts[ATTENTION])
    # Steps differ by a few nanoseconds of attention: what jitter there is, is that.
    assert row[PERCENTILES[0]] == pytest.approx(slow, rel=1e-4)
    assert row[PERCENTILES[2]] == pytest.approx(fast, rel=1e-4)
    assert row["decode_tokens_per_s"] == pytest.approx(1 / row["step_s"])


def test_half_the_draws_are_slow_and_half_are_fast(profile: Path) -> None:
    hold_out(profile, 1.25, 0.8)
    row = row_of(profile)
    (point,) = [scenario(profile)]
    attention_s = {p["part"]: p["time_s"] for p in Simulator().breakdown(point)}[ATTENTION]
    slow, fast = (1 / (row["step_s"] + share * attention_s) for share in (0.25, -0.2))
    assert row[PERCENTILES[0]] == pytest.approx(slow, rel=1e-4)
    assert row[PERCENTILES[2]] == pytest.approx(fast, rel=1e-4)
    assert row[PERCENTILES[0]] < row["decode_tokens_per_s"] < row[PERCENTILES[2]]


def test_a_gain_is_off_by_what_its_two_runs_share(profile: Path) -> None:
    """Dense attention a half slower, in layer 0 of both runs: the gain shrinks a little."""
    hold_out(profile, 1.5)
    point = scenario(profile, routing="gpu_side-mid")
    baseline = point.with_routing(point.compare.baseline)
    mine, base = Simulator().rows([point, baseline])
    (attention_s,) = {
        part["time_s"]
        for run in (point, baseline)
        for part in Simulator().breakdown(run)
        if part["part"] == ATTENTION
    }
    least, most = (
        (base["step_s"] + off * attention_s) / (mine["step_s"] + off * attention_s) - 1
        for off in (0.5, -1 / 3)
    )
    assert 0.01 < least < mine["decode_gain_frac"] < most
    found = [mine[f"decode_gain_frac_{end}"] for end in ("p5", "p95")]
    assert found == pytest.approx([least, most], rel=1e-3)
    assert [base[f"decode_gain_frac_{end}"] for end in ("p5", "p95")] == [0, 0]


def test_the_keys_of_a_table_are_off_together(profile: Path) -> None:
    """Four GEMM shapes, each a tenth too slow, right, or too fast at its held-out points."""
    text = profile.read_text()
    held = "  gemm:\n    heldout: {points: 3, median_frac: 0.1, worst_frac: 0.1}\n"
    profile.write_text(text.replace("  gemm:\n", held))
    folder = profile.with_suffix("")
    table = read_table(folder / "gemm.csv", "gemm", ("n", "k", "dtype"), ("rows",))
    rows = ["n,k,dtype,rows,mean_s"]
    for keys, grid in table.grids.items():
        rows += [f"{','.join(keys)},1,{float(f * grid.at([1]).mean_s)!r}" for f in (0.9, 1.0, 1.1)]
    (folder / "heldout").mkdir()
    (folder / "heldout" / "gemm.csv").write_text("\n".join(rows) + "\n")
    hold_out(profile, 1.0)
    row = row_of(profile)
    (point,) = [scenario(profile)]
    parts = {p["part"]: p["time_s"] for p in Simulator().breakdown(point)}
    gemms_s = sum(time_s for part, time_s in parts.items() if part.startswith("gemm_"))
    # 0.9 and 1.1, either way: the largest is 1 / 0.9, the least 0.9.
    assert row[PERCENTILES[0]] == pytest.approx(1 / (row["step_s"] + gemms_s / 9), rel=1e-4)
    assert row[PERCENTILES[2]] == pytest.approx(1 / (row["step_s"] - 0.1 * gemms_s), rel=1e-4)


def test_points_of_a_sweep_share_a_tables_draws(profile: Path) -> None:
    """Another output length is off by the same errors: its interval is as wide."""
    hold_out(profile, *np.linspace(0.5, 1.5, 999))
    widths = []
    for tokens in (17, 18):
        row = row_of(profile, output_tokens=tokens)
        widths.append([row[p] * row["step_s"] for p in PERCENTILES])
    assert widths[0] == pytest.approx(widths[1], rel=2e-4)


def test_a_seed_gives_the_same_interval_and_another_seed_another(profile: Path) -> None:
    hold_out(profile, *np.linspace(0.9, 1.1, 9))
    first, again, other = (row_of(profile, seed) for seed in (1, 1, 2))
    assert [first[p] for p in PERCENTILES] == [again[p] for p in PERCENTILES]
    assert [first[p] for p in PERCENTILES] != [other[p] for p in PERCENTILES]


def test_without_held_out_points_a_measured_price_is_taken_as_it_is() -> None:
    row = row_of(FIRST_DAY)
    assert [row[p] for p in PERCENTILES] == pytest.approx([row["decode_tokens_per_s"]] * 3, 1e-4)


def test_a_held_out_file_that_is_broken_is_named(profile: Path) -> None:
    hold_out(profile, 1.1)
    file = profile.with_suffix("") / "heldout" / f"{ATTENTION}.csv"
    file.write_text("batch,context_tokens,mean_s\n1,5000,1e-5\n1,5100,much\n")
    with pytest.raises(InputError, match=rf"{ATTENTION}.csv:3: mean_s: 'much' is not a finite"):
        load_profile(profile)
    file.write_text("batch,mean_s\n1,1e-5\n")
    with pytest.raises(InputError, match=rf"{ATTENTION}.csv:1: .*no column 'context_tokens'"):
        load_profile(profile)


def test_one_token_has_no_decode_and_no_interval(profile: Path) -> None:
    hold_out(profile, 1.1)
    row = row_of(profile, output_tokens=1)
    assert [row[p] for p in PERCENTILES] == [None] * 3


def test_calls_that_differ_widen_a_short_run_more_than_a_long_one(profile: Path) -> None:
    """At batch 8 the CPU router is exposed: its calls differ, a mean over many of them less so."""
    hold_out(profile, 1.0)
    widths = []
    for tokens in (17, 1025):
        row = row_of(profile, routing="cpu-target", batch=8, output_tokens=tokens)
        low, middle, high = (row[p] for p in PERCENTILES)
        widths.append((high - low) / middle)
        assert low < row["decode_tokens_per_s"] < high
    assert 4 < widths[0] / widths[1] < 16
