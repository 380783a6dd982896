"""Labels, units and number formats of result columns."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Row: TypeAlias = Mapping[str, object]
Rows: TypeAlias = Sequence[Row]

MISSING = "–"


def number(value: object) -> float | None:
    """Return `value` as a finite float, or None when it is not one."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    result = float(value)
    return result if math.isfinite(result) else None


@dataclass(frozen=True)
class Column:
    """How one result column is shown.

    Attributes
    ----------
    key : str
        Name in the rows.
    label : str
        Name for readers.
    unit : str
        Unit after scaling; empty for plain text and counts.
    scale : float
        Shown number divided by stored number.
    digits : int or None
        Decimals; None shows the number as it is.
    signed : bool
        Write a plus before positive numbers.
    """

    key: str
    label: str
    unit: str = ""
    scale: float = 1.0
    digits: int | None = None
    signed: bool = False

    @property
    def heading(self) -> str:
        """Label with its unit, as a table head or an axis title."""
        return f"{self.label}, {self.unit}" if self.unit else self.label

    def scaled(self, value: object) -> float | None:
        """Return the number in the shown unit, free of binary noise; None if there is none."""
        plain = number(value)
        return None if plain is None else round(plain * self.scale, 9)

    def text(self, value: object) -> str:
        """Return `value` as text without its unit."""
        if value is None or value == "":
            return MISSING
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            return str(value)
        shown = self.scaled(value)
        if shown is None:
            return MISSING
        sign = "+" if self.signed else ""
        if self.digits is not None:
            return f"{shown:{sign},.{self.digits}f}"
        return f"{int(shown):{sign},}" if shown == int(shown) else f"{shown:{sign},.6g}"

    def text_with_unit(self, value: object) -> str:
        """Return `value` as text with its unit."""
        text = self.text(value)
        return f"{text} {self.unit}" if self.unit and text != MISSING else text


_KNOWN = {
    known.key: known
    for known in (
        Column("input_tokens", "input length", "tokens"),
        Column("output_tokens", "output length", "tokens"),
        Column("decode_tokens_per_s", "decode throughput", "tokens/s", 1.0, 1),
        Column("output_tokens_per_s", "end-to-end throughput", "tokens/s", 1.0, 1),
        Column("decode_gain_frac", "decode gain", "%", 100.0, 2, signed=True),
        Column("output_gain_frac", "end-to-end gain", "%", 100.0, 2, signed=True),
        *(
            Column(f"{key}_p{p}", f"{label}, {p}th percentile", unit, scale, digits, signed=signed)
            for key, label, unit, scale, digits, signed in (
                ("decode_tokens_per_s", "decode throughput", "tokens/s", 1.0, 1, False),
                ("decode_gain_frac", "decode gain", "%", 100.0, 2, True),
            )
            for p in (5, 95)
        ),
        Column("gain_ceiling_frac", "largest possible decode gain", "%", 100.0, 2, signed=True),
        Column(
            "output_ceiling_frac", "largest possible end-to-end gain", "%", 100.0, 2, signed=True
        ),
        Column("gain_over_dense_frac", "decode gain over dense", "%", 100.0, 2, signed=True),
        Column(
            "dense_ceiling_frac", "largest possible gain over dense", "%", 100.0, 2, signed=True
        ),
        *(
            Column(f"{what}_s", what.replace("_", " "), "us", 1e6, 3)
            for what in ("time", "start", "end", "wait", "exposed", "window", "window_start")
        ),
        *(
            Column(f"{side}{end}_s", f"{side}{end}".replace("_", " "), "ms", 1e3, 3)
            for side in ("predicted", "measured")
            for end in ("", "_low", "_high")
        ),
        *(
            Column(f"{side}_tokens_per_s", f"{side} throughput", "tokens/s", 1.0, 1)
            for side in ("predicted", "measured")
        ),
        Column("real_s", "real", "us", 1e6, 3),
        Column("error_s", "error", "us", 1e6, 3, signed=True),
        *(
            Column(f"{key}_frac", label, "%", 100.0, 2, signed=key != "mape")
            for key, label in (
                *(("error", "error"), ("bias", "bias"), ("mape", "MAPE"), ("worst", "worst")),
                *(("predicted_gain", "predicted gain"), ("measured_gain", "measured gain")),
                ("measured_low_gain", "measured low gain"),
                ("measured_high_gain", "measured high gain"),
            )
        ),
        Column("mean_points", "apart on average", "points", 1.0, 2),
        Column("worst_points", "worst", "points", 1.0, 2, signed=True),
        Column("gain_error_points", "gains apart", "points", 1.0, 2, signed=True),
        Column("worst_cell", "at"),
        Column("prefill_s", "prefill", "s", 1.0, 3),
        Column("decode_s", "decode", "s", 1.0, 3),
        Column("step_s", "mean step", "ms", 1e3, 3),
        Column("tpot_s", "time per output token", "ms", 1e3, 3),
        Column("exposed_routing_s", "exposed routing per step", "us", 1e6, 1),
        Column("gpu_busy_frac", "GPU busy", "%", 100.0, 1),
        Column("cpu_busy_frac", "CPU busy", "%", 100.0, 1),
        Column("kv_bytes", "KV cache", "GiB", 2.0**-30, 3),
        Column("summary_gpu_bytes", "K-summary on the GPU", "GiB", 2.0**-30, 3),
        Column("summary_cpu_bytes", "K-summary on the CPU", "GiB", 2.0**-30, 3),
        Column("max_batch", "largest batch that fits"),
        Column("measured_frac", "priced from measurements", "%", 100.0, 1),
        Column("price_sources", "price sources"),
        Column("batch", "batch"),
        Column("compression", "compression c = S/B"),
        Column("route_macs", "routing", "million MACs", 1e-6, 3),
        Column("sparse_macs", "sparse attention", "million MACs", 1e-6, 3),
        Column("route_share_frac", "routing share", "%", 100.0, 2),
    )
}

_SUFFIXES = {
    "_tokens_per_s": ("tokens/s", 1.0, 1),
    "_bytes_per_s": ("GB/s", 1e-9, 1),
    "_bytes": ("GiB", 2.0**-30, 3),
    "_flops": ("TFLOP", 1e-12, 3),
    "_tokens": ("tokens", 1.0, None),
    "_frac": ("%", 100.0, 2),
    "_s": ("s", 1.0, 4),
}


def column(key: str) -> Column:
    """Return how column `key` is shown: a known one, else by the unit its name ends in."""
    if key in _KNOWN:
        return _KNOWN[key]
    for suffix, (unit, scale, digits) in _SUFFIXES.items():
        if key.endswith(suffix):
            return Column(key, key.removesuffix(suffix).replace("_", " "), unit, scale, digits)
    return Column(key, key.replace("_", " "))


def unique(rows: Rows, key: str) -> list[object]:
    """Return the distinct values of a column in order of first appearance, without None."""
    return list(dict.fromkeys(row[key] for row in rows if row.get(key) is not None))
