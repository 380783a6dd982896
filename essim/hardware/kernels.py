"""Which tables of a profile are of other kernels than those of this version."""

from __future__ import annotations

import json
from pathlib import Path

from essim.hardware.profile import HardwareProfile

HASHES = Path(__file__).with_name("kernels.json")
"""Hashes of the kernels of each table, written by ``python -m measure.harness.hashes``."""


def stale_tables(profile: HardwareProfile) -> list[str]:
    """Return the tables that were measured with kernels that have changed since."""
    known = json.loads(HASHES.read_text(encoding="utf-8"))
    made = {name: table.kernel_hash for name, table in profile.spec.tables.items()}
    return [name for name, its in made.items() if its and its not in known.get(name, ())]
