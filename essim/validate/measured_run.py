"""What a real run and its prediction left on disk: cells, settings, traces."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from essim.errors import AbsentError, InputError
from essim.results.column import Row
from essim.results.columns import ResultRow
from essim.text.yaml import read_text

# Columns of a sweep that a comparison needs, and what they hold.
PREDICTED: dict[str, type] = {
    **dict.fromkeys(("model", "hardware", "selector", "routing", "status", "reason"), str),
    **dict.fromkeys(("projection_rank", "channels", "cpu_threads", "prompt_budget"), int),
    **dict.fromkeys(("page_tokens", "top_pages", "batch", "input_tokens", "output_tokens"), int),
    "step_s": float,
}
# Rates that bound nine tenths of what a prediction may come out at.
INTERVAL = ("decode_tokens_per_s_p5", "decode_tokens_per_s_p95")
# Columns that a sweep may lack.
_MAYBE_PREDICTED: dict[str, type] = {
    **dict.fromkeys(("mix", "weight_dtype", "kv_dtype", "summary_dtype"), str),
    "kv_block_tokens": int,
    **dict.fromkeys(INTERVAL, float),
}
_MEASURED: dict[str, type] = {
    **dict.fromkeys(("kind", "mode"), str),
    **dict.fromkeys(("batch", "context_tokens", "attended_tokens", "repetition", "calls"), int),
    "mean_s": float,
}
# Repetitions of a cell, or steps of one, that are further apart make its measurement unsteady.
UNSTEADY_FRAC = 0.10
_SWEEP_HINT = "Give a .csv or .parquet that essim sweep --out wrote"
_RUN_HINT = "Give the decode.csv of a real run"


def read_predicted(file: Path) -> list[ResultRow]:
    """Return the rows of a sweep: the columns of `PREDICTED`, and those it may lack where there.

    Raises
    ------
    InputError
        If the file is not a sweep's result.
    """
    rows = _rows(file, PREDICTED, _SWEEP_HINT, _MAYBE_PREDICTED)
    return [cast(ResultRow, row) for _, row in rows]


def read_measured(file: Path) -> list[Row]:
    """Return one row a cell of a real run: ``measured_s`` is the mean of its repetitions.

    ``measured_low_s`` and ``measured_high_s`` are the least and the largest of them, and
    ``spread_frac`` how far these are apart; ``unsteady`` is whether that is more than
    `UNSTEADY_FRAC`, or a repetition was flagged ``unstable``; ``dtype`` is that of weights and
    cache, None where the file does not say.

    Raises
    ------
    InputError
        If the file is not a real run's, or repetitions of a cell timed different numbers of steps.
    """
    cells: dict[tuple[object, ...], list[float]] = {}
    first: dict[tuple[object, ...], Row] = {}
    unstable: set[tuple[object, ...]] = set()
    for line, row in _rows(file, _MEASURED, _RUN_HINT, {"dtype": str, "unstable": str}):
        absent = next((key for key in _MEASURED if row[key] is None), None)
        if absent:
            raise InputError("the cell is empty", _RUN_HINT, file=file, line=line, key=absent)
        if row["kind"] != "decode_step":
            raise InputError(f"{row['kind']} is no decode step", _RUN_HINT, file=file, line=line)
        key = tuple(row[name] for name in CELL)
        if first.setdefault(key, row)["calls"] != row["calls"]:
            message = f"{row['calls']} steps, another repetition has {first[key]['calls']}"
            raise InputError(message, "Measure it again", file=file, line=line)
        cells.setdefault(key, []).append(float(row["mean_s"] or 0.0))
        if row.get("unstable") == "True":
            unstable.add(key)
    return [
        {
            **dict(zip(CELL, (str(key[0]), *map(int, map(str, key[1:]))), strict=True)),
            "dtype": first[key].get("dtype"),
            "steps": int(str(first[key]["calls"])),
            "repetitions": len(times),
            "measured_s": statistics.fmean(times),
            "measured_low_s": min(times),
            "measured_high_s": max(times),
            "spread_frac": max(times) / min(times) - 1,
            "unsteady": key in unstable or max(times) / min(times) - 1 > UNSTEADY_FRAC,
        }
        for key, times in cells.items()
    ]


CELL = ("mode", "batch", "context_tokens", "attended_tokens")


def read_facts(measured: Path) -> dict[str, Any]:
    """Return what ``provenance.json`` beside a real run says, nothing where there is none."""
    file = measured.parent / "provenance.json"
    return read_json(file) if file.exists() else {}


def read_trace(file: Path) -> tuple[dict[str, Any], list[Row]]:
    """Return a trace's ``otherData`` and its ops: ``name kind stream start_s end_s``.

    Raises
    ------
    InputError
        If the file is no trace of a step.
    """
    trace = read_json(file)
    try:
        events = trace["traceEvents"]
        streams = {e["tid"]: str(e["args"]["name"]) for e in events if e["ph"] == "M"}
        ops: list[Row] = [
            {
                "name": str(e["name"]),
                "kind": str(e["cat"]),
                "stream": streams[e["tid"]],
                "start_s": e["ts"] * 1e-6,
                "end_s": (e["ts"] + e["dur"]) * 1e-6,
            }
            for e in events
            if e["ph"] == "X"
        ]
    except (KeyError, TypeError):
        raise InputError(
            "is no trace of a step", "essim run --trace writes one", file=file
        ) from None
    return dict(trace.get("otherData") or {}), ops


def read_json(file: Path) -> dict[str, Any]:
    """Return a file's JSON object, or raise `InputError` saying why there is none."""
    try:
        content = json.loads(read_text(file))
    except json.JSONDecodeError as error:
        raise InputError("is not JSON", file=file, line=error.lineno) from None
    if not isinstance(content, dict):
        raise InputError("is not a JSON object", file=file)
    return content


def _rows(
    file: Path, columns: Mapping[str, type], hint: str, optional: Mapping[str, type]
) -> Iterator[tuple[int | None, Row]]:
    """Yield (line, row) with the wanted columns, and the `optional` ones that are there."""
    header, cells = _parquet(file, hint) if file.suffix == ".parquet" else _csv(file, hint)
    for column in columns:
        if column not in header:
            raise InputError(f"there is no column {column!r}", hint, file=file)
    wanted = {**columns, **{key: kind for key, kind in optional.items() if key in header}}
    for line, row in cells:
        yield line, {key: _value(row[key], kind, file, line, key) for key, kind in wanted.items()}


def _csv(file: Path, hint: str) -> tuple[list[str], list[tuple[int | None, dict[str, Any]]]]:
    reader = csv.DictReader(io.StringIO(read_text(file), newline=""))
    header = list(reader.fieldnames or ())
    rows: list[tuple[int | None, dict[str, Any]]] = []
    for row in reader:
        if None in row or None in row.values():
            message = f"a row without {len(header)} cells"
            raise InputError(message, hint, file=file, line=reader.line_num)
        rows.append((reader.line_num, row))
    return header, rows


def _parquet(file: Path, hint: str) -> tuple[list[str], list[tuple[int | None, dict[str, Any]]]]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise AbsentError("Parquet needs pyarrow", "pip install pyarrow") from None
    try:
        table = pq.read_table(file)
    except FileNotFoundError:
        raise InputError("does not exist", hint, file=file) from None
    except (pa.ArrowInvalid, OSError):
        raise InputError("is no Parquet file", hint, file=file) from None
    return table.column_names, [(None, row) for row in table.to_pylist()]


def _value(
    cell: object, kind: type, file: Path, line: int | None, key: str
) -> str | int | float | None:
    """Return a cell as its column's type, None where it is empty."""
    if cell is None or cell == "":
        return None
    if kind is str:
        return str(cell)
    try:
        number = float(str(cell))
    except ValueError:
        number = math.nan
    whole = kind is float or number == math.floor(number) if math.isfinite(number) else False
    if not whole or number <= 0:
        what = "a count" if kind is int else "a finite number"
        raise InputError(f"{cell!r} is not {what} above zero", file=file, line=line, key=key)
    return int(number) if kind is int else number
