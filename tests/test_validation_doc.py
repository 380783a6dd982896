"""The errors that docs/validation.md claims, computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from essim.compare import Comparison, compare
from essim.realrun import read_facts, read_measured
from essim.results import Row
from essim.scenario import load_scenario
from essim.simulate import Simulator
from reports.parity_svg import svg

ROOT = Path(__file__).parent.parent
REAL = ROOT / "reports" / "data" / "h200-decode" / "decode.csv"
MIX = "128"  # cpu-mix was timed with one budget


def compared(hardware: str) -> Comparison:
    """Lay what a profile's tables predict beside the shipped run."""
    file = ROOT / "scenarios" / "validate-h200.yaml"
    _, points = load_scenario(file, [f"hardware={hardware}"])
    return compare(Simulator(ROOT).rows(points), read_measured(REAL), read_facts(REAL))


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
    return compared("h200-sxm")


def documented(heading: str) -> list[str]:
    lines = [line.strip("| ") for line in section(heading).splitlines() if line.startswith("| ")]
    return lines[1:]


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


def test_the_errors_of_the_other_machines_tables() -> None:
    result = compared("h200-sxm-b")
    lines = [line for line in error_lines(result) if line.startswith(("`gpu", "`dense"))]
    assert sorted(documented("Tables of the run's own machine")) == sorted(lines)
    words = " ".join(section("Tables of the run's own machine").split())
    for mode, text in (("gpu-target-fused", "by 87 to 129 us"), ("dense", "by 135 to 207")):
        short = [
            1e6 * (pair["measured_high_s"] - pair["predicted_s"])
            for pair in result.pairs
            if pair["mode"] == mode and pair["attended_tokens"] in (128, pair["context_tokens"])
        ]
        # The first dense cell was measured in the other state.
        late = [us for us in short if us > 0]
        assert text == f"by {min(late):.0f} to {max(late):.0f}{' us' * text.endswith('us')}"
        assert text in words


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
