"""Scenario: what is asked, and what its parts must have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from essim.errors import BadValueError, InputError
from essim.hardware.profile import shipped
from essim.methods.routing import PRESETS, Routing, expand_preset
from essim.methods.selectors import AnySelector, Selector
from essim.methods.selectors.dense import Dense
from essim.model.shape import ATTENDS, Count, ModelShape
from essim.text.files import is_folder, is_there
from essim.text.yaml import Strict, nearest_hint

# Keys of a scenario that `essim.serving` reads: traffic, and how it is served.
SERVING_KEYS = ("traffic", "slo", "server", "plan")


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
        BadValueError
            Saying why: MLA, a layer without attention, more dense layers than there are, a
            policy that leaves no prompt.
        """
        self.resolved_selector()
        dense = self.selector.dense_layers()
        if dense > self.model.layers:
            message = f"{dense} dense layers, but {self.model.name} has {self.model.layers}"
            raise BadValueError(message)
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
            message = f"selector {kind} on {self.model.name}: {obstacle}"
            raise BadValueError(message, "Use kind: dense")

    def check_anchor(self) -> None:
        """Refuse an early anchor for a method that routes nothing in a step.

        Raises
        ------
        BadValueError
            With its reason.
        """
        selector, anchor = self.selector, self.routing.anchor
        if self.routing.early and selector.unrouted:
            message = f"anchor {anchor} with selector {selector.kind}: {selector.unrouted}"
            raise BadValueError(message, "Use routing: gpu-target")

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
        fields = self.routing.model_dump() | expand_preset(preset)
        if fields["anchor"] != "mix":
            fields |= {"mix": None, "profile": None}
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
    if name and is_folder(file):
        raise InputError("is a folder", "Give a scenario in it", file=file)
    if is_there(by_name):
        return by_name
    if not file.suffix:
        known = sorted(shipped_file.stem for shipped_file in by_name.parent.glob("*.yaml"))
        written = file.with_suffix(".yaml") if file.name else file
        hint = f"Did you mean {str(written)!r}?" if is_there(written) else ""
        raise InputError(f"no scenario {name!r}", hint or nearest_hint(file.name, known))
    return file


def schema() -> dict[str, Any]:
    """Return the JSON schema of a scenario file, for editors: all that a file may write.

    A file may write more than a `Scenario` has, since presets are expanded first: a model by
    name, by path or from ``preset:``, a routing by name, none for dense attention or where it is
    swept.
    """
    result = Scenario.model_json_schema()
    properties, definitions = result["properties"], result["$defs"]
    name = {"type": "string", "description": "a preset, or the path of a config.json"}
    shape = definitions["ModelShape"]
    fields = {"preset": name} | shape["properties"]
    definitions["ModelFrom"] = shape | {"properties": fields, "required": ["preset"]}
    started = {"$ref": "#/$defs/ModelFrom"}
    properties["model"] = {"anyOf": [name, started, properties["model"]]}
    properties["routing"] = {"anyOf": [{"enum": list(PRESETS)}, properties["routing"]]}
    for kind in properties["selector"]["discriminator"]["mapping"].values():
        definitions[kind.rsplit("/", 1)[-1]].setdefault("required", []).append("kind")
    result["required"].remove("routing")
    dense = {"properties": {"selector": {"properties": {"kind": {"const": "dense"}}}}}
    swept = {"properties": {"sweep": {"required": ["routing"]}}, "required": ["sweep"]}
    result["anyOf"] = [dense, swept, {"required": ["routing"]}]
    return result
