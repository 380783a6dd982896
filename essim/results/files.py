"""The files that rows are written to: CSV or Parquet, with a manifest beside it."""

from __future__ import annotations

import csv
import io
import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from essim.errors import AbsentError
from essim.results.column import AnyRow, Column
from essim.results.columns import COLUMNS
from essim.text.files import check_ending


def result_files(
    rows: Sequence[AnyRow],
    file: Path,
    manifest: Mapping[str, Any],
    columns: Mapping[str, Column] = COLUMNS,
) -> dict[Path, bytes]:
    """Return rows as CSV or Parquet, by the file's ending, and ``FILE.manifest.json``.

    `columns` are the table's, in order; by default those of a result. A file has all of them,
    each of its own type, whatever the rows hold; Parquet has units, meanings and the manifest
    (key ``essim``) in its metadata. Neither file holds a time stamp: the same input gives the same
    bytes.

    Raises
    ------
    InputError
        If the ending is neither ``.csv`` nor ``.parquet``.
    """
    check_ending(file)
    units = {name: column.unit for name, column in columns.items()}
    text = json.dumps({"rows": len(rows), "columns": units, **manifest}, indent=2) + "\n"
    if file.suffix == ".csv":
        content = _csv_bytes(rows, columns)
    else:
        content = _parquet_bytes(rows, columns, text)
    return {file: content, Path(f"{file}.manifest.json"): text.encode()}


def finite(value: object) -> object:
    """Return `value`, or None where it is a float that is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _csv_bytes(rows: Sequence[AnyRow], columns: Mapping[str, Column]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(columns), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: finite(row.get(key)) for key in columns})
    return text.getvalue().encode()


def _parquet_bytes(rows: Sequence[AnyRow], columns: Mapping[str, Column], manifest: str) -> bytes:
    cells = {key: [finite(row.get(key)) for row in rows] for key in columns}
    return columns_bytes(cells, manifest, columns)


def columns_bytes(
    cells: Mapping[str, Any], manifest: str, columns: Mapping[str, Column] = COLUMNS
) -> bytes:
    """Return columns of cells, lists or arrays, as a Parquet file; NaN and None are empty."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise AbsentError("Parquet needs pyarrow", "pip install pyarrow") from None
    types = {float: pa.float64(), int: pa.int64(), str: pa.string(), bool: pa.bool_()}
    fields = [
        pa.field(
            name,
            types[column.kind],
            metadata={"unit": column.unit, "description": column.meaning or column.heading},
        )
        for name, column in columns.items()
    ]
    arrays = [pa.array(cells[field.name], field.type, from_pandas=True) for field in fields]
    table = pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata={"essim": manifest}))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def versions() -> dict[str, Any]:
    """Return the versions that made a result: essim and its commit, Python, libraries."""
    return {
        "essim": _installed("essim"),
        "commit": _commit(),
        "python": ".".join(map(str, sys.version_info[:3])),
        "libraries": {name: version(name) for name in ("numpy", "pydantic", "simpy")},
    }


def _installed(name: str) -> str | None:
    """Return a distribution's version, None where essim runs from a checkout alone."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the git commit of a checkout, None where essim is installed without one."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
