"""The modes of a decode run: a routing (`essim.methods.routing`) by name, or dense attention."""

from __future__ import annotations

from collections.abc import Sequence

from essim.errors import AbsentError, InputError
from essim.methods.routing import PRESETS, Early, Routing, expand_preset
from essim.text.yaml import nearest_hint

# On a machine without a GPU `gpu` is the main core, and routing there is torch.
CPU_MODES = ("dense", "gpu-target", "cpu-target", "cpu-in", "cpu-mid", "cpu-mix")
GPU_MODES = (*CPU_MODES, "gpu-target-fused", "gpu_side-mid", "gpu_side-mid-fused")


def check_mode(mode: str, *, gpu: bool) -> None:
    """Raise for a mode that does not exist, or that this kind of machine cannot run."""
    if mode not in PRESETS and mode != "dense":
        raise InputError(f"no mode {mode!r}", nearest_hint(mode, ["dense", *PRESETS]))
    here = GPU_MODES if gpu else CPU_MODES
    if mode in here:
        return
    if mode in GPU_MODES:
        raise AbsentError(f"mode {mode} needs a GPU", f"Without one: {', '.join(CPU_MODES)}")
    raise AbsentError(f"no decode run of mode {mode}", f"There are: {', '.join(here)}")


def routing_of(
    mode: str,
    layers: int,
    *,
    rank: int,
    channels: int,
    threads: int,
    mix: Sequence[Early] | None = None,
) -> Routing:
    """Return the routing of a mode; of ``dense`` one that a dense selector never uses.

    Parameters
    ----------
    mix
        For ``cpu-mix``: ``in`` or ``mid`` of target layers 1, 2, ...
    """
    if (mode == "cpu-mix") != (mix is not None) or (mix is not None and len(mix) != layers - 1):
        raise InputError(
            f"mode {mode}: mix is {'not given' if mix is None else list(mix)}",
            f"cpu-mix needs a list of {layers - 1} anchors, no other mode takes one",
        )
    preset = expand_preset("gpu-target" if mode == "dense" else mode)
    settings = {"projection_rank": rank, "channels": channels, "cpu_threads": threads}
    listed = {} if mix is None else {"mix": list(mix)}
    return Routing.model_validate(preset | settings | listed)
