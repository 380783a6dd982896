"""Columns of tables beside the result: of pairs, their errors, the ops of a step, Figure 2."""

from __future__ import annotations

from dataclasses import replace

from essim.results.column import (
    ERROR,
    FINE_SECONDS,
    GAIN,
    GB_PER_S,
    GIBIBYTES,
    MICROSECONDS,
    MILLION_MACS,
    MILLISECONDS,
    NATS,
    POINTS,
    RATE,
    SHARE,
    SIGNED_MICROSECONDS,
    SIGNED_POINTS,
    SIZE_OF_ERROR,
    TERAFLOP,
    TOKENS,
    Column,
    Format,
)
from essim.results.columns import COLUMNS


def _named(columns: dict[str, Column]) -> dict[str, Column]:
    return {name: replace(column, name=name) for name, column in columns.items()}


_NUMBER = Format(brief=",.4g")
_CONTEXT = Column("tokens", "context", "", TOKENS, "context", kind=int)

# A cell that was both predicted and measured.
PAIR_COLUMNS = _named(
    {
        "mode": Column("", "mode", kind=str),
        "batch": COLUMNS["batch"],
        "context_tokens": _CONTEXT,
        "attended_tokens": COLUMNS["attended_tokens"],
        "steps": Column("", "steps", kind=int),
        "repetitions": Column("", "repetitions", kind=int),
        "predicted_s": Column("s", "predicted", "", MILLISECONDS, "predicted"),
        "predicted_low_s": Column("s", "predicted low", "", MILLISECONDS, "predicted low"),
        "predicted_high_s": Column("s", "predicted high", "", MILLISECONDS, "predicted high"),
        "measured_s": Column("s", "measured", "", MILLISECONDS, "measured"),
        "measured_low_s": Column("s", "measured low", "", MILLISECONDS),
        "measured_high_s": Column("s", "measured high", "", MILLISECONDS),
        "unsteady": Column("", "measurement unsteady", short="unsteady", kind=bool),
        "error_frac": Column("1", "error", "", ERROR, "error"),
        "predicted_gain_frac": Column("1", "predicted gain", "", GAIN),
        "measured_gain_frac": Column("1", "measured gain", "", GAIN),
        "gain_error_points": Column("percentage points", "gains apart", "", SIGNED_POINTS),
    }
)

# What the pairs' errors come to, and what figures show of a pair besides.
_SUMMARY_COLUMNS = _named(
    {
        "bias_frac": Column("1", "bias", "", ERROR, "bias"),
        "mape_frac": Column("1", "MAPE", "", SIZE_OF_ERROR, "MAPE"),
        "worst_frac": Column("1", "worst", "", ERROR, "worst"),
        "spread_frac": Column("1", "repetitions apart", "", SHARE, "apart"),
        "unsteady_cells": Column("", "unsteady cells", short="unsteady", kind=int),
        "worst_cell": Column("", "at", short="at", kind=str),
        "mean_points": Column("percentage points", "apart on average", "", POINTS, "points apart"),
        "worst_points": Column("percentage points", "worst", "", SIGNED_POINTS, "worst"),
        "predicted_tokens_per_s": Column("tokens/s", "predicted throughput", "", RATE),
        "measured_tokens_per_s": Column("tokens/s", "measured throughput", "", RATE),
        "measured_low_gain_frac": Column("1", "measured low gain", "", GAIN),
        "measured_high_gain_frac": Column("1", "measured high gain", "", GAIN),
    }
)

# The ops of a step, and op kinds of a predicted step beside a traced one.
_OP_COLUMNS = _named(
    {
        "time_s": Column("s", "time", "", MICROSECONDS, "time"),
        "share_frac": Column("1", "share", "", SHARE, "share"),
        "start_s": Column("s", "start", "", MICROSECONDS),
        "end_s": Column("s", "end", "", MICROSECONDS),
        "wait_s": Column("s", "wait", "", MICROSECONDS),
        "exposed_s": Column("s", "exposed", "", MICROSECONDS),
        "window_start_s": Column("s", "window start", "", MICROSECONDS),
        "window_s": Column("s", "window", "", MICROSECONDS),
        "predicted_ops": Column("", "predicted ops", short="ops", kind=int),
        "real_ops": Column("", "real ops", short="real ops", kind=int),
        "achieved_bytes_per_s": Column("bytes/s", "achieved", "", GB_PER_S, "GB/s"),
        "real_s": Column("s", "real", "", MICROSECONDS, "real"),
        "error_s": Column("s", "error", "", SIGNED_MICROSECONDS, "apart"),
    }
)

# What follows from a result: its frontier, its break-even, its differences from another.
_USE_COLUMNS = _named(
    {
        "user_tokens_per_s": Column("tokens/s", "for each user", "", RATE, "tokens/s/user"),
        "gpu_tokens_per_s": Column("tokens/s", "for each GPU", "", RATE, "tokens/s/GPU"),
        "point": Column("", "point", short="point", kind=str),
        "pays": Column("", "early routing pays at", short="early routing pays at", kind=str),
        "change_frac": Column("1", "change", "", GAIN, "change"),
    }
)

FIGURE2_COLUMNS = _named(
    {
        "method": Column("", "method", kind=str),
        "compression": Column("", "compression c = S/B", short="c = S/B", kind=int),
        "budget_tokens": COLUMNS["budget_tokens"],
        "context_tokens": _CONTEXT,
        "page_tokens": COLUMNS["page_tokens"],
        "channels": COLUMNS["channels"],
        "route_macs": Column("MAC", "routing", "", MILLION_MACS, "routing MACs"),
        "sparse_macs": Column("MAC", "sparse attention", "", MILLION_MACS, "attention MACs"),
        "route_share_frac": Column("1", "routing share", "", SHARE, "routing share"),
    }
)

_PER_S = Format("/s", 1.0, 3, brief=",.3g")

# What a deployment does with its traffic, and a plan's deployments.
_SERVING_COLUMNS = _named(
    {
        "requests_per_s": Column("1/s", "requests a second", "", _PER_S, "requests/s"),
        "queue_growth_per_s": Column("1/s", "queue grows by", "", _PER_S, "queue grows"),
        "goodput_per_s": Column("1/s", "goodput in requests", "", _PER_S, "goodput/s"),
        "rate_per_gpu": Column("1/s", "requests a second a GPU", "", _PER_S, "requests/s a GPU"),
        "kept_frac": Column("1", "keep the promise", "", SHARE, "kept"),
        "tokens_per_s_per_gpu": Column("tokens/s", "output a GPU", "", RATE, "tokens/s a GPU"),
        "tokens_per_s_per_user": Column("tokens/s", "output a user", "", RATE, "tokens/s a user"),
        "busy_frac": Column("1", "GPUs busy", "", SHARE, "busy"),
        "exposed_routing_frac": Column("1", "routing exposed", "", SHARE, "exposed routing"),
        "peak_kv_frac": Column("1", "KV pool at its fullest", "", SHARE, "KV peak"),
        "kv_frac": Column("1", "KV pool in use", "", SHARE),
    }
)

# A published number beside its prediction, and a system's errors.
PUBLISHED_COLUMNS = _named(
    {
        "system": Column("", "system"),
        "setting": Column("", "setting"),
        "metric": Column("", "metric"),
        "unit": Column("", "unit"),
        "published": Column("", "published", shown=_NUMBER),
        "predicted": Column("", "predicted", shown=_NUMBER),
        "error_frac": Column("1", "error", "", ERROR, "error"),
        "kind": Column("", "kind"),
        "fitted": Column("", "parameters fitted", short="fitted"),
        "fitted_on": Column("", "on numbers", short="on"),
        "held_out": Column("", "held out", short="held out"),
        "note": Column("", "note"),
    }
)
SYSTEM_COLUMNS = _named(
    {
        "numbers": Column("", "numbers"),
        "checked": Column("", "checked"),
        "median_error_frac": Column("1", "median error", "", SIZE_OF_ERROR),
        "worst_error_frac": Column("1", "worst error", "", SIZE_OF_ERROR),
    }
)

# A selector of a sweep on one scale with the others.
RANK_COLUMNS = _named(
    {
        "selector": COLUMNS["selector"],
        "class": Column("", "class"),
        "routing": COLUMNS["routing"],
        "tpot_s": COLUMNS["tpot_s"],
        "decode_tokens_per_s": COLUMNS["decode_tokens_per_s"],
        "decode_tokens_per_s_p5": COLUMNS["decode_tokens_per_s_p5"],
        "decode_tokens_per_s_p95": COLUMNS["decode_tokens_per_s_p95"],
        "gain_over_dense_frac": COLUMNS["gain_over_dense_frac"],
        "beats_dense_from_tokens": Column(
            "tokens", "beats dense from", "", TOKENS, "beats dense from"
        ),
        "surely_from_tokens": Column("tokens", "surely from", "", TOKENS, "surely from"),
        "early_routing": Column("", "early routing", short="early"),
        "early_gain_frac": Column("1", "early gain", "", GAIN, "adds"),
        "early_gain_frac_p5": Column("1", "early gain p5", "", GAIN, "p5"),
        "early_gain_frac_p95": Column("1", "early gain p95", "", GAIN, "p95"),
        "measured_frac": COLUMNS["measured_frac"],
    }
)

_KNOWN = (
    RANK_COLUMNS
    | PUBLISHED_COLUMNS
    | SYSTEM_COLUMNS
    | PAIR_COLUMNS
    | _SERVING_COLUMNS
    | _SUMMARY_COLUMNS
    | _OP_COLUMNS
    | _USE_COLUMNS
    | FIGURE2_COLUMNS
    | COLUMNS
)

# What a name ends in -> its unit, and how it is shown.
_ENDINGS = {
    "_tokens_per_s": ("tokens/s", RATE),
    "_bytes_per_s": ("bytes/s", GB_PER_S),
    "_bytes": ("bytes", GIBIBYTES),
    "_flops": ("FLOP", TERAFLOP),
    "_tokens": ("tokens", TOKENS),
    "_frac": ("1", SHARE),
    "_nats": ("nats", NATS),
    "_s": ("s", FINE_SECONDS),
}


def column(name: str) -> Column:
    """Return a column of any table; of one that is in none, what its name's ending says."""
    if name in _KNOWN:
        return _KNOWN[name]
    for ending, (unit, shown) in _ENDINGS.items():
        if name.endswith(ending):
            heading = name.removesuffix(ending).replace("_", " ")
            return Column(unit, heading, shown=shown, name=name)
    return Column("", name.replace("_", " "), name=name)


def columns_markdown() -> str:
    """Return the table of result columns for docs/scenario.md."""
    lines = ["| column | unit | meaning |", "|---|---|---|"]
    lines += [f"| `{c.name}` | {c.unit} | {c.meaning} |" for c in COLUMNS.values()]
    return "\n".join(lines) + "\n"
