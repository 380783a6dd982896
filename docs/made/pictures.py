"""What a sweep says, the figure of the README, the rooms of the code."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path

from made.data import ROOT, compared, table

from essim.simulate.scenario import load_scenario
from essim.simulate.sweep import Simulator
from reports.parity_svg import svg
from reports.verdict import sweep_verdict


@cache
def _verdict() -> list[str]:
    _, points = load_scenario(ROOT / "scenarios" / "earlyselect-40k.yaml")
    simulator = Simulator(ROOT)
    return sweep_verdict(points, simulator.rows(points), lambda point: simulator.rows([point])[0])


def verdict() -> list[str]:
    """Three sentences of those that `make demo` prints."""
    starts = (
        "Against gpu-target, cpu-mid",
        "Against gpu-target-fused, cpu-mid",
        "Against gpu-target-fused, gpu_side-mid-fused",
    )
    lines = [line for line in _verdict() if line.startswith(starts)]
    assert len(lines) == len(starts)
    return ["```", *lines, "```"]


def rooms(package: str) -> list[str]:
    """A package's rooms: what the docstring of each folder says."""
    body = []
    for file in sorted((ROOT / package).rglob("__init__.py")):
        name = ".".join(file.parent.relative_to(ROOT).parts)
        if name != package:
            first = (importlib.import_module(name).__doc__ or "").splitlines()[0]
            body.append([f"`{'/'.join(name.split('.')[1:])}`", first])
    return table(("room", "holds"), body)


def files() -> dict[Path, str]:
    """Return whole files that are made: path -> text."""
    return {ROOT / "docs" / "parity.svg": svg(compared("h200").pairs)}
