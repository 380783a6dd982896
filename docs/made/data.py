"""What the docs quote: the shipped H200 profile, the runs in reports/data, what essim predicts."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

from essim.hardware.profile import HardwareProfile, find_profile, load_profile
from essim.simulate.plan import load_scenario
from essim.simulate.sweep import Simulator
from essim.validate.compare import Comparison, compare
from essim.validate.measured_run import read_facts, read_measured

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "reports" / "data"
H200_RUN, POOL_RUN = RUNS / "h200-decode", RUNS / "h200-pool"

BATCHES, CONTEXTS, BUDGETS = (1, 2, 4, 8, 16), (4480, 7424, 11520), (128, 256)
# Cells of the run of today's CPU router, all with 192 attended tokens.
POOL_BATCHES, POOL_CONTEXTS = (3, 5, 7, 11, 14), (4608, 5632, 7000, 9001, 11264)
GPU_MODES = ("gpu-target", "gpu-target-fused", "gpu_side-mid", "gpu_side-mid-fused")
CPU_MODES = ("cpu-target", "cpu-in", "cpu-mid", "cpu-mix")
MODES = ("dense", *GPU_MODES, *CPU_MODES)

Cell = tuple[str, int, int, int]
"""Mode, batch, context, attended tokens (of dense the context)."""


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    """Return a Markdown table's lines."""
    return [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *body)]


def csv_rows(file: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV."""
    with file.open() as opened:
        return list(csv.DictReader(opened))


def chain(name: str) -> list[dict[str, str]]:
    """Return the rows of one CSV of the profile's ``chain`` folder."""
    return csv_rows(ROOT / "hardware_profiles" / "h200-sxm" / "chain" / f"{name}.csv")


@cache
def profile(name: str = "h200-sxm") -> HardwareProfile:
    """Return a shipped profile."""
    return load_profile(find_profile(name, ROOT))


def table_us(name: str, *point: float, **keys: object) -> float:
    """Return the mean of a table of the H200 at a point, in microseconds."""
    grid = profile().tables[name].grid(keys)
    assert grid is not None, name
    return float(grid.at(point).mean_s) * 1e6


def floor_us(byte_count: float, launches: int) -> float:
    """Return bytes over the copy bandwidth plus launches, in microseconds."""
    gpu = profile().spec.gpu
    return 1e6 * (byte_count / gpu.bandwidth_bytes_per_s.value + launches * gpu.launch_s.value)


@cache
def steps_ms() -> dict[Cell, list[float]]:
    """Return milliseconds a step of each repetition of the run on an H200."""
    found: dict[Cell, list[float]] = defaultdict(list)
    for row in csv_rows(H200_RUN / "decode.csv"):
        batch, context, attended = (
            int(row[key]) for key in ("batch", "context_tokens", "attended_tokens")
        )
        found[row["mode"], batch, context, attended].append(float(row["mean_s"]) * 1e3)
    return dict(found)


@cache
def pool_steps_ms() -> dict[tuple[str, int, int], list[float]]:
    """Return milliseconds a step of each repetition of the run of today's CPU router."""
    found: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for row in csv_rows(POOL_RUN / "decode.csv"):
        at = row["mode"], int(row["batch"]), int(row["context_tokens"])
        found[at].append(float(row["mean_s"]) * 1e3)
    return dict(found)


def cell(mode: str, batch: int, context: int, attended: int = 128) -> Cell:
    """Return a cell's key."""
    return mode, batch, context, context if mode == "dense" else attended


def real_ms(mode: str, batch: int, context: int, attended: int = 128) -> float:
    """Return a cell's mean over its repetitions."""
    return mean(steps_ms()[cell(mode, batch, context, attended)])


Row = dict[str, Any]
"""A pair of a comparison, as `essim compare` has it."""


@cache
def compared(name: str) -> Comparison:
    """Return what is predicted for ``validate-NAME`` beside the shipped run ``NAME`` of it."""
    folder = {"h200": "h200-decode", "offgrid": "h200-offgrid", "h200-pool": "h200-pool"}[name]
    run = RUNS / folder / "decode.csv"
    _, points = load_scenario(ROOT / "scenarios" / f"validate-{name}.yaml")
    return compare(Simulator().rows(points), read_measured(run), read_facts(run))


def inside_count(pairs: Sequence[Row]) -> int:
    """Return how many measured steps are inside their predicted interval."""
    ends = [(p["predicted_low_s"], p["measured_s"], p["predicted_high_s"]) for p in pairs]
    return sum(low <= real <= high for low, real, high in ends)
