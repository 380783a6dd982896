"""What a point, its bytes and its profiles put into a result."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from essim.hardware.profile import HardwareProfile
from essim.methods.routing import Routing, mix_text
from essim.methods.selectors import Selector
from essim.results.columns import COLUMNS, ResultRow
from essim.results.files import versions
from essim.simulate.memory import Memory
from essim.simulate.scenario import Scenario
from essim.step.kinds import Case


def empty_row(point: Scenario, need: Memory, max_batch: int) -> ResultRow:
    """Return a row with a point's fields and bytes, and no times yet."""
    selector, load, routing = point.resolved_selector(), point.workload, point.routing
    final = selector.kept_prompt_tokens(load.input_tokens) + load.output_tokens - 1
    at_the_end = np.array([final], dtype=np.int64)
    mean_read = float(Case(point.model, selector, routing).mean_read_tokens(at_the_end)[0])
    # As asked for, and what that was resolved to.
    settings = point.selector.model_dump() | selector.model_dump(exclude_none=True)
    row: dict[str, Any] = {key: settings.get(key) for key in COLUMNS}
    known: ResultRow = {
        "name": point.name,
        "model": point.model.name,
        "hardware": point.hardware,
        "selector": selector.kind,
        "routing": routing.name if selector.query_conditioned else "none",
        "batch": load.batch,
        "input_tokens": load.input_tokens,
        "output_tokens": load.output_tokens,
        "weight_dtype": point.model.weight_dtype,
        "kv_dtype": point.model.kv_dtype,
        "tp": point.model.tp,
        "baseline": point.compare.baseline,
        "attended_tokens": int(selector.attended_tokens(at_the_end)[0]),
        "mean_read_tokens": mean_read,
        "read_ratio": final / mean_read if mean_read else None,
        "status": "ok",
        "reason": "",
        "assumes": _assumes(selector, routing),
        "kv_bytes": need.kv_bytes,
        "kv_peak_bytes": need.kv_peak_bytes,
        "summary_gpu_bytes": need.summary_gpu_bytes,
        "summary_cpu_bytes": need.summary_cpu_bytes,
        "max_batch": max_batch,
    }
    routed = _routing(point, selector) if selector.query_conditioned else {}
    return cast(ResultRow, row | known | routed)


def _assumes(selector: Selector, routing: Routing) -> str | None:
    """Return what a method takes for granted, and what it loses by an early query."""
    lost = f"routed early it loses {selector.early_loses}" if selector.early_loses else ""
    said = [selector.assumes(), lost if routing.early else ""]
    return "; ".join(filter(None, said)) or None


def _routing(point: Scenario, selector: Selector) -> ResultRow:
    """Return the columns that say how a point routes."""
    routing, model = point.routing, point.model
    on_cpu, mixed = routing.where == "cpu", routing.anchor == "mix"
    return {
        "where": routing.where,
        "anchor": routing.anchor,
        "mix": mix_text(routing.anchors(model.layers)) if mixed else None,
        "kernel": None if on_cpu else routing.kernel,
        "projection_rank": routing.projection_rank if routing.early else None,
        "channels": selector.channels(routing.channels, model.head_dim),
        "cpu_threads": routing.cpu_threads if on_cpu else None,
    }


def add_swept(base: Scenario, points: Sequence[Scenario], rows: Sequence[ResultRow]) -> None:
    """Give rows, in place, the swept keys that have no column: each by its name, and `settings`."""
    keys = [key for key in base.sweep if key.split(".")[-1] not in COLUMNS]
    for point, row in zip(points, rows, strict=True) if keys else ():
        settings = {key: _at(point, key) for key in keys}
        # These columns the table of results does not have.
        cast(dict[str, Any], row).update(settings)
        row["settings"] = json.dumps(settings)


def settings_of(base: Scenario, point: Scenario) -> str | None:
    """Return a point's `settings`: JSON of the swept keys that have no column."""
    keys = [key for key in base.sweep if key.split(".")[-1] not in COLUMNS]
    return json.dumps({key: _at(point, key) for key in keys}) if keys else None


def _at(point: Scenario, key: str) -> str | int | float | None:
    """Return what a point has under a dotted key."""
    value: Any = point.model_dump()
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value if isinstance(value, str | int | float | None) else str(value)


def manifest(
    scenario_file: Path,
    overrides: Sequence[str],
    profiles: Sequence[HardwareProfile],
    content: bytes | None = None,
) -> dict[str, Any]:
    """Return what a result came from: versions, commit, digests of scenario and profiles.

    `content` is the scenario's text where it is no file.
    """
    content = scenario_file.read_bytes() if content is None else content
    return versions() | {
        "scenario": {
            "file": scenario_file.name,
            "sha256": hashlib.sha256(content).hexdigest(),
            "text": content.decode(errors="replace"),
            "set": list(overrides),
        },
        "profiles": {
            profile.spec.name: {
                "provisional": profile.spec.provisional,
                "sha256": profile.digest,
            }
            for profile in profiles
        },
    }
