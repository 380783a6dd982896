"""What is wrong with a value, in plain words, for every kind of error that pydantic has here."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from essim.errors import BadValueError

# What a value must be, by pydantic's type of error.
_MUST_BE = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a smaller number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "greater_than": "above {gt:g}",
    "greater_than_equal": "{ge:g} or more",
    "less_than": "below {lt:g}",
    "less_than_equal": "{le:,} or less",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text",
    "string_too_short": "text, and not empty",
    "string_pattern_mismatch": "text that matches {pattern}",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "list_type": "a list",
    "too_short": "a list, and not empty",
    "dict_type": "a mapping of keys",
    "model_type": "a mapping of keys",
    "model_attributes_type": "a mapping of keys",
    "path_type": "a path",
}
_THOUSANDS = re.compile(r"(\d+(?:\.\d+)?)\s*([kKmM])")
# So many letters of a name tell it from others by chance.
_PREFIX = 3
_FACTORS = {"k": (1024, 1000), "m": (1024**2, 1000**2)}


def described(errors: Sequence[Mapping[str, Any]]) -> BadValueError:
    """Return what is wrong with one value, of which every branch of a union may have an error."""
    first = errors[0]
    if first["type"] == "value_error":
        refused = BadValueError.of(first["ctx"]["error"])
        return BadValueError(refused.message.removesuffix("."), refused.hint)
    must = [_MUST_BE[e["type"]].format(**e.get("ctx", {})) for e in errors if e["type"] in _MUST_BE]
    if not must:
        return BadValueError(str(first["msg"])[:1].lower() + str(first["msg"])[1:])
    wanted = " or ".join(dict.fromkeys(must)).replace("True", "true").replace("False", "false")
    return BadValueError(f"must be {wanted} (got {shown(first['input'])})", _hint(first))


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return which of `known` was meant: the only one that starts so, else the closest."""
    by_lower = {name.lower(): name for name in known}
    begun = [name for lower, name in by_lower.items() if lower.startswith(word.lower())]
    if len(word) >= _PREFIX and len(begun) == 1:
        return begun[0]
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[close[0]] if close else None


def shown(value: object) -> str:
    """Return a value as a file would have it, cut where it is long."""
    names: dict[Any, str] = {None: "nothing", True: "true", False: "false"}
    if value is None or isinstance(value, bool):
        return names[value]
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _hint(error: Mapping[str, Any]) -> str:
    """Return what to write instead, where that can be told."""
    kind, value = error["type"], error["input"]
    if kind == "literal_error" and isinstance(value, str):
        close = nearest(value, re.findall(r"'([^']*)'", error["ctx"]["expected"]))
        return f"Did you mean {close!r}?" if close else ""
    if kind == "list_type" and isinstance(value, int | float | str):
        return f"Write [{value}]"
    if kind == "list_type" and isinstance(value, dict) and value:
        below, entries = next(iter(value.items()))
        return f"Write {error['loc'][-1]}.{below}: {shown(entries)}"
    if kind == "string_type" and isinstance(value, int | float) and not isinstance(value, bool):
        return f"Write '{value}', in quotes"
    if kind.startswith(("int_", "float_")):
        return _number_hint(value)
    is_share = any(str(part).endswith("_frac") for part in error["loc"][-1:])
    if kind == "less_than" and is_share and isinstance(value, int | float) and 1 < value < 100:
        return f"Write {value / 100:g} for {value:g} %"
    return ""


def _number_hint(value: object) -> str:
    """Return the number that somebody has meant, such as 40960 or 40000 by ``40k``."""
    if isinstance(value, float) and value.is_integer():
        return f"Write {int(value)}"
    if not isinstance(value, str):
        return ""
    thousands = _THOUSANDS.fullmatch(value.strip())
    if thousands:
        number, (binary, decimal) = float(thousands[1]), _FACTORS[thousands[2].lower()]
        meant = dict.fromkeys(round(number * factor) for factor in (binary, decimal))
        return f"Write {' or '.join(map(str, meant))}"
    percent = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", value.strip())
    if percent:
        return f"Write {float(percent[1]) / 100:g}"
    if ".." in value:
        return "List the numbers one by one"
    plain = re.sub(r"(?<=\d)[,_ '](?=\d{3})", "", value.strip())
    return f"Write {int(plain)}" if plain.isdecimal() else ""
