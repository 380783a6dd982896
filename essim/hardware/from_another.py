"""A new profile from another one and a few numbers, as what its YAML holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

from essim.errors import BadValueError, InputError
from essim.hardware.profile import find_profile, load_profile
from essim.hardware.spec import ProfileSpec
from essim.text.files import is_there, write_files
from essim.text.units import parse_quantity
from essim.text.yaml import Document, nearest_hint, read_yaml, validate


@dataclass(frozen=True)
class Given:
    """A number that may be given: its place in a profile and what kernels get of a nominal one.

    `share` is that of h200-sxm's measured rates in the nominal ones of its datasheet (4.8 TB/s,
    989 and 1979 TFLOP/s); `low` and `high` bound what public tables show on other GPUs
    (docs/profiles.md).
    """

    part: str
    key: str
    dimension: str
    share: float = 1.0
    low: float = 1.0
    high: float = 1.0


GIVEN = {
    "bandwidth": Given("gpu", "bandwidth_bytes_per_s", "bytes/s", 0.887, 0.8, 0.95),
    "bf16": Given("gpu", "bf16_flops_per_s", "FLOP/s", 0.703, 0.52, 0.92),
    "fp8": Given("gpu", "fp8_flops_per_s", "FLOP/s", 0.654, 0.4, 0.68),
    "memory": Given("gpu", "memory_bytes", "bytes"),
    "clock": Given("gpu", "clock_hz", "Hz"),
    "link": Given("d2h", "bandwidth_bytes_per_s", "bytes/s"),
}


def today() -> str:
    """Return today's date as profiles write it."""
    return datetime.now(UTC).date().isoformat()


def base_profile(name: str) -> Document:
    """Return the YAML of a profile that a new one is made from.

    Raises
    ------
    InputError
        If it is nowhere or cannot be read.
    """
    try:
        file = find_profile(name, Path())
    except ValueError as error:
        refused = BadValueError.of(error)
        raise InputError(refused.message, refused.hint, key="--from") from None
    load_profile(file)
    return read_yaml(file)


def check_name(name: str, key: str = "NAME") -> None:
    """Refuse what can be no profile's name.

    Raises
    ------
    InputError
        If it has a folder or an ending, naming the option `key`.
    """
    if (
        not name
        or Path(name).name != name
        or name.startswith((".", "-"))
        or name.endswith((".yaml", ".yml"))
    ):
        hint = "Give one without folder and ending, such as my-gpu"
        raise InputError(f"{name!r} is no name of a profile", hint, key=key)


def new_file(name: str, folder: Path) -> Path:
    """Return where a new profile's YAML goes.

    Raises
    ------
    InputError
        If its name is no file name, or that of a profile that is there.
    """
    check_name(name)
    file = folder / f"{name}.yaml"
    try:
        there = find_profile(name, Path())
    except ValueError:
        there = file
    if is_there(there):
        raise InputError("a profile of this name is there", "Give another name", file=there)
    return file


def reference_of(base: Mapping[str, Any], name: str) -> str:
    """Return whose times a profile made from `base` takes: its reference's, or its own."""
    own = str(Path(name).resolve()) if Path(name).suffix in (".yaml", ".yml") else name
    return str(base.get("reference", own))


def with_numbers(
    base: Mapping[str, Any],
    given: Mapping[str, str],
    *,
    of: str,
    cite: str | None,
    date: str,
    nominal: bool,
) -> dict[str, Any]:
    """Return devices and links of `base` with the numbers given; those left are assumed.

    Parameters
    ----------
    of
        The name of the profile that `base` is.
    cite
        Who published the numbers; None if they are assumed.
    nominal
        Rates are a datasheet's: kernels get the share of them that they get on an H200.

    Raises
    ------
    InputError
        If a number has no unit or a wrong one, naming its option.
    """
    parts = {part: _assumed(base[part], of) for part in ("gpu", "cpu", "d2h", "h2d")}
    if {"bandwidth", "bf16"} & set(given):  # Another GPU, of which neither is known.
        parts["gpu"].pop("clock_hz", None)
        parts["gpu"].pop("fp8_flops_per_s", None)
    for option, text in given.items():
        place = GIVEN[option]
        number = _sourced(option, text, cite, date, nominal)
        parts[place.part][place.key] = number
        if option == "link":
            parts["h2d"][place.key] = dict(number)
    return parts


def _assumed(part: Mapping[str, Any], of: str) -> dict[str, Any]:
    """Return a device's or link's numbers as assumed, since another one had them."""
    return {
        key: number
        if isinstance(number, str)
        else {**number, "source": "assumed", "reference": f"that of {of}: {number['reference']}"}
        for key, number in part.items()
    }


def _sourced(option: str, text: str, cite: str | None, date: str, nominal: bool) -> dict[str, str]:
    """Return a given number as a profile writes it."""
    place = GIVEN[option]
    try:
        value = parse_quantity(text, place.dimension)
    except ValueError as error:
        refused = BadValueError.of(error)
        raise InputError(refused.message, refused.hint, key=f"--{option}") from None
    if not 0 < value < float("inf"):
        raise InputError(f"{text!r} is not above zero", key=f"--{option}")
    whose = cite or "given to essim profile new"
    if not nominal or place.share == 1.0:
        source = "published" if cite else "assumed"
        return {"value": text, "source": source, "reference": whose, "date": date}
    unit = place.dimension.replace("bytes", "B")
    shares = {"value": place.share, "low": place.low, "high": place.high}
    return {
        **{key: f"{value * share:.4g} {unit}" for key, share in shares.items()},
        "source": "assumed",
        "reference": f"{whose}, {text} nominal, times what h200-sxm's kernels get of theirs",
        "date": date,
    }


def profile_yaml(spec: Mapping[str, Any], file: Path) -> bytes:
    """Return the YAML of a profile, checked.

    Raises
    ------
    InputError
        With the key of what is wrong.
    """
    from ruamel.yaml import YAML

    validate(ProfileSpec, dict(spec), Document(file, dict(spec), {}))
    yaml, text = YAML(), StringIO()
    yaml.width = 100
    yaml.dump(dict(spec), text)
    return text.getvalue().encode()


def new_profile(
    name: str,
    base: str,
    folder: Path,
    given: Mapping[str, str],
    *,
    gpu: str | None,
    cite: str | None,
    date: str | None,
    nominal: bool,
) -> Path:
    """Write a profile made from `base` and the numbers given, and return its file.

    Raises
    ------
    InputError
        If the name is taken, the base is nowhere, or a number is none; nothing is written.
    """
    unknown = set(given) - set(GIVEN)
    if unknown:
        raise InputError(
            f"no number is called {min(unknown)}", nearest_hint(min(unknown), [*GIVEN])
        )
    file = new_file(name, folder)
    found = base_profile(base).data
    day = date or today()
    parts = with_numbers(found, given, of=base, cite=cite, date=day, nominal=nominal)
    parts["gpu"]["name"] = gpu or name
    spec = {
        "name": name,
        "description": f"{gpu or name}, made from {base} by essim profile new.",
        "reference": reference_of(found, base),
        **parts,
        "provenance": {"date": today(), "command": f"essim profile new {name} --from {base}"},
    }
    write_files({file: profile_yaml(spec, file)})
    return file
