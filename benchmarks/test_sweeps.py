"""Points a second over the size of a sweep, how memory grows with it, and the start."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def child(*args: str) -> tuple[float, float]:
    """Return seconds of CPU time and peak MiB of a Python process."""
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, "
        "stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL); "
        "r = resource.getrusage(resource.RUSAGE_CHILDREN); "
        "print(r.ru_utime + r.ru_stime, r.ru_maxrss / 1024)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, sys.executable, *args], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    seconds, size = done.stdout.split()
    return float(seconds), float(size)


def swept(folder: Path, routings: int, hardware: str) -> tuple[int, float, float]:
    """Return points, CPU seconds and peak MiB of a part of the million-point sweep."""
    names = ["gpu-target", "gpu-target-fused", "gpu_side-mid", "cpu-target", "cpu-mid"][:routings]
    sets = {
        "sweep.model": "[llama-3.1-8b]",
        "sweep.hardware": hardware,
        "sweep.routing": f"[{', '.join(names)}]",
        "sweep.selector.top_pages": "[32]",
    }
    options = [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]
    out = folder / f"{routings}-{len(hardware)}"
    seconds, size = child("-m", "essim", "sweep", "million", "--out", str(out), *options)
    return 2000 * routings * (hardware.count(",") + 1), seconds, size


def test_a_point_costs_the_same_in_a_larger_sweep(tmp_path, benchmark, ratio) -> None:
    small = benchmark.pedantic(swept, (tmp_path, 1, "[h200-sxm]"))
    large = swept(tmp_path, 5, "[h200-sxm, h100-sxm, l40s]")
    points, seconds = large[0] - small[0], large[1] - small[1]
    what = f"CPU time of a further point, {large[0]:,} over {small[0]:,} points"
    each = seconds / points
    start = small[1] - small[0] * each
    ratio(what, f"{each / (small[1] / small[0]):.2f}", f"{each * 1e6:.0f} us; start {start:.1f} s")
    what = f"peak memory, {large[0]:,} over {small[0]:,} points"
    ratio(what, f"{large[2] / small[2]:.2f}", f"{large[2]:.0f} MiB over {small[2]:.0f}")


@pytest.mark.parametrize("command", ["--help", "run earlyselect-40k"])
def test_the_start_over_pythons_own(command: str, benchmark, ratio) -> None:
    own = min(child("-c", "pass")[0] for _ in range(3))
    benchmark.pedantic(child, ("-m", "essim", *command.split()), rounds=3)
    mine = min(child("-m", "essim", *command.split())[0] for _ in range(3))
    ratio(f"essim {command} over an empty Python", f"{mine / own:.1f}", f"{mine:.2f} s of CPU time")
