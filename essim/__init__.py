"""Simulate sparse KV selection in decoding: earlier routing, elsewhere, on real hardware."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from essim.api.calls import load_profile, memory, plot, read, run, sweep, timeline
    from essim.api.results import MemoryReport, Result
    from essim.errors import AbsentError, EssimError, InputError, PricingError
    from essim.simulate.step_model import Segment, StepModel

__all__ = [
    "AbsentError",
    "EssimError",
    "InputError",
    "MemoryReport",
    "PricingError",
    "Result",
    "Segment",
    "StepModel",
    "load_profile",
    "memory",
    "plot",
    "read",
    "run",
    "sweep",
    "timeline",
]

_HOMES = {
    "essim.api.calls": ("load_profile", "memory", "plot", "read", "run", "sweep", "timeline"),
    "essim.api.results": ("MemoryReport", "Result"),
    "essim.errors": ("AbsentError", "EssimError", "InputError", "PricingError"),
    "essim.simulate.step_model": ("Segment", "StepModel"),
}


def __getattr__(name: str) -> Any:
    """Import the module of a name when it is first used: numpy and pydantic take a while."""
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'essim' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
