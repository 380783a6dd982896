"""A predicted and a real trace of one step, side by side."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from essim.results.column import Row


def op_errors(predicted: Sequence[Row], real: Sequence[Row]) -> list[Row]:
    """Return each op kind's mean duration in both traces of a step; None where it is not shown."""
    by_kind: list[dict[str, list[float]]] = [{}, {}]
    for found, rows in zip(by_kind, (predicted, real), strict=True):
        for op in rows:
            taken_s = float(op["end_s"] or 0) - float(op["start_s"] or 0)
            found.setdefault(str(op["kind"]), []).append(taken_s)
    table: list[Row] = []
    for kind in dict.fromkeys((*by_kind[0], *by_kind[1])):
        mine, theirs = (found.get(kind, []) for found in by_kind)
        row: Row = {"kind": kind, "predicted_ops": len(mine), "real_ops": len(theirs)}
        predicted_s = statistics.fmean(mine) if mine else None
        real_s = statistics.fmean(theirs) if theirs else None
        row |= {"predicted_s": predicted_s, "real_s": real_s}
        row |= {"error_s": None, "error_frac": None}
        if predicted_s is not None and real_s:
            row |= {"error_s": predicted_s - real_s, "error_frac": predicted_s / real_s - 1}
        table.append(row)
    return table
