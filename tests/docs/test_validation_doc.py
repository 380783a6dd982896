"""The errors that docs/validation.md claims, computed."""

from __future__ import annotations

import re
from dataclasses import replace
from statistics import mean
from typing import Any

import pytest
from h200 import ROOT, chain, table_us
from h200_decode import trace_table, traced_us

from essim.hardware.interpolation import Grid
from essim.results.column import Row
from essim.simulate.plan import load_scenario
from essim.simulate.sweep import Simulator
from essim.step.ops import Op, decode_step
from essim.validate.compare import Comparison, compare
from essim.validate.measured_run import read_facts, read_measured
from reports.parity_svg import svg

DATA = ROOT / "reports" / "data"
REAL = {
    "h200": DATA / "h200-decode" / "decode.csv",
    "offgrid": DATA / "h200-offgrid" / "decode.csv",
}
README = " ".join((ROOT / "README.md").read_text().split())
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
            f"{100 * row['bias_frac']:+.2f} %",
            f"{100 * row['mape_frac']:.2f} %",
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
    """The table of the trials."""
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


@pytest.fixture
def bridged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tables be interpolated over their jumps."""
    monkeypatch.setattr(Grid, "_pieces", property(lambda grid: grid))


def errors_of(pairs: list[Row], mode: str) -> str:
    """Cells, bias, MAPE and worst error of a mode, as a table has them."""
    errors = [100 * pair["error_frac"] for pair in pairs if pair["mode"] == mode]
    shown = f"{mean(errors):+.2f} % | {mean(map(abs, errors)):.2f} %"
    return f"{len(errors)} | {shown} | {max(errors, key=abs):+.2f} %"


def test_the_errors_without_jumps(bridged: None) -> None:
    pairs, modes = compared("h200").pairs, ("gpu-target", "gpu-target-fused", "gpu_side-mid")
    lines = [f"`{mode}` | {errors_of(pairs, mode)}" for mode in (*modes, "gpu_side-mid-fused")]
    assert documented("Where tables jump") == lines


@pytest.fixture
def keys_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a layer's new key leave for the CPU when it is there, not with the next publish."""

    def step(*settings: Any) -> tuple[Op, ...]:
        ops = (op for op in decode_step(*settings) if op.stage != "publish_key")
        return tuple(
            replace(op, waits=(f"rope.{op.layer}",)) if op.kind == "key_d2h" else op for op in ops
        )

    monkeypatch.setattr("essim.simulate.replay.decode_step", step)


def test_the_errors_with_keys_that_leave_at_once(shipped: Comparison, keys_at_once: None) -> None:
    then, lines = compared("h200"), []
    for mode in ("cpu-in", "cpu-mid", "cpu-mix"):
        now = errors_of(shipped.pairs, mode).split(" | ", 1)[1]
        lines.append(f"`{mode}` | {errors_of(then.pairs, mode)} | {now}")
    assert documented("When keys leave") == lines
    words = " ".join(section("When keys leave").split())
    before, now = (result.coverage["inside"] for result in (then, shipped))
    assert f"{before} of 240 cells inside, now {now}." in words


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
        lines.append(f"`{op}` | {price_us:.2f} | {traced_us(mode, op) - stamp_us:.2f}")
    assert documented("Op by op") == lines
    assert f"less a stamp of {stamp_us:.2f} on each op" in " ".join(section("Op by op").split())


def pool_mapes(pairs: list[Row]) -> dict[int, float]:
    """The mean errors of modes with the CPU's pool, in percent, by batch."""
    pool = [pair for pair in pairs if pair["mode"].startswith("cpu")]
    return {
        batch: 100 * mean(abs(pair["error_frac"]) for pair in pool if pair["batch"] == batch)
        for batch in (1, 2, 4, 8, 16)
    }


def listed(mapes: dict[int, float]) -> str:
    """These errors in words."""
    texts = [f"{mape:.1f}" for mape in mapes.values()]
    return f"{', '.join(texts[:-1])} and {texts[-1]} %"


def test_the_errors_of_the_pool(shipped: Comparison) -> None:
    words = " ".join(section("What is missing, and why").split())
    mapes = pool_mapes(shipped.pairs)
    assert f"{listed(mapes)} on average" in words
    told = f"{mapes[1]:.0f} % on average at batch 1, {mapes[2]:.0f} % at 2, {mapes[4]:.0f} % at 4, "
    assert f"off by {told}{mapes[8]:.0f} % at 8 and {mapes[16]:.0f} % at 16" in README
    pool = [pair for pair in shipped.pairs if pair["mode"].startswith("cpu")]
    large = [100 * pair["error_frac"] for pair in pool if pair["batch"] >= 8]
    assert len(large) == 42
    assert f"at batch 8 and 16 errors are from {min(large):.0f} to +{max(large):.0f} %" in words
    small = [pair for pair in pool if pair["batch"] <= 2]
    own = [100 * pair["error_frac"] for pair in small if pair["mode"] == "cpu-target"]
    assert f"is {min(own):.0f} to {max(own):.0f} % too slow at batch 1 and 2" in words
    early = [100 * pair["error_frac"] for pair in small if pair["mode"] != "cpu-target"]
    said = f"{mean(map(abs, early)):.1f} % off on average over {len(early)} cells"
    text = " ".join(section("The H200").split())
    assert f"{said}, {max(map(abs, early)):.1f} % at worst" in text
    said = f"right to {mean(map(abs, early)):.1f} % on average, {max(map(abs, early)):.1f} %"
    assert said in README


def test_what_is_said_of_all_modes_without_the_pool(shipped: Comparison) -> None:
    own = [pair for pair in shipped.pairs if not pair["mode"].startswith("cpu")]
    errors = [100 * abs(pair["error_frac"]) for pair in own]
    words = " ".join(section("The H200").split())
    said = f"all {len(own)} cells it is {mean(errors):.2f} % on average and {max(errors):.2f} %"
    assert said in words
    modes = {pair["mode"] for pair in own}
    mapes = [mean(100 * abs(p["error_frac"]) for p in own if p["mode"] == m) for m in modes]
    told = f"{min(mapes):.1f} to {max(mapes):.1f} % on average, {max(errors):.1f} % at worst"
    assert f"Without a CPU router predictions are right to {told}" in README
    apart = [abs(p["gain_error_points"]) for p in own if p["mode"] not in ("dense", "gpu-target")]
    assert f"in {sum(points > 1 for points in apart)} of {len(apart)} cells" in words


def off_grid_errors() -> dict[str, str]:
    return {p["mode"]: f"{100 * p['error_frac']:+.1f} %" for p in compared("offgrid").pairs}


def test_the_point_off_the_grid(request: pytest.FixtureRequest) -> None:
    found, now = compared("offgrid"), off_grid_errors()
    request.getfixturevalue("keys_at_once")
    then, lines = off_grid_errors(), []
    for pair in found.pairs:
        mode, steps = pair["mode"], [pair["predicted_s"], pair["measured_s"]]
        cells = [f"`{mode}`", *(f"{1e3 * step:.3f}" for step in steps), now[mode], then[mode]]
        lines.append(" | ".join([*cells, "yes" if inside([pair]) else "no"]))
    assert sorted(documented("Off the grid")) == sorted(lines)
    errors = {pair["mode"]: 100 * pair["error_frac"] for pair in found.pairs}
    pool = [errors.pop(mode) for mode in list(errors) if mode.startswith("cpu")]
    other = [abs(error) for error in errors.values()]
    told = f"right to {mean(other):.1f} % on average, {max(other):.1f} % at worst; with it"
    words = " ".join(section("Off the grid").split())
    assert f"{told} {-max(pool):.0f} to {-min(pool):.0f} % too fast" in words


def by_router(pairs: list[Row]):
    """How many measured cells are inside: with the CPU's pool, and without."""
    for with_pool in (True, False):
        own = [pair for pair in pairs if pair["mode"].startswith("cpu") == with_pool]
        yield {"inside": inside(own), "cells": len(own)}
