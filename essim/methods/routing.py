"""Routing: where pages are chosen and from which hidden state (`where` x `anchor`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator

from essim.errors import BadValueError
from essim.model.shape import Count, ModelShape
from essim.text.problems import shown
from essim.text.yaml import Strict, nearest_hint, read_yaml, validate

Anchor = Literal["target", "in", "mid", "mix"]
Early = Literal["in", "mid"]


@dataclass(frozen=True)
class Placement:
    """What it means to route at one place; `essim.step.ops` has the ops of each.

    Attributes
    ----------
    stream
        The stream that its router runs on.
    device
        Whose router it is: page summaries and proxy factors lie in its memory.
    refused
        Anchors that make no sense there, and why.
    """

    stream: str
    device: Literal["gpu", "cpu"]
    refused: Mapping[Anchor, str] = field(default_factory=dict)

    @property
    def hands_over(self) -> bool:
        """Whether anchors, keys and indices go between the GPU and the router's own memory."""
        return self.device == "cpu"


_NO_OVERLAP = "inline routing overlaps with nothing, so an early anchor buys nothing"
PLACEMENTS = {
    "gpu": Placement("gpu", "gpu", dict.fromkeys(("in", "mid", "mix"), _NO_OVERLAP)),
    "gpu_side": Placement(
        *("gpu_side", "gpu"), {"target": "the layer's own query leaves nothing to overlap with"}
    ),
    "cpu": Placement("cpu", "cpu"),
}


def _known_place(name: Any) -> Any:
    if name not in list(PLACEMENTS):
        *most, last = map(repr, PLACEMENTS)
        hint = nearest_hint(str(name), list(PLACEMENTS))
        raise BadValueError(f"must be {', '.join(most)} or {last} (got {shown(name)})", hint)
    return name


def _list_places(schema: dict[str, Any]) -> None:
    schema["enum"] = list(PLACEMENTS)


Where = Annotated[str, BeforeValidator(_known_place), Field(json_schema_extra=_list_places)]

# The published shortcut for 32-layer models: Mid up to this target layer, In above.
_MIX_LAYERS = 32
_MIX_LAST_MID_LAYER = 20


class Routing(Strict):
    """Where routing runs, when its query exists, and its settings.

    Attributes
    ----------
    kernel
        GPU router: `stepwise` (a kernel a step) or `fused` (one kernel). Unused on the CPU.
    projection_rank
        Rank of the proxy projection for an early anchor; None is the full W_q.
    down_projection
        Which device computes the first factor of a low-rank projection.
    channels
        Key channels the scoring reads; None is all of head_dim.
    cpu_threads
        Threads of the CPU router's pool.
    mix
        For anchor `mix`: `in` or `mid` for each target layer 1..L-1, in order.
    profile
        For anchor `mix`: the file that `mix` was read from, as `essim fidelity` writes it.
    """

    where: Where
    anchor: Anchor
    kernel: Literal["stepwise", "fused"] = "stepwise"
    projection_rank: Count | None = 128
    down_projection: Literal["gpu", "cpu"] = "gpu"
    channels: Count | None = 32
    cpu_threads: Count = 8
    mix: list[Early] | None = None
    profile: str | None = None

    @model_validator(mode="after")
    def _sensible(self) -> Routing:
        refused = self.placement.refused
        if self.anchor in refused:
            allowed = ", ".join(anchor for anchor in get_args(Anchor) if anchor not in refused)
            raise BadValueError(
                f"where {self.where} with anchor {self.anchor} is refused: {refused[self.anchor]}",
                f"Anchors for {self.where}: {allowed}",
            )
        for key in ("profile", "mix"):
            if getattr(self, key) is not None and self.anchor != "mix":
                message = f"{key} is given, but anchor is {self.anchor}"
                raise BadValueError(message, "Use anchor: mix")
        return self

    @property
    def placement(self) -> Placement:
        """What `where` means."""
        return PLACEMENTS[self.where]

    @property
    def name(self) -> str:
        """Canonical name, such as ``cpu-mid`` or ``gpu-target-fused``."""
        fused = self.placement.device == "gpu" and self.kernel == "fused"
        return f"{self.where}-{self.anchor}" + ("-fused" if fused else "")

    @property
    def early(self) -> bool:
        """Whether the query comes from an earlier hidden state."""
        return self.anchor != "target"

    def check_widths(self, model: ModelShape) -> None:
        """Refuse widths that are given and above the model's own, which would cut them.

        Raises
        ------
        ValueError
            Saying which.
        """
        for key, most, of in (
            ("channels", model.head_dim, "head_dim"),
            ("projection_rank", model.hidden, "hidden"),
        ):
            given = getattr(self, key)
            if key in self.model_fields_set and given is not None and given > most:
                raise BadValueError(
                    f"{key} ({given}) is above {of} ({most})", f"Use {most} at most"
                )

    def anchors(self, layers: int) -> list[Anchor]:
        """Return the anchor of each target layer 1..layers-1.

        Raises
        ------
        BadValueError
            If `mix` is needed for this number of layers, or has the wrong length.
        """
        if self.anchor != "mix":
            return [self.anchor] * (layers - 1)
        if self.mix is not None:
            if len(self.mix) != layers - 1:
                what = f"the profile {self.profile}" if self.profile else "mix"
                raise BadValueError(
                    f"{what} has {len(self.mix)} entries, but {layers - 1} layers are routed",
                    "List the anchor of target layers 1, 2, ...",
                )
            return list(self.mix)
        if layers != _MIX_LAYERS:
            raise BadValueError(
                f"anchor mix needs a 'mix' list of {layers - 1} anchors for {layers} layers",
                f"Only {_MIX_LAYERS}-layer models have a published default; `essim fidelity` "
                "writes a profile",
            )
        return ["mid" if layer <= _MIX_LAST_MID_LAYER else "in" for layer in range(1, layers)]


class MixProfile(Strict):
    """An ES-Mix assignment as `essim fidelity` writes it.

    Attributes
    ----------
    model
        What it was profiled on.
    tau
        Mass that In may lose against Mid.
    mix
        As of `Routing`.
    """

    model: str
    tau: float
    mix: list[Early]


def read_profile(routing: dict[str, Any]) -> dict[str, Any]:
    """Return a routing's mapping with the `mix` of its `profile`, if it names one.

    Raises
    ------
    BadValueError
        If both are given.
    InputError
        If the file is not there or no profile.
    """
    profile = routing.get("profile")
    if not isinstance(profile, str) or routing.get("anchor") != "mix":
        return routing
    if routing.get("mix") is not None:
        raise BadValueError("both mix and profile are given", "Delete one")
    document = read_yaml(Path(profile))
    return routing | {"mix": validate(MixProfile, document.data, document).mix}


def mix_text(anchors: Sequence[str]) -> str:
    """Return anchors of layers in order, as many as follow each other: ``20 mid, 11 in``."""
    return ", ".join(f"{len(list(same))} {anchor}" for anchor, same in groupby(anchors))


PRESETS: dict[str, dict[str, str]] = {
    "gpu-target": {"where": "gpu", "anchor": "target", "kernel": "stepwise"},
    "gpu-target-fused": {"where": "gpu", "anchor": "target", "kernel": "fused"},
    "gpu_side-in": {"where": "gpu_side", "anchor": "in", "kernel": "stepwise"},
    "gpu_side-mid": {"where": "gpu_side", "anchor": "mid", "kernel": "stepwise"},
    "gpu_side-mix": {"where": "gpu_side", "anchor": "mix", "kernel": "stepwise"},
    "gpu_side-in-fused": {"where": "gpu_side", "anchor": "in", "kernel": "fused"},
    "gpu_side-mid-fused": {"where": "gpu_side", "anchor": "mid", "kernel": "fused"},
    "gpu_side-mix-fused": {"where": "gpu_side", "anchor": "mix", "kernel": "fused"},
    "cpu-target": {"where": "cpu", "anchor": "target"},
    "cpu-in": {"where": "cpu", "anchor": "in"},
    "cpu-mid": {"where": "cpu", "anchor": "mid"},
    "cpu-mix": {"where": "cpu", "anchor": "mix"},
}


def expand_preset(name: str) -> dict[str, str]:
    """Return the mapping that a routing preset stands for.

    Raises
    ------
    BadValueError
        If there is no such preset.
    """
    if name not in PRESETS:
        raise BadValueError(f"no routing {name!r}", nearest_hint(name, list(PRESETS)))
    return dict(PRESETS[name])
