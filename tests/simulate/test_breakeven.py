"""The break-even map, and that nothing is ever above its ceiling."""

from __future__ import annotations

import pytest

from essim.errors import InputError
from essim.simulate.breakeven import break_even, map_axes, turns
from essim.simulate.plan import load_scenario
from essim.simulate.sweep import Simulator

SWEEP = """
sweep:
  routing: [gpu-target, gpu-target-fused, cpu-mid, gpu_side-mid]
  workload.batch: [1, 8]
  workload.output_tokens: [128, 2048]
"""


def swept(scenario_file, more: str = SWEEP, *overrides: str):
    base, points = load_scenario(scenario_file(more=more), overrides)
    return base, points, Simulator().rows(points)


def test_each_cell_names_the_winner_and_what_early_routing_gains(scenario_file) -> None:
    _, _, rows = swept(scenario_file)
    cells = break_even(rows, "output_tokens", "batch")
    assert [(c["setting"], c["batch"], c["output_tokens"]) for c in cells] == [
        ("", 1, 128),
        ("", 1, 2048),
        ("", 8, 128),
        ("", 8, 2048),
    ]
    rates = {(r["routing"], r["batch"], r["output_tokens"]): r["decode_tokens_per_s"] for r in rows}
    for cell in cells:
        at = (cell["batch"], cell["output_tokens"])
        early = {name: rates[name, *at] for name in ("cpu-mid", "gpu_side-mid")}
        inline = max(rates[name, *at] for name in ("gpu-target", "gpu-target-fused"))
        assert cell["early_routing"] == max(early, key=early.get)
        assert cell["early_gain_frac"] == pytest.approx(max(early.values()) / inline - 1)
    assert cells[0]["early_gain_frac"] > 0 > cells[3]["early_gain_frac"]
    assert cells[3]["best_routing"] == "gpu-target-fused"
    assert all(cell["sparse_gain_frac"] > 0 for cell in cells)


def test_a_baseline_that_is_not_swept_still_counts(scenario_file) -> None:
    more = SWEEP.replace("gpu-target, gpu-target-fused, ", "")
    _, _, rows = swept(scenario_file, more)
    cells = break_even(rows, "output_tokens", "batch")
    best = max(float(r["decode_gain_frac"]) for r in rows if r["batch"] == 1)
    assert max(c["early_gain_frac"] for c in cells if c["batch"] == 1) == pytest.approx(best)


def test_other_axes_make_maps_of_their_own(scenario_file) -> None:
    more = SWEEP + "  workload.input_tokens: [8192, 40960]\n"
    _, _, rows = swept(scenario_file, more)
    cells = break_even(rows, "output_tokens", "batch")
    assert list(dict.fromkeys(c["setting"] for c in cells)) == [
        "input_tokens 8192",
        "input_tokens 40960",
    ]
    assert len(cells) == 8


def test_a_cell_in_which_nothing_runs_is_empty(scenario_file) -> None:
    _, _, rows = swept(scenario_file, SWEEP, "model=llama-3.1-70b")
    cells = break_even(rows, "output_tokens", "batch")
    assert {(c["best_routing"], c["early_gain_frac"]) for c in cells} == {(None, None)}


def test_the_axes_are_the_last_two_or_those_asked_for(scenario_file) -> None:
    base, _, rows = swept(scenario_file)
    assert map_axes(base, rows, None) == ("output_tokens", "batch")
    assert map_axes(base, rows, "workload.batch,workload.output_tokens") == (
        "batch",
        "output_tokens",
    )
    assert map_axes(base, rows, "batch, output_tokens") == ("batch", "output_tokens")
    for bad in ("batch", "batch,batch", "batch,routing", "a,b,c"):
        with pytest.raises(InputError, match="is not two swept keys X,Y"):
            map_axes(base, rows, bad)
    one, _, rows = swept(scenario_file, "sweep: {workload.batch: [1, 2]}\n")
    assert map_axes(one, rows, None) is None


def test_no_gain_is_above_its_ceiling(scenario_file) -> None:
    for model in ("llama-3.1-8b", "qwen2.5-7b", "smollm2-135m"):
        overrides = [f"model={model}", "workload.input_tokens=4000"]
        _, _, rows = swept(scenario_file, SWEEP, *overrides)
        for row in rows:
            assert row["decode_gain_frac"] <= row["gain_ceiling_frac"] + 1e-12
            assert row["output_gain_frac"] <= row["output_ceiling_frac"] + 1e-12
            assert row["gain_over_dense_frac"] <= row["dense_ceiling_frac"] + 1e-12


def test_a_ceiling_is_one_over_one_minus_the_share(scenario_file) -> None:
    _, _, rows = swept(scenario_file)
    row = rows[0]
    assert row["routing"] == "gpu-target"
    share = row["exposed_routing_s"] / row["step_s"]
    assert row["gain_ceiling_frac"] == pytest.approx(1 / (1 - share) - 1)
    whole = row["exposed_routing_s"] * 127 / (row["prefill_s"] + row["decode_s"])
    assert row["output_ceiling_frac"] == pytest.approx(1 / (1 - whole) - 1)


@pytest.mark.parametrize(
    ("places", "gains", "pays"),
    [
        ((1, 2), (0.1, 0.0001), "every batch"),
        ((1, 2), (-0.1, 0.0), "no batch"),
        ((1, 2), (None, None), None),
        ((1, 4, 8), (0.3, 0.1, -0.1), "up to about 6 (between 4 and 8)"),
        ((8, 4, 1), (0.1, -0.1, None), "from about 6 (between 4 and 8)"),
        (
            (1, 2, 4),
            (-0.1, 0.1, -0.3),
            "from about 1.5 (between 1 and 2), up to about 2.5 (between 2 and 4)",
        ),
        (("h200", "b200", "l40s"), (0.1, -0.1, 0.2), "h200, l40s"),
    ],
)
def test_where_early_routing_pays_is_said_along_x(places, gains, pays: str) -> None:
    cells = [
        {"setting": "s", "batch": place, "output_tokens": 8, "early_gain_frac": gain}
        for place, gain in zip(places, gains, strict=True)
    ]
    (found,) = turns(cells, "batch", "output_tokens")
    assert found == {"setting": "s", "output_tokens": 8, "pays": pays}
