"""Reading rows back: from a CSV or Parquet file, or from a folder of them as from one file."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from essim.errors import AbsentError, InputError
from essim.results.column import Row
from essim.results.columns import COLUMNS, ResultRow
from essim.text.yaml import read_text

SWEEP_HINT = "Give a .csv or .parquet that essim sweep --out wrote, or a folder of them"
# What every result has: the point, and whether it runs.
_REQUIRED = ("name", "model", "hardware", "selector", "routing", "batch", "status")


@dataclass(frozen=True)
class Sheet:
    """A file's cells as they lie there.

    Attributes
    ----------
    rows
        Each with its line, None in Parquet.
    manifest
        What the file came from; empty where it does not say.
    kinds
        What cells are already, by column: finite numbers or text. Of CSV nothing is known.
    """

    file: Path
    header: Sequence[str]
    rows: Sequence[tuple[int | None, Mapping[str, Any]]]
    manifest: Mapping[str, Any]
    kinds: Mapping[str, type] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """Rows of results, read back.

    Attributes
    ----------
    rows
        With all columns, None where a file has none; and one for each swept key in `settings`.
    manifests
        What each file came from, in the order of the files.
    """

    rows: list[ResultRow]
    manifests: list[Mapping[str, Any]]


def read_result(path: Path, columns: Sequence[str] = tuple(COLUMNS)) -> Result:
    """Read what ``essim sweep --out`` wrote: one file, or every one in a folder, by name.

    Parameters
    ----------
    columns
        Those to read, besides what tells points apart; the others are None.

    Raises
    ------
    InputError
        With file, line and column of what is wrong.
    """
    kinds = {name: COLUMNS[name].kind for name in (*_REQUIRED, *columns)}
    required = {name: kinds.pop(name) for name in _REQUIRED}
    sheets = read_sheets(path, SWEEP_HINT, [*required, *kinds])
    rows: list[dict[str, Any]] = []
    swept: dict[str, None] = {}
    empty: dict[str, Any] = dict.fromkeys(COLUMNS)
    for sheet in sheets:
        for line, row in typed(sheet, required, SWEEP_HINT, kinds):
            settings = _settings(row.get("settings"), sheet.file, line)
            swept |= dict.fromkeys(settings)
            rows.append(settings | empty | row)
    if swept:
        rows = [dict.fromkeys(swept) | row for row in rows]
    return Result(cast(list[ResultRow], rows), [sheet.manifest for sheet in sheets])


def _settings(text: object, file: Path, line: int | None) -> dict[str, Any]:
    """Return swept keys that have no column, with their values."""
    try:
        found = json.loads(str(text)) if text else {}
    except json.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        message = f"{text!r} is not a JSON object"
        raise InputError(message, SWEEP_HINT, file=file, line=line, key="settings")
    return found


def files_of(path: Path) -> list[Path]:
    """Return the file, or the .csv and .parquet files of a folder by name, hidden ones left out.

    Raises
    ------
    InputError
        If a folder has none, or one name with both endings.
    """
    if not path.is_dir():
        return [path]
    files = sorted(
        file
        for file in path.iterdir()
        if file.suffix in (".csv", ".parquet") and file.name[0] not in "._"
    )
    if not files:
        raise InputError("there is no .csv or .parquet in this folder", file=path)
    for file in files:
        if file.suffix == ".csv" and file.with_suffix(".parquet") in files:
            message = f"{file.stem}.csv and {file.stem}.parquet would count twice"
            raise InputError(message, "Keep one", file=path)
    return files


def read_sheets(path: Path, hint: str, columns: Sequence[str] | None = None) -> list[Sheet]:
    """Read a file, or every one of a folder; of Parquet only some columns, if they are named.

    Raises
    ------
    InputError
        If something is no such file.
    """
    return [
        _parquet(file, hint, columns) if file.suffix == ".parquet" else _csv(file)
        for file in files_of(path)
    ]


def typed(
    sheet: Sheet,
    columns: Mapping[str, type],
    hint: str,
    optional: Mapping[str, type],
    *,
    above_zero: bool = False,
) -> Iterator[tuple[int | None, Row]]:
    """Yield (line, row) with the wanted columns, and the `optional` ones that are there.

    Raises
    ------
    InputError
        If a column is missing, or a cell is not of its column's kind.
    """
    for column in columns:
        if column not in sheet.header:
            raise InputError(f"there is no column {column!r}", hint, file=sheet.file)
    wanted = {**columns, **{key: kind for key, kind in optional.items() if key in sheet.header}}
    loose = {k: own for k, own in wanted.items() if above_zero or sheet.kinds.get(k) is not own}
    for line, row in sheet.rows:
        # How csv.DictReader shows cells that are too many, or missing; Parquet has no lines.
        if line is not None and (None in row or None in row.values()):
            message = f"a row without {len(sheet.header)} cells"
            raise InputError(message, hint, file=sheet.file, line=line)
        found: Row = {key: row[key] for key in wanted}
        for key, kind in loose.items():
            found[key] = _value(row[key], kind, above_zero)
            if found[key] is None and row[key] not in (None, ""):
                what = {int: "a count", float: "a finite number"}[kind]
                what += " above zero" if above_zero else ""
                message = f"{row[key]!r} is not {what}"
                raise InputError(message, file=sheet.file, line=line, key=key)
        yield line, found


def _value(cell: object, kind: type, above_zero: bool) -> str | int | float | None:
    """Return a cell as its column's kind, None where it is empty or of another."""
    if cell is None or cell == "":
        return None
    if kind is str:
        return str(cell)
    try:
        number = float(str(cell))
    except ValueError:
        return None
    if not math.isfinite(number) or (above_zero and number <= 0):
        return None
    if kind is float:
        return number
    return int(number) if number == math.floor(number) and number >= 0 else None


def _csv(file: Path) -> Sheet:
    reader = csv.DictReader(io.StringIO(read_text(file), newline=""))
    header = list(reader.fieldnames or ())
    rows: list[tuple[int | None, dict[str, Any]]] = []
    for row in reader:
        rows.append((reader.line_num, row))
    beside = Path(f"{file}.manifest.json")
    return Sheet(file, header, rows, read_json(beside) if beside.exists() else {})


def _parquet(file: Path, hint: str, columns: Sequence[str] | None) -> Sheet:
    try:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq
    except ImportError:
        raise AbsentError("Parquet needs pyarrow", "pip install pyarrow") from None
    try:
        schema = pq.read_schema(file)
        there = [name for name in columns or schema.names if name in schema.names]
        table = pq.read_table(file, columns=there, partitioning=None)
    except FileNotFoundError:
        raise InputError("does not exist", hint, file=file) from None
    except (pa.ArrowInvalid, OSError):
        raise InputError("is no Parquet file", hint, file=file) from None
    about = json.loads((schema.metadata or {}).get(b"essim", b"{}"))
    known = {pa.string(): str, pa.int64(): int, pa.float64(): float}
    for i, own in enumerate(table.schema):
        if own.type == pa.float64():
            finite = pc.if_else(pc.is_finite(table.column(i)), table.column(i), None)
            table = table.set_column(i, own.name, finite)
    kinds = {own.name: known[own.type] for own in table.schema if own.type in known}
    rows = [(None, row) for row in table.to_pylist()]
    return Sheet(file, table.column_names, rows, about, kinds)


def read_json(file: Path) -> dict[str, Any]:
    """Return a file's JSON object, or raise `InputError` saying why there is none."""
    try:
        content = json.loads(read_text(file))
    except json.JSONDecodeError as error:
        raise InputError("is not JSON", file=file, line=error.lineno) from None
    if not isinstance(content, dict):
        raise InputError("is not a JSON object", file=file)
    return content
