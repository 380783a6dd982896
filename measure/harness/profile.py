"""Measured tables -> a hardware profile, with the held-out error of every table."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from essim.hardware.holdout import ratios
from essim.hardware.table import read_table
from essim.text.files import write_files
from measure.harness.campaign import Bench, result_files


def held_out_error(bench: Bench, folder: Path) -> dict[str, float | int] | None:
    """Return how far a table's predictions are off at its held-out points.

    Returns
    -------
    dict or None
        ``points``, and the median and worst absolute relative error of the mean time; None where
        nothing was held out.
    """
    file, heldout_file = result_files(folder, bench.table)
    if not bench.heldout:
        return None
    table = read_table(file, bench.table, bench.keys, bench.axes, bench.jumps)
    # A quicker run may have held out points that are in this table.
    wanted = {_place(bench, place) for place in bench.heldout}
    found = ratios(table, heldout_file, lambda row: _place(bench, row) in wanted)
    errors = [abs(1 / ratio - 1) for values in found.values() for ratio in values]
    return {
        "points": len(errors),
        "median_frac": round(float(np.median(errors)), 4),
        "worst_frac": round(float(max(errors)), 4),
    }


def _place(bench: Bench, at: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(str(at[axis]) for axis in bench.axes)


def read_rows(file: Path) -> list[dict[str, str]]:
    """Return the rows of a result file."""
    import csv

    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


def table_specs(benches: Sequence[Bench], folder: Path, date: str) -> dict[str, Any]:
    """Return the ``tables:`` of the profile's YAML."""
    specs: dict[str, Any] = {}
    for bench in benches:
        spec: dict[str, Any] = {"keys": list(bench.keys)} if bench.keys else {}
        spec["axes"] = list(bench.axes)
        if bench.jumps:
            spec["jumps"] = {axis: list(ticks) for axis, ticks in bench.jumps.items()}
        if bench.holds_for:
            spec["holds_for"] = {key: list(values) for key, values in bench.holds_for.items()}
        spec |= {"source": "measured", "reference": bench.reference, "date": date}
        spec["kernel_hash"] = bench.source_hash
        heldout = held_out_error(bench, folder)
        if heldout:
            spec["heldout"] = heldout
        specs[bench.table] = spec
    return specs


def number(value: str | int, date: str, reference: str, source: str = "measured") -> dict[str, Any]:
    """Return a sourced number of the profile."""
    return {"value": value, "source": source, "reference": reference, "date": date}


def provenance(name: str, facts: Mapping[str, object]) -> dict[str, object]:
    """Return facts of the machine, and the command that a profile comes from."""
    return {key: _scalar(value) for key, value in facts.items()} | {
        "command": f"essim measure --profile {name}"
    }


def _scalar(value: object) -> object:
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return value


def write_profile(file: Path, spec: Mapping[str, Any]) -> None:
    """Write a profile's YAML beside the folder of its tables."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 100
    text = io.StringIO()
    yaml.dump(dict(spec), text)
    write_files({file: text.getvalue().encode()})
