"""A scenario as a notebook gives it: a name, a path or a dict, and keys that are set."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from essim.engines import ENGINES, pick_engine
from essim.errors import InputError
from essim.results.columns import COLUMNS, ResultRow, columns_of
from essim.simulate.plan import points_of
from essim.simulate.rows import manifest
from essim.simulate.scenario import Scenario, find_scenario
from essim.simulate.sweep import Simulator
from essim.text.yaml import Document, read_yaml

# What errors and provenance call the file of a scenario that is a dict.
DICT = Path("<dict>")
ScenarioLike = str | os.PathLike[str] | Mapping[str, Any]


@dataclass(frozen=True)
class Asked:
    """A scenario's base point and points, what simulates them, and what it was made from."""

    document: Document
    base: Scenario
    points: list[Scenario]
    simulator: Simulator
    overrides: list[tuple[str, Any]]

    def provenance(self, points: list[Scenario], rows: list[ResultRow]) -> dict[str, Any]:
        """Return what rows of some of its points came from, and the units of their columns."""
        profiles = [self.simulator.profile(n) for n in dict.fromkeys(p.hardware for p in points)]
        file = self.document.file
        data = json.dumps(self.document.data, default=str)
        settings = [f"{key}={json.dumps(value, default=str)}" for key, value in self.overrides]
        return manifest(file, settings, profiles, data.encode() if file == DICT else None) | {
            "engine": pick_engine(self.simulator.engine)[0],
            "seed": self.simulator.seed,
            "strict": self.simulator.strict,
            "units": {
                name: COLUMNS[name].unit
                for name in columns_of(rows)
                if name in COLUMNS and COLUMNS[name].unit
            },
        }


def ask(
    scenario: ScenarioLike,
    changes: Mapping[str, Any],
    engine: str = "auto",
    strict: bool = False,
    seed: int = 0,
) -> Asked:
    """Read a scenario with some of its keys set."""
    if engine not in ("auto", *ENGINES):
        raise InputError(f"no engine {engine!r}", f"auto, {', '.join(ENGINES)}", key="engine")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"must be a whole number from 0 on (got {seed!r})", key="seed")
    if isinstance(scenario, Mapping):
        document = Document(DICT, _plain(scenario), {}, setter="set")
    elif isinstance(scenario, str | os.PathLike):
        read = read_yaml(find_scenario(os.fspath(scenario)))
        document = Document(read.file, read.data, read.lines, setter="set")
    else:
        message = f"must be a name, a path or a dict (got {scenario!r:.60})"
        raise InputError(message, key="scenario")
    overrides = [(str(key), _plain(value)) for key, value in changes.items()]
    base, points = points_of(document, overrides)
    simulator = Simulator(engine=engine, strict=strict, seed=seed)
    return Asked(document, base, points, simulator, overrides)


def _plain(value: Any) -> Any:
    """Return what a YAML file could hold: lists of tuples and arrays, numbers of numpy's."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple | range):
        return [_plain(entry) for entry in value]
    return value
