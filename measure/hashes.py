"""Hashes of the kernels as they are now, to tell tables of older ones. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from essim.hardware import HardwareProfile
from measure.kernels.build import source_hash
from measure.kernels.router_library import router_hash

KERNELS = Path(__file__).parent / "kernels"


def flow_hash() -> str:
    """Return the source hash of the torch main flow."""
    return source_hash([KERNELS / "torch_flow.py"])


def stale_tables(profile: HardwareProfile) -> list[str]:
    """Return the tables that were measured with kernels that have changed since."""
    current = {flow_hash(), router_hash()}
    return [name for name, table in profile.tables.items() if table.source_hashes - current]
