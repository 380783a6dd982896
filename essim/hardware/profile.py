"""HardwareProfile: a profile's numbers with its tables, found by name and loaded."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from essim.errors import BadValueError
from essim.hardware.forms import GemmForm, Peaks, fit_forms
from essim.hardware.holdout import Ratios, heldout_file, ratios
from essim.hardware.spec import ProfileSpec, Sourced, TableSpec
from essim.hardware.table import Table, read_table
from essim.text.files import existing, is_there
from essim.text.yaml import Document, Strict, nearest_hint, read_yaml, validate


@dataclass(frozen=True)
class HardwareProfile:
    """A validated profile with its tables loaded.

    Attributes
    ----------
    file
        The YAML; tables lie in the folder of the same name beside it.
    middle
        Of a corner, the numbers it was made from.
    heldout
        Measured over predicted time at held-out points, by table and keys.
    reference
        The profile whose times are carried over where this one has none.
    surveys
        Times over many shapes, by table.
    lines
        Where each key stands in the YAML.
    """

    file: Path
    spec: ProfileSpec
    tables: dict[str, Table]
    middle: ProfileSpec | None = None
    heldout: Mapping[tuple[str, ...], Ratios] = field(default_factory=dict)
    reference: HardwareProfile | None = None
    surveys: Mapping[str, Table] = field(default_factory=dict)
    lines: Mapping[tuple[str | int, ...], int] = field(default_factory=dict)

    def place(self, *path: str) -> str:
        """Return file and line of a key, for messages about it."""
        line = self.lines.get(path)
        return f"{self.file}:{line}" if line else str(self.file)

    @property
    def nominal(self) -> ProfileSpec:
        """The profile's values, none at an end of its range."""
        return self.middle or self.spec

    def corner(self, end: Literal["slow", "fast"]) -> HardwareProfile | None:
        """Return this profile with every ranged number at one end, None if no number has a range.

        Times never shrink when durations grow, so the two corners bound every time.
        """
        parts: dict[str, Any] = {}
        for name in ("gpu", "cpu", "d2h", "h2d"):
            part = getattr(self.spec, name)
            moved = {field: _end(field, getattr(part, field), end) for field in _ranged(part)}
            if moved:
                parts[name] = part.model_copy(update=moved)
        constants = self.spec.constants
        if any(number.low is not None for number in constants.values()):
            parts["constants"] = {k: _end("constant_s", v, end) for k, v in constants.items()}
        if not parts:
            return None
        corner = self.spec.model_copy(update=parts)
        return replace(self, spec=corner, middle=self.spec)

    def gemm_forms(self, dtype: str, weight_bytes: float) -> tuple[GemmForm, GemmForm] | None:
        """Return the forms of GEMMs in `dtype` of up to `FEW_ROWS` rows, and of more."""
        if dtype not in self._forms:
            own = {"table": self.tables.get("gemm"), "survey": self.surveys.get("gemm")}
            tables = {name: table for name, table in own.items() if table is not None}
            gpu = self.nominal.gpu
            peaks = Peaks(gpu.bandwidth_bytes_per_s.value, gpu.flops_per_s(dtype))
            self._forms[dtype] = fit_forms(tables, dtype, weight_bytes, peaks)
        return self._forms[dtype]

    @cached_property
    def _forms(self) -> dict[str, tuple[GemmForm, GemmForm] | None]:
        return {}

    @cached_property
    def fits(self) -> dict[Any, Any]:
        """What is fitted on its tables elsewhere, kept so that it is fitted once."""
        return {}

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the YAML, every table and its held-out points, in name order."""
        total = hashlib.sha256(self.file.read_bytes())
        for name in sorted(self.tables):
            total.update(name.encode())
            for file in (table_file(self.file, name), heldout_file(table_file(self.file, name))):
                total.update(file.read_bytes() if file.exists() else b"")
        for name in sorted(self.surveys):
            total.update(survey_file(self.file, name).read_bytes())
        if self.reference is not None:
            total.update(self.reference.digest.encode())
        return total.hexdigest()


def survey_file(profile_file: Path, table: str) -> Path:
    """Return where the times of a table's op over many shapes lie."""
    return profile_file.with_suffix("") / "survey" / f"{table}.csv"


def _ranged(part: Strict) -> list[str]:
    """Return the fields of a device or link that have a range."""
    return [
        name
        for name in type(part).model_fields
        if isinstance(getattr(part, name), Sourced) and getattr(part, name).low is not None
    ]


def _end(field: str, number: Sourced[Any], end: Literal["slow", "fast"]) -> Sourced[Any]:
    """Return a number at its slow or fast end: a time is slow when long, a rate when low.

    Cores are slow when many: the peak is that of all of them, so each has less of it.
    """
    if number.low is None:
        return number
    is_time = field.endswith("_s") and not field.endswith("_per_s")
    more_is_slower = is_time or field == "cores"
    slow, fast = (number.high, number.low) if more_is_slower else (number.low, number.high)
    return number.model_copy(update={"value": slow if end == "slow" else fast})


def table_file(profile_file: Path, table: str) -> Path:
    """Return where a profile's table lies."""
    return profile_file.with_suffix("") / f"{table}.csv"


def profile_folders() -> Iterator[Path]:
    """Yield where profiles are looked up by name: the working folder's, then the shipped ones."""
    yield Path("hardware_profiles")
    yield shipped("hardware_profiles")


def shipped(folder: str) -> Path:
    """Return a data folder of this project: beside the package in a checkout, else inside it."""
    package = Path(__file__).parents[1]
    beside = package.parent / folder
    return beside if (package.parent / "pyproject.toml").exists() else package / "data" / folder


def find_profile(name: str, folder: Path) -> Path:
    """Return the YAML of a profile given by name or by path (relative to `folder`).

    Raises
    ------
    BadValueError
        If it is nowhere.
    """
    if name.endswith((".yaml", ".yml")):
        return existing(folder / name)
    for place in profile_folders():
        if is_there(place / f"{name}.yaml"):
            return place / f"{name}.yaml"
    known = sorted({file.stem for place in profile_folders() for file in place.glob("*.yaml")})
    made = f" (`essim measure --profile {name}` makes one of this machine)"
    made = made if name and Path(name).name == name and not Path(name).suffix else ""
    raise BadValueError(f"no hardware profile {name!r}{made}", nearest_hint(name, known))


def load_profile(file: Path, known: Mapping[str, Sequence[str]] | None = None) -> HardwareProfile:
    """Read a profile and all its tables.

    Parameters
    ----------
    known
        The names that ``constants`` and ``tables`` may have, others are refused; default any.

    Raises
    ------
    InputError
        With file, line and key of what is wrong in the YAML or in a table.
    """
    document = read_yaml(file)
    spec = validate(ProfileSpec, document.data, document)
    _check_names(spec, known or {}, document)
    tables: dict[str, Table] = {}
    heldout: dict[tuple[str, ...], Ratios] = {}
    for name, table in spec.tables.items():
        path = table_file(file, name)
        if not path.exists():
            raise document.error(f"the table file {path} does not exist", at=("tables", name))
        tables[name] = read_table(
            path, name, table.keys, table.axes, table.jumps, varies=table.varies
        )
        _check_jumps(tables[name], table, document)
        if table.heldout and heldout_file(path).exists():
            found = ratios(tables[name], heldout_file(path))
            heldout |= {(name, *keys): values for keys, values in found.items()}
    other, surveys = _reference(spec, document), _surveys(spec, document)
    parts = {"heldout": heldout, "reference": other, "surveys": surveys, "lines": document.lines}
    return HardwareProfile(file, spec, tables, **parts)  # type: ignore[arg-type]


def _check_names(spec: ProfileSpec, known: Mapping[str, Sequence[str]], document: Document) -> None:
    """Refuse constants, tables and surveys that price nothing."""
    surveyed = {"surveys": known["tables"]} if "tables" in known else {}
    for part, names in {**known, **surveyed}.items():
        for name in getattr(spec, part):
            if name not in names:
                hint = nearest_hint(name, names)
                raise document.error("no op is priced by this", hint, at=(part, name))


def _surveys(spec: ProfileSpec, document: Document) -> dict[str, Table]:
    """Return the tables over many shapes."""
    found = {}
    for name, survey in spec.surveys.items():
        path = survey_file(document.file, name)
        if not path.exists():
            raise document.error(f"the survey {path} does not exist", at=("surveys", name))
        with warnings.catch_warnings():
            # One shape's kernel may be badly chosen: a fit over many is what they are for.
            warnings.simplefilter("ignore", UserWarning)
            found[name] = read_table(path, name, survey.keys, survey.axes)
    return found


def _reference(spec: ProfileSpec, document: Document) -> HardwareProfile | None:
    """Return the profile that another one names, or raise `InputError` at the line that does."""
    if spec.reference is None:
        return None
    try:
        file = find_profile(spec.reference, document.file.parent)
        if file.resolve() == document.file.resolve():
            hint = "Name another one"
            raise document.error("a profile cannot be its own reference", hint, at=("reference",))
        found = load_profile(file)
    except ValueError as error:
        raise document.value_error(error, at=("reference",)) from None
    if found.reference is not None:
        hint = "Name a profile with tables of its own"
        raise document.error(f"{spec.reference} has a reference itself", hint, at=("reference",))
    return found


def _check_jumps(table: Table, spec: TableSpec, document: Document) -> None:
    """Refuse jumps that are not right after a tick with one behind it."""
    for axis, jumps in spec.jumps.items():
        for grid in table.grids.values():
            ticks = grid.axes[spec.axes.index(axis)].tolist()
            for jump in set(jumps) - set(ticks[:-1]):
                hint = f"One of {', '.join(f'{tick:g}' for tick in ticks[:-1])}"
                where = ("tables", table.name, "jumps", axis)
                raise document.error(f"{jump:g} is no tick with one behind it", hint, at=where)
