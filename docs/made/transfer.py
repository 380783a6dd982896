"""How far prices are off outside the tables."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import cache
from pathlib import Path
from statistics import mean

from essim.simulate.plan import load_scenario
from essim.simulate.sweep import Simulator
from essim.step.errors import FILE, PERCENTILES
from made.data import ROOT, csv_rows, table

SHAPES = ROOT / "reports" / "data" / "h200-shapes"
MODES = {
    "dense": "dense",
    "gpu-target": "stepwise router inline",
    "gpu-target-fused": "fused router inline",
    "gpu_side-mid": "stepwise router beside",
    "gpu_side-mid-fused": "fused router beside",
}


@cache
def cells() -> list[tuple[str, str, float, bool]]:
    """Return shape, mode, error and whether the measured step is inside its interval."""
    found = []
    for folder in sorted(path for path in SHAPES.iterdir() if path.is_dir()):
        measured_s: dict[tuple[object, ...], list[float]] = defaultdict(list)
        for row in csv_rows(folder / "decode.csv"):
            at = row["mode"], int(row["batch"]), int(row["context_tokens"])
            measured_s[at].append(float(row["mean_s"]))
        for row in _predicted(folder):
            mode = "dense" if row["routing"] == "none" else row["routing"]
            times = measured_s.get((mode, row["batch"], row["input_tokens"]))
            if times:
                step_s, batch = mean(times), row["batch"]
                low, high = (batch / row[f"decode_tokens_per_s_p{p}"] for p in (95, 5))
                error = row["step_s"] / step_s - 1
                found.append((folder.name, str(mode), error, low <= step_s <= high))
    return found


def _predicted(folder: Path):  # type: ignore[no-untyped-def]
    about = json.loads((folder / "provenance.json").read_text())
    sizes = ", ".join(f"{key}: {size}" for key, size in about["sizes"].items())
    file = ROOT / "scenarios" / "validate-shapes.yaml"
    _, points = load_scenario(file, [f"model={{name: {folder.name}, {sizes}}}"])
    return Simulator().rows(points)


def _summary(name: str, own: list[tuple[str, str, float, bool]]) -> list[str]:
    errors = [100 * error for _, _, error, _ in own]
    worst = max(errors, key=abs)
    inside = sum(inside for *_, inside in own)
    average = mean(map(abs, errors))
    return [
        *(name, str(len(own)), f"{mean(errors):+.1f} %", f"{average:.1f} %", f"{worst:+.1f} %"),
        f"{inside} of {len(own)}",
    ]


HEADER = ("", "cells", "bias", "MAPE", "worst", "inside its 90 % interval")


def shapes() -> list[str]:
    """Return errors by shape."""
    names = dict.fromkeys(name for name, *_ in cells())
    rows = [_summary(name, [cell for cell in cells() if cell[0] == name]) for name in names]
    return table(HEADER, [*rows, _summary("all", cells())])


def shape_modes() -> list[str]:
    """Return errors by mode."""
    rows = [
        _summary(text, [cell for cell in cells() if cell[1] == mode])
        for mode, text in MODES.items()
    ]
    return table(HEADER, rows)


def source_errors() -> list[str]:
    """Return what prices are off by, by source and family."""
    rows = []
    for name, error in json.loads(FILE.read_text()).items():
        at = dict(zip(PERCENTILES, error["log_error"], strict=True))
        ends = [f"{100 * (2.718281828459045 ** at[p] - 1):+.0f} %" for p in (5, 25, 75, 95)]
        rows.append([f"`{name}`", *ends, error["basis"], str(error["points"] or "-")])
    return table(("price", "5 %", "25 %", "75 %", "95 %", "rests on", "points"), rows)


def public() -> list[str]:
    """Return errors against public tables of other GPUs."""
    wanted = ("gemm, rows <= 64", "gemm, rows > 64", "attn_dense of models")
    kinds = dict(zip(wanted, ("GEMMs, up to 64 rows", "GEMMs, more", "attention"), strict=True))
    rows = []
    for row in csv_rows(ROOT / "reports" / "data" / "public-tables" / "carry.csv"):
        if row["kind"] in kinds:
            shown = ("bias", "median", "p90", "within_median", "within_p90")
            numbers = [row[f"{name}_percent"] for name in shown]
            rows.append([row["profile"], kinds[row["kind"]], row["framework"], *numbers])
    head = ("profile", "op", "framework", "bias", "median", "p90", "median within", "p90 within")
    return table(head, sorted(rows, key=lambda row: (row[0], row[1], row[2])))


def dense_steps() -> list[str]:
    """Return dense decode steps as essim predicts them, beside a public tool's estimates."""
    simulator, rows = Simulator(), []
    for row in csv_rows(ROOT / "reports" / "data" / "public-tables" / "dense-steps.csv"):
        load = {"batch": row["batch"], "input_tokens": row["input_tokens"], "output_tokens": "2"}
        keys = ["selector={kind: dense}", f"hardware={row['profile']}"]
        keys += [f"workload.{key}={value}" for key, value in load.items()]
        base, _ = load_scenario(ROOT / "scenarios" / "earlyselect-40k.yaml", keys)
        (found,) = simulator.rows([base])
        step_s = found["step_s"]
        ours = "does not fit" if step_s is None else f"{1e3 * step_s:.2f}"
        theirs = [row[f"{name}_ms"] for name in ("vllm", "trtllm", "sglang")]
        rows.append([row["profile"], row["batch"], row["input_tokens"], ours, *theirs])
    head = ("profile", "batch", "context", "essim", "vllm", "trtllm", "sglang")
    return table(head, sorted(rows, key=lambda row: row[0]))
