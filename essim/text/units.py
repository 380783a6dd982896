"""Quantities as people write them (``8 us``, ``55 GB/s``, ``80 GiB``) and the SI numbers inside."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from essim.errors import BadValueError

PS_PER_S = 1_000_000_000_000
GIB = 1 << 30

_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}

UNITS: dict[str, dict[str, float]] = {
    "seconds": {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9, "ps": 1e-12},
    "bytes": {f"{p}B": float(f) for p, f in (_DECIMAL | _BINARY).items()},
    "bytes/s": {f"{p}B/s": float(f) for p, f in (_DECIMAL | _BINARY).items()},
    "FLOP/s": {f"{p}FLOP/s": float(f) for p, f in _DECIMAL.items()},
    "Hz": {f"{p}Hz": float(f) for p, f in _DECIMAL.items()},
}
_EXAMPLE = {
    "seconds": "8 us",
    "bytes": "80 GiB",
    "bytes/s": "55 GB/s",
    "FLOP/s": "989 TFLOP/s",
    "Hz": "1980 MHz",
}
_LONGEST_SPAN = 65536
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([^\s\d.].*?)\s*")


def parse_quantity(text: object, dimension: str) -> float:
    """Return `text` as a plain SI number.

    Parameters
    ----------
    text
        A number with its unit, such as ``"8 us"``. GB is 1e9 bytes, GiB is 2**30.
    dimension
        A key of :data:`UNITS`.

    Raises
    ------
    BadValueError
        If there is no unit, the unit is unknown or belongs to another dimension.
    """
    hint = f"Write it with a unit, such as {_EXAMPLE[dimension]!r}"
    if not isinstance(text, str):
        raise BadValueError(f"{text!r} has no unit ({dimension} expected)", hint)
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise BadValueError(f"{text!r} is not a quantity in {dimension}", hint)
    number, unit = match.groups()
    if unit not in UNITS[dimension]:
        hint = f"One of {', '.join(UNITS[dimension])}"
        raise BadValueError(f"unknown unit {unit!r} for {dimension}", hint)
    return float(number) * UNITS[dimension][unit]


def _quantity(dimension: str) -> Any:
    return BeforeValidator(lambda text: parse_quantity(text, dimension), json_schema_input_type=str)


def format_si(value: float, unit: str) -> str:
    """Return a number for people with a decimal prefix: ``3.35 TB/s``."""
    prefixes = {"p": 1e-12, "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0}
    prefixes |= {prefix: float(factor) for prefix, factor in _DECIMAL.items() if prefix}
    fitting = [(factor, prefix) for prefix, factor in prefixes.items() if factor <= abs(value)]
    factor, prefix = max(fitting, default=(1.0, ""))
    return f"{value / factor:g} {prefix}{unit}"


def between(low: float, high: float, unit: str, what: str) -> AfterValidator:
    """Return a check that a number is one that `what` can have, else what unit was meant."""

    def check(value: float) -> float:
        if low <= value <= high:
            return value
        ends = f"{format_si(low, unit)} to {format_si(high, unit)}"
        scaled = (value * 1000.0**power for power in (-1, 1, -2, 2, -3, 3))
        meant = next((number for number in scaled if low <= number <= high), None)
        hint = "" if meant is None else f"Did you mean {format_si(meant, unit)}?"
        raise BadValueError(f"{format_si(value, unit)} is no {what} ({ends})", hint)

    return AfterValidator(check)


Seconds = Annotated[float, _quantity("seconds"), Field(ge=0, allow_inf_nan=False)]
Bytes = Annotated[float, _quantity("bytes"), Field(gt=0, allow_inf_nan=False)]
BytesPerSecond = Annotated[float, _quantity("bytes/s"), Field(gt=0, allow_inf_nan=False)]
FlopsPerSecond = Annotated[float, _quantity("FLOP/s"), Field(gt=0, allow_inf_nan=False)]
Hertz = Annotated[float, _quantity("Hz"), Field(gt=0, allow_inf_nan=False)]


def _spelled_out(values: list[int | str]) -> list[int | str]:
    """Return settings with every span of whole numbers, such as ``32..64``, spelled out."""
    found: list[int | str] = []
    for value in values:
        if ".." not in str(value):
            found.append(value)
            continue
        ends = re.fullmatch(r"(\d+)\.\.(\d+)", str(value))
        if ends is None or not int(ends[1]) < int(ends[2]) < int(ends[1]) + _LONGEST_SPAN:
            hint = "Write whole numbers, the smaller one first, such as 32..64"
            raise BadValueError(f"{value!r} is no span of 2 to {_LONGEST_SPAN} numbers", hint)
        found += range(int(ends[1]), int(ends[2]) + 1)
    return found


Settings = Annotated[list[int | str], AfterValidator(_spelled_out)]


def format_seconds(value_s: float | None) -> str:
    """Return a duration for people: three significant digits and the unit that suits."""
    if value_s is None:
        return "-"
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(value_s) >= factor:
            return f"{value_s / factor:.3g} {unit}" if value_s < 100 else f"{value_s:.0f} s"
    return f"{value_s / 1e-9:.3g} ns" if value_s else "0 s"


def format_bytes(value: float | None) -> str:
    """Return a size for people in binary units."""
    if value is None:
        return "-"
    for unit, factor in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(value) >= factor:
            return f"{value / factor:.2f} {unit}"
    return f"{value:.0f} B"
