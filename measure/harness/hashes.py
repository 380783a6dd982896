"""Hashes of the kernels as they are now, by what their folders declare. Needs no torch.

``python -m measure.harness.hashes`` writes those of all tables for `essim.hardware.kernels`.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from essim.hardware.kernels import HASHES
from measure import kernels
from measure.kernels.build import code_hash

Machine = Literal["CPU", "GPU"]
_KERNELS = Path(kernels.__file__).parent
_DECODE = _KERNELS.parent / "decode"
# Tables of all kernels that a decode run on a GPU launches.
_GPU_DECODE = ("gpu_side_slowdown", "attn_prefill", "publish")


def table_sources(machine: Machine) -> dict[str, tuple[str, ...]]:
    """Return the files of each table of a machine, relative to the folder of all kernels."""
    found = pkgutil.walk_packages(kernels.__path__, f"{kernels.__name__}.")
    packages = [kernels, *(importlib.import_module(at.name) for at in found if at.ispkg)]
    declared = [getattr(package, f"{machine}_TABLES", {}) for package in packages]
    return {table: sources for tables in declared for table, sources in tables.items()}


def table_hash(table: str, machine: Machine) -> str:
    """Return the code hash of the kernels that a table of a machine is of."""
    return code_hash(_files(table_sources(machine)[table]))


def _files(sources: Iterable[str]) -> set[Path]:
    """Return the files that are named, or lie in a folder that is."""
    named = [_KERNELS / source for source in sources]
    return {file for at in named for file in (at.iterdir() if at.is_dir() else (at,))}


def decode_hash() -> str:
    """Return the code hash of the decode run without a GPU, its kernels included."""
    kernel_files = _files(s for sources in table_sources("CPU").values() for s in sources)
    return code_hash([*_decode_files("cpu"), *kernel_files])


def gpu_decode_hash() -> str:
    """Return the code hash of the decode run on a GPU, its kernels included."""
    gpu, cpu = table_sources("GPU"), table_sources("CPU")["cpu_route"]
    kernel_files = _files((*cpu, *(source for table in _GPU_DECODE for source in gpu[table])))
    return code_hash([*_decode_files("gpu"), *kernel_files])


def _decode_files(machine: str) -> list[Path]:
    """Return the loop's own files, and the one that drives the CPU router."""
    files = [file for at in (machine, "shared") for file in (_DECODE / at).glob("*.py")]
    own = [file for file in files if file.name != "__init__.py"]
    return [*own, _KERNELS / "cpu_router" / "router.py"]


def current_hashes() -> dict[str, list[str]]:
    """Return the hashes of each table: one a kind of machine that has the table."""
    found: dict[str, set[str]] = {}
    for machine in ("CPU", "GPU"):
        for table in table_sources(machine):
            found.setdefault(table, set()).add(table_hash(table, machine))
    return {table: sorted(hashes) for table, hashes in sorted(found.items())}


if __name__ == "__main__":
    HASHES.write_text(json.dumps(current_hashes(), indent=2) + "\n", encoding="utf-8")
