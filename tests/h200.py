"""The shipped profile h200-sxm as tests of the docs read it: its tables, its chains, its floor."""

from __future__ import annotations

import csv
from pathlib import Path

from essim.hardware.profile import find_profile, load_profile

ROOT = Path(__file__).parent.parent
H200 = load_profile(find_profile("h200-sxm", ROOT))


def table_us(table: str, *point: float, **keys: object) -> float:
    """Return a table's mean at a point, in microseconds."""
    grid = H200.tables[table].grid(keys)
    assert grid is not None, table
    return float(grid.at(point).mean_s) * 1e6


def floor_us(byte_count: float, launches: int) -> float:
    """Return bytes over the copy bandwidth plus launches, in microseconds."""
    gpu = H200.spec.gpu
    return 1e6 * (byte_count / gpu.bandwidth_bytes_per_s.value + launches * gpu.launch_s.value)


def chain(name: str) -> list[dict[str, str]]:
    """Return the rows of one CSV of the profile's ``chain`` folder."""
    with (ROOT / "hardware_profiles" / "h200-sxm" / "chain" / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def doc_table(text: str, heading: str) -> dict[str, list[str]]:
    """Return the cells of the first table after a heading, by their first cell."""
    rows: dict[str, list[str]] = {}
    for line in text.split(f"## {heading}\n")[1].split("\n## ")[0].splitlines():
        if line.startswith("| ") and "---" not in line:
            label, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            rows[label] = cells
    return rows
