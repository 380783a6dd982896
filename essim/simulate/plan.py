"""The plan: a scenario file with its ``--set`` overrides as a base point and a grid of points."""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from essim.errors import BadValueError
from essim.hardware.profile import find_profile
from essim.methods.routing import expand_preset, read_profile
from essim.methods.selectors import SELECTORS
from essim.model.hf import expand_model
from essim.simulate.located import locate
from essim.simulate.scenario import SERVING_KEYS, Scenario
from essim.text.problems import shown
from essim.text.yaml import (
    Document,
    Path_,
    Strict,
    key_paths,
    nearest_key_hint,
    parse_override,
    read_yaml,
    validate,
)

WORKLOAD = ("workload.batch", "workload.input_tokens", "workload.output_tokens")
# A larger grid does not fit into memory as rows.
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


def load_grid(file: Path, overrides: Sequence[str] = ()) -> Grid:
    """Return what `load_scenario` does as a grid, whose points are made when they are asked for."""
    return grid_of(read_yaml(file), [parse_override(text) for text in overrides])


def points_of(
    document: Document, overrides: Sequence[tuple[str, Any]] = ()
) -> tuple[Scenario, list[Scenario]]:
    """Return what `load_scenario` does, of data and of dotted keys with the values to set."""
    grid = grid_of(document, overrides)
    return grid.base, grid.points()


@dataclass(frozen=True)
class Grid:
    """A base point and what is swept: the full grid, in file order, the last key fastest.

    Of a selector that routes nothing, points that differ in routing are one and the same: it is
    there once.
    """

    base: Scenario
    data: dict[str, Any]
    document: Document

    @property
    def shape(self) -> tuple[int, ...]:
        """How many values each swept key has."""
        return tuple(map(len, self.base.sweep.values()))

    def point(self, indices: Sequence[int]) -> Scenario:
        """Return the point with these values of the swept keys.

        Raises
        ------
        InputError
            If it makes no sense.
        """
        data = copy.deepcopy(self.data) | {"sweep": {}}
        swept: dict[Path_, int | None] = {}
        for (key, values), index in zip(self.base.sweep.items(), indices, strict=True):
            path: Path_ = tuple(key.split("."))
            swept[path] = self.document.place(("sweep", key, index))[1]
            try:
                _put(data, path, copy.deepcopy(values[index]))
            except ValueError as error:
                raise self.document.value_error(error, at=("sweep", key, index)) from None
        if "routing" in self.base.sweep and _routes_nothing(data):
            data["routing"] = expand_preset("gpu-target")
        return _checked(
            data, replace(self.document, overrides=swept | dict(self.document.overrides))
        )

    def has(self, point: Scenario, indices: Sequence[int]) -> bool:
        """Return whether a point is the first of those that are one and the same."""
        if point.selector.query_conditioned:
            return True
        keys = zip(self.base.sweep, indices, strict=True)
        return all(index == 0 for key, index in keys if key.split(".")[0] == "routing")

    def check(self) -> None:
        """Check each swept value on its own: whether it goes with the others, its rows say.

        Raises
        ------
        InputError
            If one is no such value, or two models have one name.
        """
        models: dict[str, int] = {}
        for key, values in self.base.sweep.items():
            for index, value in enumerate(values):
                data = copy.deepcopy(self.data) | {"sweep": {}}
                try:
                    _put(data, tuple(key.split(".")), copy.deepcopy(value))
                except ValueError as error:
                    raise self.document.value_error(error, at=("sweep", key, index)) from None
                line = {tuple(key.split(".")): self.document.place(("sweep", key, index))[1]}
                document = replace(self.document, overrides=line | dict(self.document.overrides))
                point = validate(Scenario, data, document)
                if key == "model":
                    self._check_name(models, point.model.name, index)

    def _check_name(self, models: dict[str, int], name: str, index: int) -> None:
        """Refuse a second model of a name: results tell models apart by their names."""
        if models.setdefault(name, index) != index:
            hint = "Give each its own: {preset: ..., name: ...}"
            at = ("sweep", "model", index)
            raise self.document.error("two models have one name", hint, at=at)

    def points(self) -> list[Scenario]:
        """Return every point.

        Raises
        ------
        InputError
            If one makes no sense, two models have one name, or there are too many.
        """
        if math.prod(self.shape) > _MOST_POINTS:
            message = f"more than {_MOST_POINTS} points"
            hint = "Sweep less, or give --out a folder"
            raise self.document.error(message, hint, at=("sweep",))
        points: list[Scenario] = []
        models: dict[str, int] = {}
        for indices in itertools.product(*map(range, self.shape)):
            point = self.point(indices)
            if self.has(point, indices):
                points.append(point)
            index = dict(zip(self.base.sweep, indices, strict=True)).get("model", 0)
            self._check_name(models, point.model.name, index)
        return points


def grid_of(document: Document, overrides: Sequence[tuple[str, Any]] = ()) -> Grid:
    """Return the grid of data and of dotted keys with the values to set."""
    data = {k: copy.deepcopy(v) for k, v in document.data.items() if k not in SERVING_KEYS}
    locate(data, document.file.parent)
    _expand(data, document)
    set_paths = [_override(key, value, data, document) for key, value in overrides]
    document = replace(document, overrides=dict.fromkeys(set_paths))
    _default_routing(data, document)
    sweep = data.get("sweep")
    if isinstance(sweep, dict):
        for path in set_paths:
            sweep.pop(".".join(map(str, path)), None)
    base = _checked(data, document)
    _check_sweep(base, document)
    return Grid(base, data, document)


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
        ("routing", point.check_anchor),
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
            if not isinstance(data[key], dict | Strict):
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


def _routes_nothing(data: dict[str, Any]) -> bool:
    """Return whether a point's selector is one that no routing of a sweep changes."""
    selector = data.get("selector")
    kind = SELECTORS.get(selector["kind"]) if isinstance(selector, dict) else None
    return kind is not None and bool(kind.unrouted)


def _check_sweep(base: Scenario, document: Document) -> None:
    """Refuse keys that there are not, and values that are there twice."""
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
