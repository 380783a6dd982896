"""The deployments that a plan tries: every combination of what it varies."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from essim.serving.deployment import Deployment
from essim.serving.keys import Asked


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
