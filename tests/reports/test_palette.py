"""Colours: apart for readers without red, green or blue cones, and visible on both papers."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from essim.methods.routing import PRESETS
from reports import palette
from reports.palette import METHODS, ROUTINGS, look

PAPERS = {"light": "#ffffff", "dark": "#15181d"}
# Machado, Oliveira, Fernandes 2009, severity 1, for linear RGB.
SIGHTS = {
    "all cones": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
# What the shipped scenarios and runs show together.
TOGETHER = [
    *("dense", "gpu-target", "gpu-target-fused", "cpu-target", "cpu-in", "cpu-mid", "cpu-mix"),
    *("gpu_side-mid", "gpu_side-mid-fused"),
]
BUSY = (palette.GEMM, palette.ATTENTION, palette.SMALL)


def linear(colour: str) -> NDArray[np.float64]:
    """Return a colour as linear RGB."""
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def oklab(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return linear RGB as Oklab (Ottosson 2020), where distances are about equally visible."""
    cones = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    axes = np.array(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    )
    return axes @ np.cbrt(cones @ np.clip(rgb, 0, 1))


def apart(one: str, other: str, sight: str) -> float:
    seen = [oklab(SIGHTS[sight] @ linear(colour)) for colour in (one, other)]
    return float(np.linalg.norm(seen[0] - seen[1]))


def nearest(colours: list[str], sight: str) -> float:
    return min(apart(a, b, sight) for i, a in enumerate(colours) for b in colours[:i])


def test_the_distances_are_those_of_oklab() -> None:
    assert oklab(linear("#ffffff")) == pytest.approx([1, 0, 0], abs=1e-4)
    assert oklab(linear("#ff0000")) == pytest.approx([0.628, 0.2249, 0.1258], abs=1e-4)
    # Without the cones for green, an orange and a green are nearly one colour.
    mistaken = ("#d55e00", "#7a8f00")
    assert apart(*mistaken, "deuteranopia") < 0.5 * apart(*mistaken, "all cones")


def test_every_routing_has_a_look_of_its_own() -> None:
    assert set(PRESETS) | {"none", "dense"} == set(ROUTINGS)
    own = [look(name) for name in PRESETS] + [look("dense")]
    assert len({each.colour for each in own}) == len({each.symbol for each in own}) == 13
    assert look("none") == look("dense")
    assert look("npu-mid") not in own


@pytest.mark.parametrize("sight", SIGHTS)
def test_routings_are_apart_from_each_other_and_from_exposed_time(sight: str) -> None:
    exposed = palette.EXPOSED
    assert nearest([*(look(name).colour for name in TOGETHER), exposed], sight) > 0.075
    assert nearest([*(look(name).colour for name in [*PRESETS, "dense"]), exposed], sight) > 0.06
    assert nearest([each.colour for each in METHODS.values()], sight) > 0.1
    assert min(apart(exposed, busy, sight) for busy in BUSY) > 0.1


@pytest.mark.parametrize("paper", PAPERS.values(), ids=PAPERS)
def test_every_colour_is_seen_on_both_papers(paper: str) -> None:
    def luminance(colour: str) -> float:
        return float(linear(colour) @ np.array([0.2126, 0.7152, 0.0722]))

    own = {each.colour for each in [*ROUTINGS.values(), *METHODS.values(), look("a"), look("b")]}
    others = (palette.EXPOSED, palette.NEUTRAL, palette.ACCENT, *BUSY)
    for colour in (*own, *others):
        low, high = sorted((luminance(colour), luminance(paper)))
        assert (high + 0.05) / (low + 0.05) > 3, colour
