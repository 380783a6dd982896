"""What ``essim list`` prints: names and one line about each."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import Any

from essim.errors import EssimError
from essim.hardware import profile as _hardware
from essim.hardware.spec import ProfileSpec, Sourced, TableSpec
from essim.hardware.table import read_lines
from essim.methods import routing
from essim.methods import selectors as _selectors
from essim.model import shape as model
from essim.step.kinds import priced_names
from essim.text.units import format_bytes, format_seconds

Entries = list[dict[str, str]]


def models() -> Entries:
    """Return the model presets."""
    return [
        {
            "name": name,
            "about": f"{m.layers} layers, hidden {m.hidden}, {m.heads} heads / {m.kv_heads} KV "
            f"x {m.head_dim}, {m.weight_bytes() / 1e9:.1f} GB of weights, "
            f"{m.kv_bytes_per_token()} KV bytes a token",
        }
        for name, m in model.PRESETS.items()
    ]


def hardware() -> Entries:
    """Return the hardware profiles found, what is measured and how well; errors are said."""
    entries: dict[str, str] = {}
    owners: dict[bytes, str] = {}
    for folder in _hardware.profile_folders():
        for file in sorted(folder.glob("*.yaml")):
            if file.stem in entries:
                continue
            try:
                with warnings.catch_warnings():  # of cells, which loading it alone says
                    warnings.simplefilter("ignore")
                    profile = _hardware.load_profile(file, priced_names())
            except EssimError as error:
                entries[file.stem] = f"cannot be read: {error}"
                continue
            entries[file.stem] = _about(profile.spec)
            for name, spec in profile.spec.tables.items():
                content = _hardware.table_file(file, name).read_bytes()
                owner = owners.setdefault(content, file.stem)
                if owner != file.stem and owner not in spec.note.split():  # or a copy that says so
                    warnings.warn(f"table {name} of {file.stem} is that of {owner}", stacklevel=2)
    return [{"name": name, "about": about} for name, about in entries.items()]


def _about(spec: ProfileSpec) -> str:
    """Return a profile's devices, and its tables with their held-out errors."""
    state = "provisional; " if spec.provisional else ""
    tables = []
    for name, table in spec.tables.items():
        held = table.heldout
        errors = f"{held.median_frac:.1%}, worst {held.worst_frac:.1%}" if held else "unchecked"
        tables.append(f"{name} ({errors if table.source == 'measured' else 'published'})")
    found = ", ".join(tables)
    measured = f"measured (median held-out error): {found}" if tables else "nothing measured"
    if tables and all(table.source == "published" for table in spec.tables.values()):
        measured = f"published: {', '.join(spec.tables)}"
    measured += f"; else carried over from {spec.reference}" if spec.reference else ""
    return f"{state}{spec.gpu.name} + {spec.cpu.name}; {measured}"


def tables(file: Path) -> Entries:
    """Return a profile's tables: their points, samples and held-out errors."""
    profile = _hardware.load_profile(file, priced_names())
    entries = []
    for name, table in profile.spec.tables.items():
        points = sum(grid.size for grid in profile.tables[name].grids.values())
        held = table.heldout
        errors = "nothing held out"
        if held:
            errors = f"{held.points} held out: median error {held.median_frac:.1%}"
            errors += f", worst {held.worst_frac:.1%}"
        about = f"{points} points; {errors}{_samples(_rows(file, name, table))}"
        about += f"; {table.note}" if table.note else ""
        entries.append({"name": name, "about": about})
    return entries


def _rows(file: Path, name: str, table: TableSpec) -> list[dict[str, str]]:
    columns = [*table.keys, *table.axes]
    return [row for _, row in read_lines(_hardware.table_file(file, name), columns)[1]]


def _samples(rows: list[dict[str, str]]) -> str:
    """Return how many samples rows have, where they say it and some have few, and are unstable."""
    calls = [int(row["calls"]) for row in rows if row.get("calls", "").isdigit()]
    few = sorted(count for count in calls if count < _FEW_SAMPLES)
    text = ""
    if few:
        of = "all" if len(few) == len(rows) else f"{len(few)} rows"
        span = f"{few[0]}" if few[0] == few[-1] else f"{few[0]} to {few[-1]}"
        text = f"; {of} of {span} samples, fewer than {_FEW_SAMPLES}"
    unstable = sum(row.get("unstable") == "True" for row in rows)
    return f"{text}; {unstable} unstable" if unstable else text


def unstable_rows(file: Path) -> Entries:
    """Return a profile's table rows whose samples spread by more than a tenth."""
    entries = []
    for name, table in _hardware.load_profile(file, priced_names()).spec.tables.items():
        columns = [*table.keys, *table.axes]
        bad = [row for row in _rows(file, name, table) if row.get("unstable") == "True"]
        at = "; ".join(", ".join(row[column] for column in columns) for row in bad)
        if bad:
            entries.append({"name": name, "about": f"({', '.join(columns)}): {at}"})
    return entries


def specifications(file: Path) -> Entries:
    """Return a profile's numbers beside its tables, each with where it comes from."""
    spec = _hardware.load_profile(file, priced_names()).spec
    entries = [{"name": "description", "about": spec.description}]
    for part in ("gpu", "cpu", "d2h", "h2d"):
        for name, value in getattr(spec, part):
            about = _sourced(name, value) if isinstance(value, Sourced) else value
            if about is not None:
                entries.append({"name": f"{part}.{name}", "about": about})
    for name, constant in spec.constants.items():
        entries.append({"name": name, "about": _sourced("constant_s", constant)})
    if spec.reference:
        about = f"times that are not here are carried over from {spec.reference}"
        entries.append({"name": "reference", "about": about})
    return entries


def _sourced(name: str, number: Sourced[Any]) -> str:
    """Return a number with its unit, range, source, reference and date."""
    text = _quantity(name, number.value)
    if number.low is not None and number.high is not None:
        text += f" ({_quantity(name, number.low)} to {_quantity(name, number.high)})"
    return f"{text}; {number.source}, {number.date}: {number.reference}"


def _quantity(name: str, value: float) -> str:
    """Return a number in the unit that its name ends in."""
    if name.endswith("_bytes"):
        return format_bytes(value)
    for ending, (factor, unit) in _UNITS.items():
        if name.endswith(ending):
            return f"{value / factor:,.4g} {unit}"
    return format_seconds(value) if name.endswith("_s") else str(value)


_UNITS = {
    "_bytes_per_s": (1e9, "GB/s"),
    "_flops_per_s": (1e12, "TFLOP/s"),
    "_hz": (1e6, "MHz"),
}
# Below so many samples a row's spread says little.
_FEW_SAMPLES = 30


def selectors() -> Entries:
    """Return the KV selectors: what early routing means to each, what it chooses and needs."""
    measured = _hardware.load_profile(_hardware.shipped("hardware_profiles") / "h200-sxm.yaml")
    llama, entries = model.PRESETS["llama-3.1-8b"], []
    for name, kind in sorted(_selectors.SELECTORS.items()):
        usual = kind.model_validate({"kind": name, **kind.usual})
        memory = llama.layers * usual.summary_bytes_per_token_layer(llama)
        entries.append(
            {
                "name": name,
                "class": kind.route_class(),
                "chooses": kind.granularity,
                "needs": kind.needs,
                "bytes_per_token": f"{memory:,.0f}",
                "router_price": _router_source(kind, measured.spec),
                "about": (inspect.getdoc(kind) or "").splitlines()[0],
            }
        )
    return entries


def _router_source(kind: type[_selectors.Selector], spec: ProfileSpec) -> str:
    """Return where the price of a method's stepwise GPU router comes from on a profile."""
    if not kind.query_conditioned:
        return "none needed"
    table = spec.tables.get(kind.router_table)
    own = table is not None and kind.model_fields["kind"].default in table.holds_for.get(
        "selector", []
    )
    return f"measured on {spec.name}" if own else "transferred"


def routings() -> Entries:
    """Return the routing presets."""
    return [
        {"name": name, "about": ", ".join(f"{k}: {v}" for k, v in fields.items())}
        for name, fields in routing.PRESETS.items()
    ]


def scenarios() -> Entries:
    """Return the shipped scenarios with the comment at their top."""
    entries = []
    for file in sorted(_hardware.shipped("scenarios").glob("*.yaml")):
        comments = []
        for line in file.read_text().splitlines():
            if not line.startswith("#"):
                break
            comments.append(line.lstrip("# "))
        entries.append({"name": file.stem, "about": " ".join(comments)})
    return entries
