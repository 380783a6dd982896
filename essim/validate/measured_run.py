"""What a real run and its prediction left on disk: cells, settings, traces."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any, cast

from essim.errors import InputError
from essim.results.column import Row
from essim.results.columns import COLUMNS, ResultRow
from essim.results.reading import SWEEP_HINT, read_json, read_sheets, typed

# Columns of a sweep that a comparison needs.
PREDICTED = (
    *("model", "hardware", "selector", "routing", "status", "reason"),
    *("projection_rank", "channels", "cpu_threads", "prompt_budget"),
    *("page_tokens", "top_pages", "batch", "input_tokens", "output_tokens", "step_s"),
)
# Rates that bound nine tenths of what a prediction may come out at.
INTERVAL = ("decode_tokens_per_s_p5", "decode_tokens_per_s_p95")
# Columns that a sweep may lack.
_MAYBE_PREDICTED = (
    *("mix", "weight_dtype", "kv_dtype", "summary_dtype", "kv_block_tokens"),
    *INTERVAL,
)
_MEASURED: dict[str, type] = {
    **dict.fromkeys(("kind", "mode"), str),
    **dict.fromkeys(("batch", "context_tokens", "attended_tokens", "repetition", "calls"), int),
    "mean_s": float,
}
# Repetitions of a cell, or steps of one, that are further apart make its measurement unsteady.
UNSTEADY_FRAC = 0.10
_RUN_HINT = "Give the decode.csv of a real run"


def read_predicted(path: Path) -> list[ResultRow]:
    """Return the rows of sweeps: the columns of `PREDICTED`, and those they may lack where there.

    Parameters
    ----------
    path
        A sweep's result, or a folder of them.

    Raises
    ------
    InputError
        If a file is not a sweep's result.
    """
    needed = {name: COLUMNS[name].kind for name in PREDICTED}
    maybe = {name: COLUMNS[name].kind for name in _MAYBE_PREDICTED}
    return [
        cast(ResultRow, row)
        for sheet in read_sheets(path, SWEEP_HINT, [*needed, *maybe])
        for _, row in typed(sheet, needed, SWEEP_HINT, maybe, above_zero=True)
    ]


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
    (sheet,) = read_sheets(file, _RUN_HINT)
    maybe = {"dtype": str, "unstable": str}
    for line, row in typed(sheet, _MEASURED, _RUN_HINT, maybe, above_zero=True):
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
