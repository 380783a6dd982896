"""What a sweep is drawn over, what each of its figures fixes, and how both are called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TypeAlias

from essim.results.column import AnyRow, Rows, number
from essim.results.columns import unique
from essim.results.tables import column

# Where a point is on the x axis.
Place: TypeAlias = int | float | str

_LINE = ("selector", "routing")
_LOADS = ("output_tokens", "batch", "input_tokens")
_WORDS = {
    "input_tokens": "{} input tokens",
    "output_tokens": "{} output tokens",
    "batch": "batch {}",
    **dict.fromkeys(("model", "hardware", "selector"), "{}"),
}
# So many values of another axis have a figure each; of more, the largest and the smallest.
_FEW = 3


def axes_of(rows: Rows, by: Sequence[str] = ()) -> list[str]:
    """Return the columns to draw over: every swept number, else what else was swept.

    Parameters
    ----------
    rows : sequence of mappings
        One row per point.
    by : sequence of str
        Swept columns beyond model, hardware, selector, routing, batch and token counts.
    """
    swept = [k for k in (*_LOADS, *by, "hardware", "model") if _varies(rows, k, _LINE)]
    if not swept and len(unique(rows, "routing")) > 1:
        return ["routing"]
    return [key for key in swept if is_count(rows, key)] or swept[:1]


def places(rows: Rows, axis: str) -> list[Place]:
    """Return the distinct values of an axis: numbers ascending, others as they come."""
    values = unique(rows, axis)
    numbers = [value for value in values if isinstance(value, int | float)]
    return sorted(numbers) if len(numbers) == len(values) else [str(value) for value in values]


def is_count(rows: Rows, key: str) -> bool:
    """Say whether a column has numbers alone."""
    return all(number(value) is not None for value in unique(rows, key))


def groups(rows: Rows, axis: str, by: Sequence[str]) -> Iterator[list[AnyRow]]:
    """Yield the rows of each figure: everything besides axis, lines and routing has one value."""
    counts = [key for key in (*_LOADS, *by) if is_count(rows, key)]
    fixable = [key for key in ("model", "hardware", *counts) if key != axis]
    others = [key for key in fixable if _varies(rows, key, (*_LINE, axis))]
    free = sum(key in counts for key in others)
    choices = []
    for key in others:
        values = places(rows, key)
        ends = key in counts and len(values) > (_FEW if free == 1 else 2)
        choices.append([values[-1], values[0]] if ends else values)
    for choice in product(*choices):
        fixed = list(zip(others, choice, strict=True))
        yield [row for row in rows if all(row.get(key) in (value, None) for key, value in fixed)]


def _varies(rows: Rows, key: str, same: Sequence[str]) -> bool:
    """Say whether a column has several values among rows that agree in some others."""
    values: dict[tuple[object, ...], set[object]] = {}
    for row in rows:
        values.setdefault(tuple(row.get(k) for k in same), set()).add(row.get(key))
    return any(len(found - {None}) > 1 for found in values.values())


def fixed_texts(group: Rows, axis: str, by: Sequence[str]) -> list[str]:
    """Return what a figure's rows are of, besides the axis and the routing."""
    values = {k: unique(group, k) for k in ("model", "hardware", *_LOADS, *by, "selector")}
    return [
        _WORDS.get(key, f"{column(key).heading} {{}}").format(", ".join(map(place_text, found)))
        for key, found in values.items()
        if found and key != axis
    ]


def place_text(value: object) -> str:
    """Return a place of an axis as text."""
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def axis_title(axis: str) -> str:
    """Return an axis's title with its unit."""
    return "batch, sequences" if axis == "batch" else column(axis).title
