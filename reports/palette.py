"""How routings and selectors look: one colour and one marker each, the same on every page.

Every colour has a contrast of 3 with the papers of both themes. Routings stay apart for readers
without red, green or blue cones too (tests/reports/test_palette.py simulates them); the markers
tell apart what colours alone do not.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Look:
    """A colour, and plotly's name of a marker."""

    colour: str
    symbol: str


_DENSE = Look("#5d9382", "circle")
ROUTINGS = {
    "none": _DENSE,
    "dense": _DENSE,
    "gpu-target": Look("#e37509", "square"),
    "gpu-target-fused": Look("#5e7304", "diamond"),
    "cpu-target": Look("#c16bc9", "cross"),
    "cpu-in": Look("#26706c", "triangle-up"),
    "cpu-mid": Look("#3d93ff", "star"),
    "cpu-mix": Look("#594bff", "hexagon"),
    "gpu_side-mid": Look("#c9009c", "x"),
    "gpu_side-mid-fused": Look("#9c2dcd", "triangle-down"),
    "gpu_side-in": Look("#9361d8", "pentagon"),
    "gpu_side-in-fused": Look("#907152", "hourglass"),
    "gpu_side-mix": Look("#889b54", "bowtie"),
    "gpu_side-mix-fused": Look("#ff419e", "triangle-left"),
}
# The methods of Figure 2, which are drawn without a routing.
METHODS = {
    "Quest": Look("#0b9fcc", "circle"),
    "SparQ": Look("#d77e04", "square"),
    "Loki": Look("#9b5037", "diamond"),
    "HSA": Look("#7231ff", "cross"),
}
# A routing that somebody added: by its name alone, so that it is the same on every page, too.
_SPARE = (Look("#897466", "triangle-right"), Look("#9b9275", "star-diamond"))

# What the tool is about: time that routing adds to a step. No routing is red.
EXPOSED = "#e3172d"
# What is nobody's: lines of equality, ceilings, calibration points.
NEUTRAL = "#808080"
# Points that a page is about where no routing has them.
ACCENT = "#0b9fcc"
# Ops of a step besides routing: greys, so that exposed time is the one thing that stands out.
GEMM, ATTENTION, SMALL = "#66748a", "#4f8fa0", "#7f8da3"


def look(name: str) -> Look:
    """Return how a routing, or a method of Figure 2, looks."""
    return (ROUTINGS | METHODS).get(name) or _SPARE[sum(name.encode()) % len(_SPARE)]
