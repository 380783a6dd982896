"""The deployments that a plan tries, and prices that are off: what it varies."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from essim.serving.deployment import Deployment
from essim.serving.keys import Asked
from essim.serving.load import Chunk
from essim.serving.prices import StepPrices


@dataclass
class Candidate:
    """One deployment of the grid.

    Attributes
    ----------
    name
        What it differs in.
    group
        Routing, selector and hardware: candidates of one group compete.
    """

    name: str
    asked: Asked
    deployment: Deployment
    group: tuple[str, str, str]
    rate: float = 0.0
    reason: str = ""


def changes_of(asked: Asked) -> list[list[tuple[str, Any]]]:
    """Return the grid of changes: the varied keys, and the selectors with a source."""
    axes = [[(key, value) for value in values] for key, values in asked.plan.vary.items()]
    if asked.plan.quality:
        axes.append([("selector", entry.selector) for entry in asked.plan.quality])
    return [list(changes) for changes in itertools.product(*axes)]


def said_of(key: str, value: Any) -> str:
    """Return a change for people."""
    if isinstance(value, dict):
        value = " ".join(f"{k}={v}" for k, v in value.items())
    return f"{value}" if key in ("routing", "hardware") else f"{key.split('.')[-1]} {value}"


@dataclass(frozen=True)
class Scaled:
    """Prices of which every one is off alike."""

    prices: StepPrices
    millionths: int

    def decode_line(self, batch: int, mean: int, longest: int) -> tuple[int, int, int]:
        """Return a decode step's line, off by the factor."""
        first, growth, steps = self.prices.decode_line(batch, mean, longest)
        return first * self.millionths // 10**6, growth * self.millionths // 10**6, steps

    def chunk_step(self, batch: int, mean: int, longest: int, chunks: Sequence[Chunk]) -> int:
        """Return the time of a step with chunks, off by the factor."""
        return self.prices.chunk_step(batch, mean, longest, chunks) * self.millionths // 10**6
