"""Predicted decode steps beside measured ones: pairs, errors, gains. Nothing is fitted."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from essim.errors import InputError
from essim.methods.routing import mix_text
from essim.results.column import Row
from essim.results.columns import ResultRow
from essim.results.tables import PAIR_COLUMNS
from essim.validate.binomial import clopper_pearson
from essim.validate.measured_run import CELL

BASELINE = "gpu-target"
DENSE = "dense"
# Settings of a predicted row -> what provenance calls them. A prediction of another is dropped.
_SETTINGS = {
    "model": "model",
    "projection_rank": "rank",
    "channels": "channels",
    "cpu_threads": "router_threads",
}

_SIDES = ("predicted", "measured")

Key = tuple[str, int, int, int]


@dataclass(frozen=True)
class Comparison:
    """Cells that were both predicted and measured, and what their differences come to.

    Attributes
    ----------
    pairs
        Rows of `PAIR_COLUMNS`; an error is predicted over measured, less one.
    dropped
        ``side``, the cell, ``reason``: what has no partner.
    errors
        ``cells unsteady_cells bias_frac mape_frac worst_frac worst_cell`` of all, by mode, by mode
        and budget.
    gains
        ``gains mean_points worst_points worst_cell``: how far gains over `BASELINE` are apart, of
        the same groups.
    coverage
        ``inside cells share_frac low_frac high_frac``; None where nothing has an interval.
    """

    pairs: list[Row]
    dropped: list[Row]
    errors: list[Row]
    gains: list[Row]
    coverage: Row | None

    @property
    def worst_frac(self) -> float:
        """The largest error, without its sign."""
        return abs(_float(self.errors[0], "worst_frac"))

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain rows."""
        return asdict(self)


def compare(
    predicted: Sequence[ResultRow], measured: Sequence[Row], facts: Mapping[str, Any]
) -> Comparison:
    """Pair predicted rows with measured cells and say how far they are apart.

    Parameters
    ----------
    predicted
        Rows of a sweep, as `essim.validate.measured_run.read_predicted` returns them.
    measured
        One row a cell, as `essim.validate.measured_run.read_measured` returns them.
    facts
        Settings of the real run, under the names of its provenance.

    Raises
    ------
    InputError
        If two predictions are of one cell, or nothing is both predicted and measured.
    """
    cells = {_cell(row): row for row in measured}
    found, dropped = _partners(predicted, cells, facts)
    if not found:
        why = "; ".join(dict.fromkeys(str(row["reason"]) for row in dropped))
        of = " and ".join(f"{_span(dropped, side)} {side}" for side in ("predicted", "measured"))
        raise InputError(f"no cell is both predicted and measured: {of}", f"Reasons: {why}")
    pairs = [_pair(found[key], cells[key]) for key in cells if key in found]
    _add_gains(pairs)
    return Comparison(pairs, dropped, _errors(pairs), _gains(pairs), _coverage(pairs))


def _partners(
    predicted: Sequence[ResultRow], cells: Mapping[Key, Row], facts: Mapping[str, Any]
) -> tuple[dict[Key, ResultRow], list[Row]]:
    """Return the prediction of each cell that has one, and what has no partner and why."""
    found: dict[Key, ResultRow] = {}
    reasons: dict[Key, str] = {}
    dropped: list[Row] = []
    for row in predicted:
        key = _predicted_cell(row)
        reason = _why_dropped(row, cells.get(key), facts)
        if not reason and key in found:
            hint = "Compare one model and one machine at a time"
            raise InputError(f"two predictions of {cell_text(_as_row(key))}", hint)
        if reason:
            reasons.setdefault(key, reason)
            dropped.append({"side": "predicted", **_as_row(key), "reason": reason})
        else:
            found[key] = row
    for key in cells:
        if key not in found:
            reason = reasons.get(key, "not predicted")
            dropped.append({"side": "measured", **_as_row(key), "reason": reason})
    return found, dropped


def _span(dropped: Sequence[Row], side: str) -> str:
    """Return the batches and contexts of one side's cells in words."""
    own = [row for row in dropped if row["side"] == side]
    batches, contexts = (
        ", ".join(map(str, sorted({int(str(row[key])) for row in own})))
        for key in ("batch", "context_tokens")
    )
    return f"batch {batches} at context {contexts}" if own else "nothing is"


def cell_text(row: Row) -> str:
    """Return a cell in words."""
    attended = "" if row["mode"] == DENSE else f", {row['attended_tokens']} attended"
    return f"{row['mode']}, batch {row['batch']}, context {row['context_tokens']}{attended}"


def _cell(row: Row) -> Key:
    mode, *numbers = (row[name] for name in CELL)
    batch, context, attended = (int(str(number)) for number in numbers)
    return str(mode), batch, context, attended


def _as_row(key: Key) -> Row:
    return dict(zip(CELL, key, strict=True))


def _predicted_cell(row: ResultRow) -> Key:
    """Return the cell that a predicted row is of; zero attended tokens where it has no pages."""
    batch, tokens = row["batch"], row["input_tokens"]
    if row["selector"] == DENSE:
        return DENSE, batch, tokens, tokens
    kept = min(tokens, row["prompt_budget"] or tokens)
    attended = (row["page_tokens"] or 0) * (row["top_pages"] or 0)
    return row["routing"], batch, kept, attended


def _why_dropped(row: ResultRow, cell: Row | None, facts: Mapping[str, Any]) -> str:
    """Return why a predicted row has no partner, or an empty string."""
    if row["step_s"] is None:
        return row["reason"] or "no decode step"
    if row["selector"] not in (DENSE, "rocketkv"):
        return f"a real run has no selector {row['selector']}"
    own = {**row, "kv_block_tokens": _block_tokens(row)}
    for name, value in _measured_settings(cell, facts).items():
        if None not in (value, own.get(name)) and value != own[name]:
            return f"{name} is {own[name]}, measured with {value}"
    if cell is None:
        return "not measured"
    steps = row["output_tokens"] - 1
    return "" if steps == cell["steps"] else f"{steps} steps predicted, {cell['steps']} measured"


def _measured_settings(cell: Row | None, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a cell was measured with, by the columns of a sweep; None is not known."""
    selector, mix = facts.get("selector") or {}, facts.get("mix")
    dtype = cell and cell.get("dtype")
    return {
        **{own: facts.get(theirs) for own, theirs in _SETTINGS.items()},
        **{name: selector.get(name) for name in ("page_tokens", "summary_dtype")},
        "kv_block_tokens": _block_tokens(selector),
        **dict.fromkeys(("weight_dtype", "kv_dtype"), dtype),
        "mix": mix and mix_text(mix),
    }


def _block_tokens(settings: Mapping[str, Any]) -> int | None:
    """Return the tokens of a KV block, a page where it is left open; None where nothing is said."""
    if "kv_block_tokens" not in settings:
        return None
    block: int | None = settings["kv_block_tokens"] or settings["page_tokens"]
    return block


def _pair(row: ResultRow, cell: Row) -> Row:
    pair: Row = {name: cell.get(name) for name in PAIR_COLUMNS}
    pair["predicted_s"] = row["step_s"]
    slow, fast = row.get("decode_tokens_per_s_p5"), row.get("decode_tokens_per_s_p95")
    pair["predicted_low_s"] = None if fast is None else row["batch"] / fast
    pair["predicted_high_s"] = None if slow is None else row["batch"] / slow
    pair["error_frac"] = _float(pair, "predicted_s") / _float(pair, "measured_s") - 1
    return pair


def _add_gains(pairs: Sequence[Row]) -> None:
    """Give routed pairs, in place, their gains over the baseline of the same setting."""
    base = {_cell(pair)[1:]: pair for pair in pairs if pair["mode"] == BASELINE}
    for pair in pairs:
        other = base.get(_cell(pair)[1:])
        if other is None or other is pair:
            continue
        gains = [_float(other, f"{side}_s") / _float(pair, f"{side}_s") - 1 for side in _SIDES]
        pair |= {f"{side}_gain_frac": gain for side, gain in zip(_SIDES, gains, strict=True)}
        pair["gain_error_points"] = 100 * (gains[0] - gains[1])


def _groups(pairs: Sequence[Row]) -> Iterator[tuple[Row, list[Row]]]:
    """Yield all pairs, then those of each mode, and of each of its budgets where it has several."""
    yield {"mode": "all", "attended_tokens": None}, list(pairs)
    for mode in dict.fromkeys(str(pair["mode"]) for pair in pairs):
        own = [pair for pair in pairs if pair["mode"] == mode]
        yield {"mode": mode, "attended_tokens": None}, own
        budgets = dict.fromkeys(_int(pair, "attended_tokens") for pair in own)
        for budget in budgets if mode != DENSE and len(budgets) > 1 else ():
            name: Row = {"mode": mode, "attended_tokens": budget}
            yield name, [pair for pair in own if pair["attended_tokens"] == budget]


def _errors(pairs: Sequence[Row]) -> list[Row]:
    rows = []
    for group, own in _groups(pairs):
        errors = [_float(pair, "error_frac") for pair in own]
        worst = max(own, key=lambda pair: abs(_float(pair, "error_frac")))
        unsteady = sum(bool(pair["unsteady"]) for pair in own)
        summary: Row = {"cells": len(own), "unsteady_cells": unsteady}
        summary |= {"bias_frac": statistics.fmean(errors)}
        summary |= {"mape_frac": statistics.fmean(map(abs, errors))}
        summary |= {"worst_frac": worst["error_frac"], "worst_cell": cell_text(worst)}
        rows.append(group | summary)
    return rows


def _gains(pairs: Sequence[Row]) -> list[Row]:
    known = [pair for pair in pairs if pair["gain_error_points"] is not None]
    rows: list[Row] = []
    for group, own in _groups(known) if known else ():
        worst = max(own, key=lambda pair: abs(_float(pair, "gain_error_points")))
        apart = [abs(_float(pair, "gain_error_points")) for pair in own]
        summary: Row = {"gains": len(own), "mean_points": statistics.fmean(apart)}
        summary |= {"worst_points": worst["gain_error_points"], "worst_cell": cell_text(worst)}
        rows.append(group | summary)
    return rows


def _coverage(pairs: Sequence[Row]) -> Row | None:
    """Return how many measured steps are inside their interval, and how sure that share is."""
    ends = ("predicted_low_s", "predicted_high_s")
    known = [pair for pair in pairs if all(pair[end] is not None for end in ends)]
    if not known:
        return None
    inside = sum(_float(p, ends[0]) <= _float(p, "measured_s") <= _float(p, ends[1]) for p in known)
    low, high = clopper_pearson(inside, len(known))
    share = inside / len(known)
    return {
        "inside": inside,
        "cells": len(known),
        "share_frac": share,
        "low_frac": low,
        "high_frac": high,
    }


def _int(row: Row, key: str) -> int:
    return int(row[key] or 0)


def _float(row: Row, key: str) -> float:
    return float(row[key] or 0.0)
