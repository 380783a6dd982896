"""The table of docs/real-run.md on a machine without a GPU, computed from what was measured."""

from __future__ import annotations

import csv
from collections import defaultdict
from statistics import median

import pytest
from h200 import ROOT

from essim.engines import finish_maxplus
from essim.hardware.profile import find_profile, load_profile
from essim.methods.selectors.dense import Dense
from essim.simulate.plan import load_scenario
from essim.simulate.replay import run_decode

TEXT = (ROOT / "docs" / "real-run.md").read_text()
DECODE = ROOT / "reports" / "data" / "cpu-2core-decode" / "decode.csv"
HEADING = "A machine without a GPU"
IN_LAYERS = 11  # of the last target layers, as the campaign's plan has it


def measured_ms() -> dict[tuple[str, int, int], list[float]]:
    """Milliseconds a step of each repetition, by mode, batch and context."""
    found = defaultdict(list)
    with DECODE.open() as file:
        for row in csv.DictReader(file):
            key = row["mode"], int(row["batch"]), int(row["context_tokens"])
            found[key].append(float(row["mean_s"]) * 1e3)
    return dict(found)


def simulated_ms(mode: str, batch: int, context: int) -> float:
    """What essim says of the same 16 steps, by the shipped profile of such a machine."""
    base, _ = load_scenario(ROOT / "scenarios" / "validate-laptop.yaml")
    selector = base.selector.model_copy(update={"prompt_budget": context})
    load = {"batch": batch, "input_tokens": context, "output_tokens": 17}
    update = {"workload": base.workload.model_copy(update=load), "selector": selector}
    point = base.model_copy(update=update)
    if mode == "dense":
        point = point.model_copy(update={"selector": Dense()})
    elif mode == "cpu-mix":
        routed = point.model.layers - 1
        mix = ["mid"] * (routed - IN_LAYERS) + ["in"] * IN_LAYERS
        routing = point.routing.model_copy(update={"where": "cpu", "anchor": "mix", "mix": mix})
        point = point.model_copy(update={"routing": routing})
    else:
        where, anchor = mode.split("-")
        routing = point.routing.model_copy(update={"where": where, "anchor": anchor})
        point = point.model_copy(update={"routing": routing})
    profile = load_profile(find_profile("cpu-2core", ROOT))
    return float(run_decode(point, profile, finish_maxplus, 16).step_ps.mean()) * 1e-9


def table() -> list[list[str]]:
    """The doc's table."""
    rows = []
    for (mode, batch, context), steps in sorted(
        measured_ms().items(), key=lambda item: item[0][1:]
    ):
        real, model = median(steps), simulated_ms(mode, batch, context)
        spread = f"{min(steps):.1f} to {max(steps):.1f}"
        values = [f"{real:.1f}", spread, f"{model:.1f}", f"{real / model:.2f}"]
        rows.append([str(batch), str(context), f"`{mode}`", *values])
    return rows


@pytest.mark.filterwarnings("ignore:.*kept:UserWarning")
def test_the_table_is_what_was_measured() -> None:
    lines = TEXT.split(f"## {HEADING}\n")[1].split("\n## ")[0].splitlines()
    shown = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("| ") and "---" not in line
    ]
    assert shown[1:] == table()
    ratios = [float(row[-1]) for row in table()]
    assert f"{100 * (min(ratios) - 1):.0f} % to {100 * (max(ratios) - 1):.0f} %" in TEXT
