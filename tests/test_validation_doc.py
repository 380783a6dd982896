"""The errors that docs/validation.md claims, computed."""

from __future__ import annotations

import re
from statistics import mean

import pytest
from h200 import H200, ROOT, chain, table_us
from h200_decode import trace_table, traced_us

from essim.compare import Comparison, compare
from essim.realrun import read_facts, read_measured
from essim.results import Row
from essim.scenario import load_scenario
from essim.simulate import Simulator
from reports.parity_svg import svg

DATA = ROOT / "reports" / "data"
REAL = {
    "h200": DATA / "h200-decode" / "decode.csv",
    "offgrid": DATA / "h200-offgrid" / "decode.csv",
}
MIX = "128"  # cpu-mix was timed with one budget


def compared(name: str) -> Comparison:
    """Lay what is predicted for a scenario beside the shipped run of it."""
    _, points = load_scenario(ROOT / "scenarios" / f"validate-{name}.yaml")
    run = REAL[name]
    return compare(Simulator(ROOT).rows(points), read_measured(run), read_facts(run))


def section(heading: str) -> str:
    text = (ROOT / "docs" / "validation.md").read_text()
    return text.split(f"## {heading}\n")[1].split("\n## ")[0]


def error_lines(result: Comparison) -> list[str]:
    """The rows of the document's table of errors."""
    gains = {(row["mode"], row["attended_tokens"]): row for row in result.gains}
    several = {row["mode"] for row in result.errors if row["attended_tokens"] is not None}
    lines = []
    for row in result.errors:
        mode, budget = row["mode"], row["attended_tokens"]
        if mode in several and budget is None:
            continue
        name = "all" if mode == "all" else f"`{mode}`"
        attended = str(budget or (MIX if mode == "cpu-mix" else "all"))
        errors = [
            f"{row['bias_frac']:+.2%}",
            f"{row['mape_frac']:.2%}",
            f"{row['worst_frac']:+.2%}",
        ]
        gain, apart = gains.get((mode, budget)), ["-", "-"]
        if gain:
            apart = [f"{gain['mean_points']:.2f}", f"{gain['worst_points']:+.2f}"]
        percents = [text.replace("%", " %") for text in errors]
        lines.append(" | ".join([name, attended, str(row["cells"]), *percents, *apart]))
    return lines


@pytest.fixture(scope="module")
def shipped() -> Comparison:
    return compared("h200")


def documented(heading: str, number: int = 0) -> list[str]:
    """The rows of one of a section's tables."""
    tables = re.findall(r"(?:^\|.*\n)+", section(heading), re.MULTILINE)
    return [line.strip("| ") for line in tables[number].splitlines()[2:]]


def test_the_documented_errors_are_those_of_the_shipped_run(shipped: Comparison) -> None:
    assert sorted(documented("The H200")) == sorted(error_lines(shipped))
    assert len(shipped.pairs) == 240
    words = " ".join(section("The H200").split())
    for share in [shipped.coverage, *by_router(shipped.pairs)]:
        assert f"{share['inside']} of {share['cells']}" in words
    low, high = (f"{shipped.coverage[end]:.0%}".rstrip("%") for end in ("low_frac", "high_frac"))
    assert f"95 % sure: {low} to {high} %" in words


def readme_lines(result: Comparison) -> list[str]:
    """The rows of the README's table: errors by mode, all last."""
    lines = []
    for row in result.errors:
        if row["attended_tokens"] is not None:
            continue
        own = [p for p in result.pairs if row["mode"] in ("all", p["mode"])]
        name = "all" if row["mode"] == "all" else f"`{row['mode']}`"
        errors = [
            f"{100 * row['bias_frac']:+.1f} %",
            f"{100 * row['mape_frac']:.1f} %",
            f"{100 * row['worst_frac']:+.1f} %",
        ]
        cells = [name, str(len(own)), *errors, f"{inside(own)} of {len(own)}"]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines[1:], lines[0]]


def inside(pairs: list[Row]) -> int:
    """How many measured steps are inside their interval."""
    ends = [(p["predicted_low_s"], p["measured_s"], p["predicted_high_s"]) for p in pairs]
    return sum(low <= real <= high for low, real, high in ends)


def test_the_readmes_table_and_figure(shipped: Comparison) -> None:
    text = (ROOT / "README.md").read_text().split("## How well it predicts\n")[1]
    shown = [line for line in text.split("\n## ")[0].splitlines() if line.startswith("| ")]
    assert shown[1:] == readme_lines(shipped)
    assert (ROOT / "docs" / "parity.svg").read_text() == svg(shipped.pairs)


def test_what_a_third_stream_costs() -> None:
    """The table of the trials, and what the profile adds because of them."""
    made = ("made dense", "made gpu-target", "made gpu-target-fused")
    turned = {"1": "a kernel on a new stream", "2": "made cpu-mid"}
    turned |= {"3": "made gpu_side-mid-fused", "4": "a kernel on a new stream"}
    lines, gaps = [], []
    for step, kernels in (("dense", 102), ("gpu-target", 144), ("gpu-target-fused", 102)):
        before, after = [], []
        for trial, event in turned.items():
            own = [s for s in chain("streams") if (s["trial"], s["step"]) == (trial, step)]
            assert {s["kernels"] for s in own} == {str(kernels)}
            before.append(mean(float(s["us"]) for s in own if s["after"] in made))
            after.append(mean(float(s["us"]) for s in own if s["after"] == event))
        gaps.append((mean(after) - mean(before)) / kernels)
        steps = f"{mean(before):.1f} | {mean(after):.1f}"
        lines.append(f"`{step}` | {kernels} | {steps} | {gaps[-1]:.3f}")
    assert documented("The third stream") == lines
    tables = H200.spec.tables.items()
    added = {name: 1e6 * spec.beyond_s.value for name, spec in tables if spec.beyond_s}
    gap = round(mean(gaps), 3)
    assert added == pytest.approx({"norm": gap, "act": gap, "rope": gap, "gemm": 1.5 * gap})


def test_the_errors_without_it(shipped: Comparison) -> None:
    # A layer has two norms, RoPE, activation and four GEMMs; one norm is behind the last.
    counts = {"norm": 65, "rope": 32, "act": 32, "gemm": 128}
    added_s = sum(count * H200.spec.tables[name].beyond_s.value for name, count in counts.items())
    lines = []
    for mode in ("dense", "gpu-target", "gpu-target-fused", "gpu_side-mid", "gpu_side-mid-fused"):
        errors = [
            (pair["predicted_s"] - added_s) / pair["measured_s"] - 1
            for pair in shipped.pairs
            if pair["mode"] == mode
        ]
        percents = f"{100 * mean(errors):+.2f} % | {100 * mean(map(abs, errors)):.2f} %"
        lines.append(f"`{mode}` | {len(errors)} | {percents}")
    assert documented("The third stream", 1) == lines


def test_the_ops_of_a_traced_step() -> None:
    mode, shapes = "gpu-target-fused", {"gemm_qkv": (6144, 4096), "gemm_o": (4096, 4096)}
    shapes |= {"gemm_gate_up": (28672, 4096), "gemm_down": (4096, 14336)}
    (stamp_us,) = (
        float(line.strip("| ").split(" | ")[-1])
        for line in trace_table()
        if line.startswith(f"| `{mode}` |")
    )
    lines = []
    for op in ("norm", "rope", "act", *shapes):
        keys = dict(zip(("n", "k"), shapes[op], strict=True)) if op in shapes else {}
        table = op.split("_")[0]
        price_us = table_us(table, 1, **keys, **({"dtype": "bf16"} if keys else {}))
        added_us = 1e6 * H200.spec.tables[table].beyond_s.value
        real_us = traced_us(mode, op) - stamp_us
        numbers = (price_us - added_us, added_us, price_us, real_us)
        lines.append(f"`{op}` | " + " | ".join(f"{number:.2f}" for number in numbers))
    assert documented("The third stream", 2) == lines
    assert f"less a stamp of {stamp_us:.2f} on each op" in " ".join(
        section("The third stream").split()
    )


def test_the_errors_of_the_pool(shipped: Comparison) -> None:
    pool = [pair for pair in shipped.pairs if pair["mode"].startswith("cpu")]
    by_batch = {b: [p["error_frac"] for p in pool if p["batch"] == b] for b in (1, 2, 4, 8, 16)}
    mapes = [f"{100 * mean(map(abs, errors)):.1f}" for errors in by_batch.values()]
    words = " ".join(section("What is missing, and why").split())
    assert f"{', '.join(mapes[:-1])} and {mapes[-1]} % on average" in words
    assert sum(error > 0 for error in by_batch[16]) == len(by_batch[16]) == 21
    low, high = (f"{100 * end(by_batch[16]):.0f}" for end in (min, max))
    assert f"by {low} to {high} %; at batch 8, 18 of 21 too fast" in words
    assert sum(error < 0 for error in by_batch[8]) == 18
    early = [
        pair["error_frac"] for pair in pool if pair["mode"] != "cpu-target" and pair["batch"] <= 2
    ]
    worst = max(early, key=abs)
    said = (
        f"{100 * mean(map(abs, early)):.1f} % on average over {len(early)} cells, {100 * worst:.1f}"
    )
    assert f"{said} % at worst" in " ".join(section("The H200").split())


def test_what_the_second_stream_costs(shipped: Comparison) -> None:
    """The stepwise router beside, a layer at batch 8 and 11520 tokens, in the run and the table."""
    steps = {
        pair["mode"]: pair["measured_s"]
        for pair in shipped.pairs
        if (pair["batch"], pair["context_tokens"], pair["attended_tokens"]) == (8, 11520, 128)
    }
    at = [table_us("gpu_side_slowdown", 8, 11520, 32, kernel=k) for k in ("stepwise", "fused")]
    more_us = 1e6 * (steps["gpu_side-mid"] - steps["gpu_side-mid-fused"]) / 31
    words = " ".join(section("What is missing, and why").split())
    assert f"it costs {more_us + at[1]:.0f} us a layer in the run, and {at[0]:.0f} in the" in words


def test_the_point_off_the_grid() -> None:
    lines = []
    for pair in compared("offgrid").pairs:
        steps = f"{1e3 * pair['predicted_s']:.3f} | {1e3 * pair['measured_s']:.3f}"
        error, held = f"{100 * pair['error_frac']:+.1f} %", "yes" if inside([pair]) else "no"
        lines.append(f"`{pair['mode']}` | {steps} | {error} | {held}")
    assert sorted(documented("Off the grid")) == sorted(lines)


def by_router(pairs: list[Row]):
    """How many measured cells are inside: with the CPU pool; without, at 128 tokens or dense."""
    pool = [pair for pair in pairs if pair["mode"].startswith("cpu")]
    measured = [
        pair
        for pair in pairs
        if pair not in pool and (pair["mode"] == "dense" or pair["attended_tokens"] == 128)
    ]
    for own in (pool, measured):
        yield {"inside": inside(own), "cells": len(own)}
