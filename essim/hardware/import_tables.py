"""A new profile with the tables that a public package has of a GPU."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from essim.errors import InputError
from essim.hardware.aiconfigurator import PublicTable, data_folder, newest, public_tables
from essim.hardware.from_another import base_profile, new_file, profile_yaml, reference_of, today
from essim.hardware.profile import table_file
from essim.hardware.spec import Gpu
from essim.model.shape import PRESETS, ModelShape
from essim.text.files import write_files
from essim.text.yaml import Document, nearest_hint, validate

LICENCE = "Apache-2.0, Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES"
# The package's name of a GPU, and the shipped profile of it.
PROFILES = {
    "a100_sxm": "a100-sxm-80gb",
    "b200_sxm": "b200",
    "h100_sxm": "h100-sxm",
    "h200_sxm": "h200-sxm",
    "l40s": "l40s",
}


def import_profile(
    system: str,
    name: str | None,
    base: str | None,
    framework: str,
    model: str,
    max_batch: int,
    folder: Path,
) -> tuple[Path, list[str]]:
    """Write a profile with a GPU's public tables; return its file and what was left out.

    Raises
    ------
    AbsentError
        If the package is not installed.
    InputError
        If GPU, framework, model or base are not known, or the name is taken.
    """
    of = _base(system, base, framework, model)
    name = name or f"{of}-{framework}"
    file, rest = new_file(name, folder), base_profile(of).data
    gpu = validate(Gpu, rest["gpu"], Document(file, rest["gpu"], {}))
    bandwidth = gpu.bandwidth_bytes_per_s.value
    found = list(public_tables(system, framework, PRESETS[model], max_batch, bandwidth))
    release = version("aiconfigurator-core")
    tables = {table.name: _spec(table, PRESETS[model], release) for table in found if table.times_s}
    spec = {
        "name": name,
        "description": f"{gpu.name}: tables that aiconfigurator-core {release} has of {framework}, "
        f"the rest that of {of}.",
        "reference": reference_of(rest, of),
        **{part: rest[part] for part in ("gpu", "cpu", "d2h", "h2d")},
        "provenance": _provenance(release, f"{system} --framework {framework} --model {model}"),
        "tables": tables,
    }
    files = {table_file(file, table.name): table.csv() for table in found if table.times_s}
    write_files({**files, file: profile_yaml(spec, file)})
    return file, [_said(table) for table in found]


def _base(system: str, base: str | None, framework: str, model: str) -> str:
    """Return the profile that has the rest, or raise `InputError` for a name that is not known."""
    if model not in PRESETS:
        hint = nearest_hint(model, sorted(PRESETS))
        raise InputError(f"no model {model!r}", hint, key="--model")
    newest(data_folder(), system, framework, "gemm")
    of = base or PROFILES.get(system)
    if of is None:
        hint = "Make one with essim profile new, from its specification"
        raise InputError(f"no shipped profile is of {system}", hint, key="--from")
    return of


def _provenance(release: str, arguments: str) -> dict[str, str]:
    """Return what a profile says of the package."""
    return {
        "package": f"aiconfigurator-core {release}",
        "licence": LICENCE,
        "imported": today(),
        "command": f"essim profile import aiconfigurator {arguments}",
    }


def _spec(table: PublicTable, model: ModelShape, release: str) -> dict[str, Any]:
    """Return what a profile says of a table."""
    heads = {"heads": [model.heads], "kv_heads": [model.kv_heads], "head_dim": [model.head_dim]}
    return {
        **(
            {"keys": [*table.keys]} if table.keys else {"holds_for": heads | {"kv_dtype": ["bf16"]}}
        ),
        "axes": [*table.axes],
        "source": "published",
        "reference": f"aiconfigurator-core {release}, {table.file}: {table.whose}",
        "date": today(),
        **({"note": table.note} if table.note else {}),
    }


def _said(table: PublicTable) -> str:
    """Return how many points a table has, and what was left out, for people."""
    left = ", ".join(f"{why} ({count})" for why, count in table.dropped.items() if count)
    return f"{table.name}: {len(table.times_s)} points" + (f"; left out: {left}" if left else "")
