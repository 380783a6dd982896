"""The plan: a scenario file with its ``--set`` overrides as a base point and a grid of points."""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from essim.errors import BadValueError
from essim.hardware.profile import find_profile
from essim.methods.routing import expand_preset, read_profile
from essim.model.hf import expand_model
from essim.simulate.scenario import Scenario
from essim.text.problems import shown
from essim.text.yaml import (
    Document,
    Path_,
    key_paths,
    nearest_key_hint,
    parse_override,
    read_yaml,
    validate,
)

# A larger grid is a mistake: it would run for hours.
_MOST_POINTS = 100_000
# What a routing preset without a mix does not keep of the routing before.
_OF_MIX = ("mix", "profile")


def load_scenario(file: Path, overrides: Sequence[str] = ()) -> tuple[Scenario, list[Scenario]]:
    """Read a scenario and return (its base point, every point of its sweep).

    Parameters
    ----------
    overrides
        ``key=value`` texts of ``--set``; a swept key that is set is no longer swept. Paths in them
        start at the current folder, those in the file at the file's.

    Raises
    ------
    InputError
        With file, line and key of what is wrong.
    """
    return points_of(read_yaml(file), [parse_override(text) for text in overrides])


def points_of(
    document: Document, overrides: Sequence[tuple[str, Any]] = ()
) -> tuple[Scenario, list[Scenario]]:
    """Return what `load_scenario` does, of data and of dotted keys with the values to set."""
    data = copy.deepcopy(document.data)
    _locate(data, document.file.parent)
    _expand(data, document)
    set_paths = [_override(key, value, data, document) for key, value in overrides]
    document = replace(document, overrides=dict.fromkeys(set_paths))
    _default_routing(data, document)
    sweep = data.get("sweep")
    if isinstance(sweep, dict):
        for path in set_paths:
            sweep.pop(".".join(map(str, path)), None)
    base = _checked(data, document)
    return base, _grid(base, data, document)


def _locate(data: dict[str, Any], folder: Path) -> None:
    """Make the paths in a scenario's file, which start at its folder, start at the current one."""

    def seen_from_here(value: Any) -> Any:
        for key in ("preset", "profile"):
            if isinstance(value, dict) and key in value:
                return value | {key: seen_from_here(value[key])}
        is_path = isinstance(value, str) and value.endswith((".json", ".yaml", ".yml"))
        return str(folder / value) if is_path else value

    sweep = data.get("sweep")
    for key in ("model", "hardware", "routing", "routing.profile"):
        if key in data:
            data[key] = seen_from_here(data[key])
        if isinstance(sweep, dict) and isinstance(sweep.get(key), list):
            sweep[key] = [seen_from_here(value) for value in sweep[key]]


def _checked(data: dict[str, Any], document: Document) -> Scenario:
    """Return the scenario, its parts checked against each other."""
    if isinstance(data.get("routing"), dict):
        try:
            data = data | {"routing": read_profile(data["routing"])}
        except ValueError as error:
            raise document.value_error(error, at=("routing",)) from None
    point = validate(Scenario, data, document)
    for key, check in (
        ("hardware", lambda: find_profile(point.hardware, Path())),
        ("selector", point.check_selector),
        ("routing", lambda: point.routing.anchors(point.model.layers)),
        ("routing", lambda: point.routing.check_widths(point.model)),
    ):
        try:
            check()
        except ValueError as error:
            raise document.value_error(error, at=(key,)) from None
    _warn_of_padding(point, document)
    return point


def _warn_of_padding(point: Scenario, document: Document) -> None:
    """Warn of RocketKV's pages that kernels round up to a power of two."""
    for key in ("page_tokens", "top_pages", "kv_block_tokens"):
        number = getattr(point.selector, key, None) if point.selector.kind == "rocketkv" else None
        if number and number.bit_count() > 1:
            padded = 1 << number.bit_length()
            message = f"{number} is no power of two: kernels work on {padded}, the price is of"
            message += f" {number}"
            warnings.warn(str(document.error(message, at=("selector", key))), stacklevel=2)


def _expand(data: dict[str, Any], document: Document) -> None:
    """Replace presets by the mappings they stand for, in place."""
    _default_routing(data, document)
    for key, expand in (
        ("model", lambda value: expand_model(value, Path())),
        ("routing", lambda value: expand_preset(value) if isinstance(value, str) else value),
    ):
        if key in data:
            try:
                data[key] = expand(data[key])
            except ValueError as error:
                raise document.value_error(error, at=(key,)) from None
            if not isinstance(data[key], dict):
                message = f"must be a name or a mapping of keys (got {shown(data[key])})"
                raise document.error(message, at=(key,))


def _default_routing(data: dict[str, Any], document: Document) -> None:
    """Give the base point a routing where the file has none: any if dense, else the first swept."""
    if "routing" in data:
        return
    selector, sweep = data.get("selector"), data.get("sweep")
    swept = sweep.get("routing") if isinstance(sweep, dict) else None
    if isinstance(selector, dict) and selector.get("kind") == "dense":
        data["routing"] = expand_preset("gpu-target")  # nothing is routed
    elif isinstance(swept, list) and swept:
        try:
            data["routing"] = expand_preset(swept[0]) if isinstance(swept[0], str) else swept[0]
        except ValueError as error:
            raise document.value_error(error, at=("sweep", "routing", 0)) from None


def _override(key: str, value: Any, data: dict[str, Any], document: Document) -> Path_:
    """Set `key` in `data` and return its path."""
    path: Path_ = tuple(key.split("."))
    if path[0] == "sweep" and len(path) > 1:
        path = ("sweep", ".".join(map(str, path[1:])))
    try:
        _put(data, path, value)
    except ValueError as error:
        raise replace(document, overrides={path: None}).value_error(error, at=path) from None
    return path


def _put(data: dict[str, Any], path: Path_, value: Any) -> None:
    """Put `value` at `path`; a routing preset keeps the settings it leaves open."""
    *parents, last = path
    node: Any = data
    for part in parents:
        if not isinstance(node, dict) or not isinstance(node.get(str(part), {}), dict):
            raise BadValueError(f"{part!r} has no keys below it")
        node = node.setdefault(str(part), {})
    if path == ("routing",) and isinstance(value, str):
        kept, preset = node.get("routing"), expand_preset(value)
        dropped = () if preset["anchor"] == "mix" else _OF_MIX
        kept = kept if isinstance(kept, dict) else {}
        value = {key: setting for key, setting in kept.items() if key not in dropped} | preset
    elif path == ("model",):
        value = expand_model(value, Path())
    node[str(last)] = value


def _grid(base: Scenario, data: dict[str, Any], document: Document) -> list[Scenario]:
    """Return every point of the full grid, in file order, the last key fastest.

    Of a selector that routes nothing, points that differ in routing are one and the same: it is
    there once.
    """
    _check_sweep(base, document)
    points: list[Scenario] = []
    unrouted: set[str] = set()
    models: dict[str, int] = {}
    for at, point in _points(base, data, document):
        if not point.selector.query_conditioned:
            same = repr(point.model_copy(update={"routing": base.routing}))
            if same in unrouted:
                continue
            unrouted.add(same)
        points.append(point)
        # Results tell models apart by their names.
        index = at.get("model", 0)
        if models.setdefault(point.model.name, index) != index:
            hint = "Give each its own: {preset: ..., name: ...}"
            raise document.error("two models have one name", hint, at=("sweep", "model", index))
    return points


def _check_sweep(base: Scenario, document: Document) -> None:
    """Refuse keys that there are not, values that are there twice, and grids without end."""
    known = [path for path in key_paths(Scenario) if path.split(".")[0] not in ("sweep", "name")]
    for key in base.sweep:
        if key not in known:
            own = [path for path in key_paths(Scenario, document.data) if path in known]
            hint = nearest_key_hint(key.split(".")[-1], own)
            raise document.error("unknown key", hint, at=("sweep", key))
    for key, values in base.sweep.items():
        doubled = [value for i, value in enumerate(values) if value in values[:i]]
        if doubled:
            raise document.error(f"{doubled[0]!r} is there twice", "Delete one", at=("sweep", key))
    if math.prod(map(len, base.sweep.values())) > _MOST_POINTS:
        raise document.error(f"more than {_MOST_POINTS} points", "Sweep less", at=("sweep",))


def _points(
    base: Scenario, data: dict[str, Any], document: Document
) -> Iterator[tuple[dict[str, int], Scenario]]:
    """Yield each point, after which value of every swept key it has."""
    for indices in itertools.product(*(range(len(values)) for values in base.sweep.values())):
        at = dict(zip(base.sweep, indices, strict=True))
        point = copy.deepcopy(data) | {"sweep": {}}
        swept: dict[Path_, int | None] = {}
        for key, index in at.items():
            path: Path_ = tuple(key.split("."))
            swept[path] = document.place(("sweep", key, index))[1]
            try:
                _put(point, path, copy.deepcopy(base.sweep[key][index]))
            except ValueError as error:
                raise document.value_error(error, at=("sweep", key, index)) from None
        places = replace(document, overrides=swept | dict(document.overrides))
        yield at, _checked(point, places)
