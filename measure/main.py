"""``essim measure``: time this machine's kernels and write a hardware profile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from essim.hardware.profile import profile_folders
from measure.harness.table import Progress


def measure_machine(
    name: str, out: Path, quick: bool, on_progress: Callable[[str, Progress], None]
) -> Path:
    """Measure this machine and return the profile's YAML.

    Everything already in ``out/NAME/`` is kept: a run that was killed goes on where it stopped.

    Raises
    ------
    AbsentError
        If there are too few cores, or no compiler.
    InputError
        If tables there were measured with other kernels.
    """
    if torch.cuda.is_available():
        from measure.tables.gpu.machine import measure_gpu as measure
    else:
        from measure.tables.cpu.machine import measure_cpu as measure
    return measure(name, out, quick, on_progress)


def next_command(written: Path) -> str:
    """Return what to do with the profile that was written."""
    scenario = "earlyselect-40k" if torch.cuda.is_available() else "laptop"
    named = any(written.parent.resolve() == folder.resolve() for folder in profile_folders())
    hardware = written.stem if named else written.resolve()
    return f"essim sweep {scenario} --set hardware={hardware}"
