"""Whether a point can run on its machine."""

from __future__ import annotations

from essim.hardware.profile import HardwareProfile
from essim.simulate.memory import shortage
from essim.simulate.scenario import Scenario


def infeasible(point: Scenario, profile: HardwareProfile) -> str:
    """Return why a point cannot run on this machine, or an empty string."""
    load = point.workload
    final = load.input_tokens + load.output_tokens
    if final > point.model.max_context_tokens:
        return f"{final} tokens exceed the model's context of {point.model.max_context_tokens}"
    return cannot_route(point, profile) or shortage(point, profile)


def cannot_route(point: Scenario, profile: HardwareProfile) -> str:
    """Return why a point's routing cannot run on this machine at any size, or an empty string."""
    on_cpu = point.routing.placement.device == "cpu"
    if on_cpu and point.selector.off_cpu:
        return point.selector.off_cpu
    cores = profile.spec.cpu.cores.value
    if on_cpu and point.routing.cpu_threads > cores:
        return f"{point.routing.cpu_threads} router threads on {cores} cores"
    return ""
