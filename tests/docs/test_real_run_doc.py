"""The tables and numbers of docs/real-run.md on an H200, computed from what was measured."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from statistics import median

import h200_decode as run
import pytest
from h200 import ROOT, doc_table
from h200_decode import BATCHES, BUDGETS, CONTEXTS, CPU_MODES, STEPS_MS, gain, step_ms

TEXT = (ROOT / "docs" / "real-run.md").read_text().split("## An H200\n")[1]
FASTEST = "gpu_side-mid-fused"
POINTS = list(itertools.product(BATCHES, CONTEXTS, BUDGETS))


def section(heading: str) -> str:
    return TEXT.split(f"### {heading}\n")[1].split("\n### ")[0]


def said(heading: str) -> str:
    """Return a section's prose on one line."""
    lines = (line for line in section(heading).splitlines() if not line.startswith("|"))
    return re.sub(r"\s+", " ", " ".join(lines))


def gains(mode: str, over: str, batches=BATCHES, budgets=BUDGETS) -> list[float]:
    points = ((b, c, a) for b, c, a in POINTS if b in batches and a in budgets)
    return [gain(mode, over, *point) for point in points]


def between(values: list[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f} %"


@pytest.mark.parametrize(
    ("heading", "expected"),
    [
        ("Step times", run.steps_table),
        ("Gains", run.gains_table),
        ("Where the CPU stops paying", run.paying_table),
        ("What early routing buys", run.early_table),
        ("No straw man", run.dense_table),
        ("What a trace costs", run.trace_table),
    ],
)
def test_the_tables(heading, expected) -> None:
    shown = [line for line in section(heading).splitlines() if line.startswith("|")]
    assert shown == expected()


def test_every_cell_was_measured_three_times_with_the_settings_that_are_told() -> None:
    facts = json.loads((run.FOLDER / "provenance.json").read_text())
    assert (facts["repetitions"], facts["steps"]) == (3, 16)
    assert (facts["cores"], facts["router_threads"]) == (16, 8)
    assert (facts["rank"], facts["channels"], facts["selector"]["page_tokens"]) == (128, 32, 4)
    assert facts["mix"] == ["mid"] * 20 + ["in"] * 11
    assert Counter(map(len, STEPS_MS.values())) == {3: 240}
    assert {row["source_hash"] for row in run.rows()} == {facts["source_hash"]}


def test_the_gains_that_are_told() -> None:
    text = said("Gains")
    faster = [
        (*point, mode)
        for point in POINTS
        for mode in {cell[0] for cell in STEPS_MS if cell == run.cell(cell[0], *point)}
        if step_ms(mode, *point) < step_ms(FASTEST, *point)
    ]
    assert faster == []
    assert "at all 30 points" in text
    assert f"{between(gains(FASTEST, 'gpu-target-fused', budgets=(128,)))} over the same" in text
    over_256 = between(gains(FASTEST, "gpu-target-fused", budgets=(256,)))
    assert f"at 256 it is {over_256}" in text
    assert f"{between(gains(FASTEST, 'dense'))} over dense" in text
    fused, dense = (step_ms(mode, 1, 4480) for mode in ("gpu-target-fused", "dense"))
    assert f"takes {fused:.3f} ms against {dense:.3f} of `dense`" in text
    slower = [
        (b, c)
        for b, c in itertools.product(BATCHES, CONTEXTS)
        if gain("cpu-mid", "dense", b, c) < 0
    ]
    assert {(b, c) for b, c in slower if b in (8, 16)} == set(itertools.product((8, 16), CONTEXTS))
    assert f"dense at {len(slower)} of 15 points" in text


def test_the_spread_that_is_told() -> None:
    text = said("Step times")
    gpu = [run.spread(cell) for cell in STEPS_MS if cell[0] not in CPU_MODES]
    cpu = [run.spread(cell) for cell in STEPS_MS if cell[0] in CPU_MODES]
    small = sum(value < 0.2 for value in gpu)
    assert f"{small} of {len(gpu)} cells, {max(gpu):.1f} % at most, without" in text
    assert f"median {median(cpu):.1f} %, {max(cpu):.0f} % at most" in text
    at = {b: [run.spread(c) for c in STEPS_MS if c[0] in CPU_MODES and c[1] == b] for b in BATCHES}
    assert f"{median(at[1]):.1f} % at batch 1, {median(at[16]):.1f} % at batch 16" in text
    unstable = Counter(row["mode"] in CPU_MODES for row in run.rows() if row["unstable"] == "True")
    assert unstable == {True: 82}
    assert f"82 of {3 * len(cpu)} rows" in text
    small_budget, large_budget = (step_ms("cpu-in", 16, 4480, budget) for budget in BUDGETS)
    assert f"{small_budget:.1f} ms at 128 tokens and {large_budget:.1f} at 256" in text
    longer = [
        100 * (step_ms("gpu_side-mid", b, c, 256) / step_ms("gpu_side-mid", b, c) - 1)
        for b, c in itertools.product(BATCHES, CONTEXTS)
    ]
    assert f"`gpu_side-mid` takes {between(longer)} longer" in text


def test_where_the_cpu_pays_as_told() -> None:
    text = said("Where the CPU stops paying")
    early = CPU_MODES[1:]
    at_best = max(
        gain(m, "gpu-target-fused", b, c) for m in early for b in BATCHES for c in CONTEXTS
    )
    assert f"{-at_best:.1f} % behind at best" in text
    longer = [
        100 * (step_ms("gpu-target-fused", b, c, 256) / step_ms("gpu-target-fused", b, c) - 1)
        for b in BATCHES
        for c in CONTEXTS
    ]
    assert f"`gpu-target-fused` itself takes {between(longer)} longer at 256" in text


def test_what_early_routing_buys_as_told() -> None:
    text = said("What early routing buys")
    mid = gains("cpu-mid", "cpu-target", budgets=(128,))
    assert f"On the CPU: {between(mid)} for `cpu-mid`" in text
    for over, label in (("gpu-target", "stepwise"), ("gpu-target-fused", "fused")):
        mode = "gpu_side-mid" if label == "stepwise" else FASTEST
        assert f"{label} router {between(gains(mode, over, budgets=(128,)))}" in text
    small, large = (gains("cpu-in", "cpu-mid", batches, (128,)) for batches in ((1, 2), (8, 16)))
    assert f"within {max(map(abs, small)):.1f} % of each other at batch 1 and 2" in text
    assert f"`cpu-in` is {between(large)} faster at batch 8 and 16" in text
    mix = gains("cpu-mix", "cpu-mid", (8, 16), (128,))
    assert f"`cpu-mix` {between(mix)}" in text


def test_the_dense_steps_as_told() -> None:
    text = said("No straw man")
    for batch in (1, 8):
        assert f"{run.limit_ms(batch, 4096):.2f}" in text
    assert f"{step_ms('dense', 1, 4480):.3f} ms at 4480 tokens" in text
    assert f"{step_ms('dense', 8, 4480):.3f} ms" in text


def test_what_traces_say_as_told() -> None:
    text = said("What a trace costs")
    waits = [run.traced_us(mode, "await") for mode in ("cpu-target", "cpu-mid")]
    assert (
        "`await` takes {:.1f} us a layer in `cpu-target`, {:.1f} in `cpu-mid`".format(*waits)
        in text
    )
    publish = [run.traced_us(mode, "publish") for mode in ("cpu-mid", "cpu-in")]
    assert "`publish` {:.1f} us in `cpu-mid`, {:.1f} in `cpu-in`".format(*publish) in text


def test_the_steps_in_the_readme() -> None:
    shown = doc_table((ROOT / "README.md").read_text(), "A real run")
    assert len(shown) == 7
    for label, cells in list(shown.items())[1:]:
        assert cells == [f"{step_ms(label.strip('`'), batch, 4480):.3f}" for batch in (1, 8)]
