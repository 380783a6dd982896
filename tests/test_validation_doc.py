"""The errors that docs/validation.md claims, computed."""

from __future__ import annotations

from pathlib import Path

from essim.compare import compare
from essim.realrun import read_facts, read_measured
from essim.scenario import load_scenario
from essim.simulate import Simulator

ROOT = Path(__file__).parent.parent
REAL = ROOT / "reports" / "data" / "h200-decode" / "decode.csv"
MIX = "128"  # cpu-mix was timed with one budget


def test_the_documented_errors_are_those_of_the_shipped_run() -> None:
    _, points = load_scenario(ROOT / "scenarios" / "validate-h200.yaml")
    result = compare(Simulator(ROOT).rows(points), read_measured(REAL), read_facts(REAL))
    gains = {(row["mode"], row["attended_tokens"]): row for row in result.gains}
    several = {row["mode"] for row in result.errors if row["attended_tokens"] is not None}
    expected = set()
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
        expected.add(" | ".join([name, attended, str(row["cells"]), *percents, *apart]))
    text = (ROOT / "docs" / "validation.md").read_text().split("## The H200\n")[1]
    lines = [line.strip("| ") for line in text.splitlines() if line.startswith("| ")]
    assert set(lines[1:]) == expected
    assert len(lines) == 1 + 17
    assert len(result.pairs) == 240
    words = " ".join(text.split())
    for share in [result.coverage, *by_router(result.pairs)]:
        assert f"{share['inside']} of {share['cells']}" in words
    low, high = (f"{result.coverage[end]:.0%}".rstrip("%") for end in ("low_frac", "high_frac"))
    assert f"95 % sure: {low} to {high} %" in words


def by_router(pairs):
    """How many measured cells are inside: with the CPU pool; without, at 128 tokens or dense."""
    pool = [pair for pair in pairs if pair["mode"].startswith("cpu")]
    measured = [
        pair
        for pair in pairs
        if pair not in pool and (pair["mode"] == "dense" or pair["attended_tokens"] == 128)
    ]
    for own in (pool, measured):
        ends = [(p["predicted_low_s"], p["measured_s"], p["predicted_high_s"]) for p in own]
        yield {"inside": sum(low <= real <= high for low, real, high in ends), "cells": len(own)}
