"""One column of a table: its unit, heading, meaning, and how its values are shown."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, get_args, get_type_hints

from essim.text.units import format_bytes, format_seconds

# A row of another table than the result's.
Row: TypeAlias = dict[str, str | int | float | None]
# Any row, to be read.
AnyRow: TypeAlias = Mapping[str, object]
Rows: TypeAlias = Sequence[AnyRow]

MISSING = "–"


def number(value: object) -> float | None:
    """Return `value` as a finite float, or None when it is not one."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    result = float(value)
    return result if math.isfinite(result) else None


def plain(row: AnyRow, key: str) -> str | int | float | None:
    """Return what a row has in a column, as a plain value; None where it has none."""
    value = row.get(key)
    return value if value is None or isinstance(value, str | int | float) else str(value)


@dataclass(frozen=True)
class Format:
    """How a column's numbers are shown.

    Attributes
    ----------
    unit
        Unit after scaling; empty for plain text and counts.
    scale
        Shown number divided by stored number.
    digits
        Decimals; None shows the number as it is.
    signed
        Write a plus before positive numbers.
    brief
        Python's format of the stored number in a terminal, where it is no duration and no size.
    """

    unit: str = ""
    scale: float = 1.0
    digits: int | None = None
    signed: bool = False
    brief: str = ",.1f"

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


PLAIN = Format()


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes
    ----------
    unit
        Of the stored number; empty for text and plain counts.
    heading
        What readers call it.
    meaning
        What it is, in Markdown; empty where the heading says it.
    shown
        How its values are shown.
    short
        Heading in a terminal, where room is scarce; empty for the name.
    name
        Key in a row: the field that it annotates.
    kind
        What a cell holds where it is not empty: float, int or str.
    """

    unit: str
    heading: str
    meaning: str = ""
    shown: Format = PLAIN
    short: str = ""
    name: str = ""
    kind: type = float

    @property
    def title(self) -> str:
        """Heading with the shown unit, as a table head or an axis title."""
        return f"{self.heading}, {self.shown.unit}" if self.shown.unit else self.heading

    def brief(self, value: object) -> str:
        """Return `value` as a terminal shows it: durations and sizes in the unit that suits."""
        if value is None:
            return "-"
        if isinstance(value, float) and self.unit == "s":
            return format_seconds(value)
        if isinstance(value, bool):
            return "yes" if value else "-"
        if self.unit == "bytes/s":
            return self.shown.text(value)
        if isinstance(value, int) and self.unit == "bytes":
            return format_bytes(value)
        return format(value, self.shown.brief) if isinstance(value, float) else str(value)


def columns_in(row_type: type[Any]) -> dict[str, Column]:
    """Return the columns that a typed row's fields are annotated with, in order."""
    hints = get_type_hints(row_type, include_extras=True)
    return {
        name: replace(hint.__metadata__[0], name=name, kind=_kind(hint.__origin__))
        for name, hint in hints.items()
    }


def _kind(hint: Any) -> type:
    """Return the kind of a field: text is str whatever its class."""
    held = get_args(hint) or (hint,)
    return next((kind for kind in (int, float) if kind in held), str)


TOKENS = Format("tokens")
RATE = Format("tokens/s", 1.0, 1)
GAIN = Format("%", 100.0, 2, signed=True, brief="+.1%")
ERROR = Format("%", 100.0, 2, signed=True, brief="+.2%")
SIZE_OF_ERROR = Format("%", 100.0, 2, brief=".2%")
SHARE = Format("%", 100.0, 2, brief=".1%")
ROUND_SHARE = Format("%", 100.0, 1, brief=".1%")
POINTS = Format("points", 1.0, 2, brief=".2f")
SIGNED_POINTS = Format("points", 1.0, 2, signed=True, brief="+.2f")
SECONDS = Format("s", 1.0, 3)
FINE_SECONDS = Format("s", 1.0, 4)
MILLISECONDS = Format("ms", 1e3, 3)
MICROSECONDS = Format("us", 1e6, 3)
ROUND_MICROSECONDS = Format("us", 1e6, 1)
SIGNED_MICROSECONDS = Format("us", 1e6, 3, signed=True)
GIBIBYTES = Format("GiB", 2.0**-30, 3)
GB_PER_S = Format("GB/s", 1e-9, 1)
TERAFLOP = Format("TFLOP", 1e-12, 3)
NATS = Format("nats", 1.0, 3, brief=".3f")
MILLION_MACS = Format("million MACs", 1e-6, 3, brief=",.0f")
