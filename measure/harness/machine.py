"""Facts about the machine a measurement ran on, and how many threads it may use."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
from collections.abc import Sequence
from pathlib import Path

from essim.errors import AbsentError
from measure.kernels.build import compiler_version

ROOT = Path("/")


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _limit_v2(folder: Path) -> float | None:
    """CPUs of a cgroup v2 folder: ``cpu.max`` holds quota and period in microseconds."""
    fields = (_read(folder / "cpu.max") or "").split()
    if len(fields) != 2 or fields[0] == "max":
        return None
    return int(fields[0]) / int(fields[1])


def _limit_v1(folder: Path) -> float | None:
    """CPUs of a cgroup v1 folder; a quota of -1 is none."""
    quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
    if quota is None or period is None or int(quota) <= 0:
        return None
    return int(quota) / int(period)


def cpu_quota(root: Path = ROOT) -> float | None:
    """CPUs that the cgroup and its ancestors grant, None without a limit (versions 1 and 2)."""
    limits: list[float] = []
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        limit = _limit_v1 if controllers else _limit_v2
        folder = top / path.lstrip("/")
        # A container sees its own cgroup as the top, whatever its path says.
        for place in {top, folder, *(p for p in folder.parents if p.is_relative_to(top))}:
            found = limit(place)
            if found is not None:
                limits.append(found)
    return min(limits, default=None)


def thread_count(root: Path = ROOT, affinity: int | None = None) -> int:
    """Threads worth starting: min(affinity, floor(cgroup quota)), at least 1.

    More threads than the quota are throttled together, which costs far more than they bring.
    """
    cpus = len(os.sched_getaffinity(0)) if affinity is None else affinity
    quota = cpu_quota(root)
    return cpus if quota is None else max(1, min(cpus, int(quota)))


def cpu_model(root: Path = ROOT) -> str | None:
    """Name of the CPU."""
    for line in (_read(root / "proc/cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return None


def caches(root: Path = ROOT) -> list[str]:
    """Caches of the first CPU, such as ``L2 Unified 2048K shared by 0-1``."""
    found = []
    for folder in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size, cpus = (
            _read(folder / name) for name in ("level", "type", "size", "shared_cpu_list")
        )
        found.append(f"L{level} {kind} {size} shared by {cpus}")
    return found


def memory_bytes(root: Path = ROOT) -> int | None:
    """Main memory."""
    for line in (_read(root / "proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return None


def library_version(name: str) -> str | None:
    """Version of an installed distribution, None where it is absent."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def machine_facts(
    libraries: Sequence[str] = ("numpy",), compiler: str = "g++", root: Path = ROOT
) -> dict[str, object]:
    """Everything a reader needs to judge a measurement, as plain values for YAML or JSON."""
    try:
        compiled_by: str | None = compiler_version(compiler)
    except AbsentError:
        compiled_by = None
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "cpu": cpu_model(root),
        "cores": os.cpu_count(),
        "threads": thread_count(root),
        "caches": caches(root),
        "memory_bytes": memory_bytes(root),
        "kernel": platform.release().split("-")[0],
        "compiler": compiled_by,
        "python": platform.python_version(),
        "libraries": {name: library_version(name) for name in libraries},
    }
