"""Scenario: what is asked, from a strict YAML file, ``--set`` overrides and a sweep grid."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from essim.errors import InputError
from essim.hardware.profile import find_profile, shipped
from essim.methods.routing import PRESETS, Routing, expand_preset
from essim.methods.selectors import AnySelector, Selector
from essim.methods.selectors.dense import Dense
from essim.model.hf import expand_model
from essim.model.shape import ATTENDS, Count, ModelShape
from essim.text.files import is_there
from essim.text.yaml import (
    Document,
    Path_,
    Strict,
    key_paths,
    nearest_hint,
    nearest_key_hint,
    parse_scalar,
    read_yaml,
    validate,
)

# A larger grid is a mistake: it would run for hours.
_MOST_POINTS = 100_000


class Workload(Strict):
    """One batch of equal requests, prefilled one sequence at a time and decoded together."""

    batch: Count
    input_tokens: Count
    output_tokens: Count


class Compare(Strict):
    """What gains are counted against: the same point with another routing."""

    baseline: str = "gpu-target"

    @model_validator(mode="after")
    def _known(self) -> Compare:
        expand_preset(self.baseline)
        return self


class MemorySettings(Strict):
    """What is held back of a memory: CUDA context, workspaces, graphs, fragmentation."""

    reserve_frac: Annotated[float, Field(gt=0, lt=1)] = 0.05


class Scenario(Strict):
    """One question: a model on a machine with a selector, a routing and a workload."""

    name: Annotated[str, Field(min_length=1)]
    model: ModelShape
    hardware: str
    selector: AnySelector
    routing: Routing
    workload: Workload
    memory: MemorySettings = MemorySettings()
    sweep: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(default_factory=dict)
    compare: Compare = Compare()

    def check_selector(self) -> None:
        """Refuse to select what cannot be selected from, and settings that do not work out.

        Raises
        ------
        ValueError
            Saying why: MLA, a layer without attention, more dense layers than there are, a
            policy that leaves no prompt.
        """
        self.resolved_selector()
        dense = self.selector.dense_layers()
        if dense > self.model.layers:
            raise ValueError(f"{dense} dense layers, but {self.model.name} has {self.model.layers}")
        if not self.selector.query_conditioned:
            return
        obstacle = "multi-head latent attention" if self.model.mla else ""
        for layer in range(self.model.layers):
            if self.model.mixer(layer) not in ATTENDS:
                obstacle = f"layer {layer} is {self.model.mixer(layer)!r}, without attention"
                break
        if self.model.other_layers:
            obstacle = "layers of several sizes"
        if not self.model.full_layers():
            obstacle = "no layer with full attention"
        if obstacle:
            kind = self.selector.kind
            raise ValueError(f"selector {kind} on {self.model.name}: {obstacle}; use kind: dense")

    def resolved_selector(self) -> Selector:
        """Return the selector with its workload-dependent settings worked out."""
        load = self.workload
        return self.selector.resolve(load.input_tokens, load.output_tokens, self.model.head_dim)

    @property
    def mode(self) -> str:
        """What a real run calls this point: its routing, or ``dense`` where nothing is routed."""
        return self.routing.name if self.selector.query_conditioned else "dense"

    def with_routing(self, preset: str) -> Scenario:
        """Return this point with another routing; settings the preset leaves open stay."""
        fields = self.routing.model_dump() | {"mix": None} | expand_preset(preset)
        return self.model_copy(update={"routing": Routing(**fields)})

    def with_dense(self) -> Scenario:
        """Return this point with dense attention over the whole cache."""
        return self.model_copy(update={"selector": Dense()})


def find_scenario(name: str) -> Path:
    """Return the file of a scenario given by path, or by the name of a shipped one.

    Raises
    ------
    InputError
        If it is a name, and of neither.
    """
    file, by_name = Path(name), shipped("scenarios") / f"{name}.yaml"
    if is_there(file):
        return file
    if is_there(by_name):
        return by_name
    if not file.suffix:
        known = sorted(shipped_file.stem for shipped_file in by_name.parent.glob("*.yaml"))
        written = file.with_suffix(".yaml") if file.name else file
        hint = f"Did you mean {str(written)!r}?" if is_there(written) else ""
        raise InputError(f"no scenario {name!r}", hint or nearest_hint(file.name, known))
    return file


def load_scenario(file: Path, overrides: Sequence[str] = ()) -> tuple[Scenario, list[Scenario]]:
    """Read a scenario and return (its base point, every point of its sweep).

    Parameters
    ----------
    overrides
        ``key=value`` texts of ``--set``; a swept key that is set is no longer swept.

    Raises
    ------
    InputError
        With file, line and key of what is wrong.
    """
    document = read_yaml(file)
    data = copy.deepcopy(document.data)
    folder = file.parent
    _expand(data, document, folder)
    set_paths = [_apply_override(text, data, folder) for text in overrides]
    document = replace(document, overrides=dict.fromkeys(set_paths))
    sweep = data.get("sweep")
    if isinstance(sweep, dict):
        for path in set_paths:
            sweep.pop(".".join(map(str, path)), None)
    base = _checked(data, document, folder)
    return base, _grid(base, data, document, folder)


def _checked(data: dict[str, Any], document: Document, folder: Path) -> Scenario:
    """Return the scenario, its parts checked against each other."""
    point = validate(Scenario, data, document)
    for key, check in (
        ("hardware", lambda: find_profile(point.hardware, folder)),
        ("selector", point.check_selector),
        ("routing", lambda: point.routing.anchors(point.model.layers)),
        ("routing", lambda: point.routing.check_widths(point.model)),
    ):
        try:
            check()
        except ValueError as error:
            raise document.value_error(error, at=(key,)) from None
    return point


def schema() -> dict[str, Any]:
    """Return the JSON schema of a scenario file, for editors."""
    result = Scenario.model_json_schema()
    properties = result["properties"]
    text = {"type": "string", "description": "a preset, or the path of a config.json"}
    properties["model"] = {"anyOf": [text, properties["model"]]}
    properties["routing"] = {"anyOf": [{"enum": list(PRESETS)}, properties["routing"]]}
    return result


def _expand(data: dict[str, Any], document: Document, folder: Path) -> None:
    """Replace presets by the mappings they stand for, in place."""
    selector = data.get("selector")
    if isinstance(selector, dict) and selector.get("kind") == "dense":
        data.setdefault("routing", "gpu-target")  # nothing is routed
    for key, expand in (
        ("model", lambda value: expand_model(value, folder)),
        ("routing", lambda value: expand_preset(value) if isinstance(value, str) else value),
    ):
        if key in data:
            try:
                data[key] = expand(data[key])
            except ValueError as error:
                raise document.value_error(error, at=(key,)) from None


def _apply_override(text: str, data: dict[str, Any], folder: Path) -> Path_:
    """Set one ``key=value`` in `data` and return its path."""
    key, equals, value_text = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise InputError(f"{text!r} is not KEY=VALUE", "Such as workload.batch=4", file="--set")
    value = parse_scalar(value_text)
    path: Path_ = tuple(key.split("."))
    if path[0] == "sweep" and len(path) > 1:
        path = ("sweep", ".".join(map(str, path[1:])))
    place = Document(Path("--set"), data, {}, {path: None})
    try:
        _put(data, path, value, folder)
    except ValueError as error:
        raise place.value_error(error, at=path) from None
    return path


def _put(data: dict[str, Any], path: Path_, value: Any, folder: Path) -> None:
    """Put `value` at `path`; a routing preset keeps the settings it leaves open."""
    *parents, last = path
    node: Any = data
    for part in parents:
        if not isinstance(node, dict) or not isinstance(node.get(str(part), {}), dict):
            raise ValueError(f"{part!r} has no keys below it")
        node = node.setdefault(str(part), {})
    if path == ("routing",) and isinstance(value, str):
        kept = node.get("routing")
        open_settings = (
            {k: v for k, v in kept.items() if k != "mix"} if isinstance(kept, dict) else {}
        )
        value = open_settings | expand_preset(value)
    elif path == ("model",):
        value = expand_model(value, folder)
    node[str(last)] = value


def _grid(base: Scenario, data: dict[str, Any], document: Document, folder: Path) -> list[Scenario]:
    """Return every point of the full grid, in file order, the last key fastest.

    Of a selector that routes nothing, points that differ in routing are one and the same: it is
    there once.
    """
    known = [path for path in key_paths(Scenario) if path.split(".")[0] not in ("sweep", "name")]
    for key in base.sweep:
        if key not in known:
            raise document.error(
                "unknown key", nearest_key_hint(key.split(".")[-1], known), at=("sweep", key)
            )
    for key, values in base.sweep.items():
        doubled = [value for i, value in enumerate(values) if value in values[:i]]
        if doubled:
            raise document.error(f"{doubled[0]!r} is there twice", "Delete one", at=("sweep", key))
    if math.prod(map(len, base.sweep.values())) > _MOST_POINTS:
        raise document.error(f"more than {_MOST_POINTS} points", "Sweep less", at=("sweep",))
    points: list[Scenario] = []
    named: dict[str, int] = {}
    unrouted: set[str] = set()
    for indices in itertools.product(*(range(len(values)) for values in base.sweep.values())):
        point = copy.deepcopy(data) | {"sweep": {}}
        swept: dict[Path_, int | None] = {}
        for (key, values), index in zip(base.sweep.items(), indices, strict=True):
            path: Path_ = tuple(key.split("."))
            at = ("sweep", key, index)
            swept[path] = document.place(at)[1]
            try:
                _put(point, path, copy.deepcopy(values[index]), folder)
            except ValueError as error:
                raise document.value_error(error, at=at) from None
        places = replace(document, overrides=swept | dict(document.overrides))
        made = _checked(point, places, folder)
        if not made.selector.query_conditioned:
            same = repr(made.model_copy(update={"routing": base.routing}))
            if same in unrouted:
                continue
            unrouted.add(same)
        points.append(made)
        if "model" in base.sweep:
            # Results tell models apart by their names.
            index = indices[list(base.sweep).index("model")]
            if named.setdefault(points[-1].model.name, index) != index:
                hint = "Give each its own: {preset: ..., name: ...}"
                raise document.error("two models have one name", hint, at=("sweep", "model", index))
    return points
