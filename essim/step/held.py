"""Whether a table was measured with the settings that a price is wanted for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Held = Mapping[str, Sequence[int | str]]


def differing(holds_for: Held, settings: Mapping[str, object]) -> list[str]:
    """Return the settings that a table does not hold for."""
    return [key for key, values in holds_for.items() if settings.get(key) not in values]


def mismatch(holds_for: Held, settings: Mapping[str, object]) -> str:
    """Return the first setting a table does not hold for, in words, or an empty string."""
    for key in differing(holds_for, settings):
        return f"its table holds for {key} {_listed(holds_for[key])}, not {settings.get(key)}"
    return ""


def _listed(values: Sequence[int | str]) -> str:
    """Return settings for people: three and more whole numbers in a row as a span."""
    numbers = [value for value in values if isinstance(value, int)]
    if len(values) > 2 and list(values) == numbers == [*range(numbers[0], numbers[-1] + 1)]:
        return f"{numbers[0]}..{numbers[-1]}"
    return str(list(values))
