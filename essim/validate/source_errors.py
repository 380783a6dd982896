"""What prices are off by where tables end: ``python -m essim.validate.source_errors``.

It predicts what was measured from other measurements and writes ``essim/step/errors.json``: the
last tick of an axis from those before, heads and widths of the surveys from the tables of one
shape, GEMMs from other GEMMs, routers from other routers, and every table's points from the
roofline.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from essim.hardware.interpolation import Grid
from essim.hardware.profile import HardwareProfile, load_profile, shipped
from essim.methods.routing import Routing
from essim.methods.selectors.rocketkv import RocketKV
from essim.model.shape import PRESETS, ModelShape
from essim.step.errors import FILE, PERCENTILES
from essim.step.kinds import KINDS, Case, Point
from essim.step.like import form_of, measured_routers
from essim.step.price import CostModel
from essim.step.transfer import roofline_s

_MODEL = PRESETS["llama-3.1-8b"]
_INLINE = Routing(where="gpu", anchor="target")
_SURVEYS = {
    **{"attn_dense": "attention", "attn_sparse": "attention"},
    **{"gpu_route_fused": "router", "gpu_route_stepwise": "router"},
}
_WIDTHS = {"norm": "hidden", "act": "ffn"}
# Beyond so many pairs of sequence and KV head a survey is past the tables' last batch.
_MOST_PAIRS = 32 * 8
_ROOFLINED = (
    *("embed", "norm", "rope", "act", "gemm_qkv", "gemm_o", "gemm_gate_up", "gemm_down"),
    *("attn_dense", "attn_sparse", "gpu_route_stepwise", "gpu_route_fused"),
)
# Of each router, however many points it was measured at.
_QUANTILES = 21
# Where nothing here can tell: percentiles that are guessed, and said to be.
_GUESSED = {
    "published": (-0.3, -0.2, -0.08, 0.0, 0.08, 0.2, 0.3),
    "scaled": (-0.7, -0.4, -0.15, 0.0, 0.15, 0.4, 0.7),
    "assumed": (-1.0, -0.7, -0.3, 0.0, 0.3, 0.7, 1.0),
    "device gemm": (-0.5, -0.25, -0.1, 0.0, 0.1, 0.25, 0.5),
    "device other": (-0.7, -0.4, -0.15, 0.0, 0.15, 0.4, 0.7),
    "device cpu": (-1.0, -0.7, -0.3, 0.0, 0.3, 0.7, 1.0),
    "transferred cpu": (-0.7, -0.5, -0.2, 0.0, 0.2, 0.5, 0.7),
}


def case_of(model: ModelShape, top_pages: int = 32, routing: Routing = _INLINE) -> Case:
    """Return a case of RocketKV as the H200's tables have it."""
    selector = RocketKV(
        prompt_budget=1 << 20, page_tokens=4, top_pages=top_pages, kv_block_tokens=4
    )
    return Case(model, selector, routing)


def survey_rows(profile: HardwareProfile, table: str) -> Iterator[dict[str, float]]:
    """Yield the points of a survey: its axes, and the median time as ``time_s``."""
    with (profile.file.with_suffix("") / "survey" / f"{table}.csv").open() as file:
        for row in csv.DictReader(file):
            axes = {key: float(row[key]) for key in row if row[key].isdigit()}
            yield axes | {"time_s": float(row["p50_s"])}


def head_errors(profile: HardwareProfile) -> dict[str, list[float]]:
    """Return log errors of attention and routers of other heads, by family."""
    found: dict[str, list[float]] = defaultdict(list)
    for table, family in _SURVEYS.items():
        for row in survey_rows(profile, table):
            kv_heads, group, batch = (int(row[key]) for key in ("kv_heads", "group", "batch"))
            if (kv_heads, group) == (8, 4) or batch * kv_heads > _MOST_PAIRS:
                continue
            model = _MODEL.model_copy(update={"kv_heads": kv_heads, "heads": kv_heads * group})
            tokens, sparse = int(row["tokens"]), table == "attn_sparse"
            case = case_of(model, tokens // 4 if sparse else 32)
            at = Point(batch, batch, np.array([8192 if sparse else tokens]))
            price = CostModel(profile, case).price(table, at)
            found[family].append(float(np.log(row["time_s"] / price.mean_s[0])))
    return found


def width_errors(profile: HardwareProfile) -> list[float]:
    """Return log errors of norms and activations of other widths, without their survey."""
    alone, found = replace(profile, surveys={}), []
    for table, width in _WIDTHS.items():
        for row in survey_rows(profile, table):
            model = _MODEL.model_copy(update={width: int(row[width])})
            rows = int(row["rows"])
            price = CostModel(alone, case_of(model)).price(table, Point(rows, rows, np.array([64])))
            found.append(float(np.log(row["time_s"] / price.mean_s[0])))
    return found


def gemm_errors(profile: HardwareProfile) -> list[float]:
    """Return log errors of GEMMs, each shape by a fit without it and others."""
    forms = [profile.gemm_forms(dtype, size) for dtype, size in (("bf16", 2.0), ("fp8", 1.0))]
    return [float(error) for pair in forms if pair for form in pair for error in form.errors]


def edge_errors(profile: HardwareProfile) -> list[float]:
    """Return log errors of each axis' last tick, predicted by the ticks before it."""
    found: list[float] = []
    for name, table in profile.tables.items():
        for grid in table.grids.values() if name != "gpu_side_slowdown" else ():
            for i, axis in enumerate(grid.axes):
                if len(axis) > 3:
                    found += _edge(grid, i, table.axes)
    return found


def _edge(grid: Grid, i: int, names: Sequence[str]) -> list[float]:
    axes = tuple(axis[:-1] if j == i else axis for j, axis in enumerate(grid.axes))
    inside = {name: np.take(v, range(len(axes[i])), axis=i) for name, v in grid.values.items()}
    last = [axis[-1:] if j == i else axis for j, axis in enumerate(grid.axes)]
    points = [part.ravel() for part in np.meshgrid(*last, indexing="ij")]
    guess_s = Grid(axes, inside, grid.jumps).rising(names).beyond_s(points, names)
    errors = np.log(grid.at(points).mean_s / guess_s)
    return [float(error) for error in errors]


def roofline_errors(profile: HardwareProfile) -> list[float]:
    """Return the log error of each op kind's roofline, its median over batches and contexts."""
    found = []
    for kind in _ROOFLINED:
        errors = []
        for batch in (1, 4, 16):
            for context in (4200, 8200, 12200):
                case, at = case_of(_MODEL), Point(batch, batch, np.array([context]))
                price = CostModel(profile, case).price(kind, at).mean_s
                least = roofline_s(KINDS[kind].work(case, at), profile, case)
                errors.append(float(np.log(price / least)[0]))
        found.append(float(np.median(errors)))
    return found


def like_errors(profile: HardwareProfile) -> list[float]:
    """Return log errors of measured routers, each by a form without it; all count alike."""
    found: list[float] = []
    for name, (features, times_s) in measured_routers(profile).items():
        form = form_of(profile, without=name)
        if form is not None:
            errors = np.log(times_s / (features @ form.scan))
            found += np.quantile(errors, np.linspace(0, 1, _QUANTILES)).tolist()
    return found


def percentiles(errors: list[float]) -> list[float]:
    """Return the percentiles that are kept, about their median: a price is taken as it is."""
    at = np.percentile(errors, PERCENTILES)
    return [round(float(value - at[PERCENTILES.index(50)]), 4) for value in at]


def source_errors() -> dict[str, dict[str, Any]]:
    """Return the percentiles of every kind of error, and what they rest on."""
    profile = load_profile(shipped("hardware_profiles") / "h200-sxm.yaml")
    heads = head_errors(profile)
    measured = {
        "transferred gemm": (gemm_errors(profile), "GEMMs of h200-sxm, left out by shape"),
        "transferred attention": (heads["attention"], "attention of other heads, h200-sxm/survey"),
        "transferred router": (heads["router"], "routers of other heads, h200-sxm/survey"),
        "transferred elementwise": (width_errors(profile), "other widths, h200-sxm/survey"),
        "transferred like": (like_errors(profile), "each router of h200-sxm by the others"),
        "extrapolated": (edge_errors(profile), "last ticks of h200-sxm by those before"),
        "roofline": (roofline_errors(profile), "an error a measured op kind of h200-sxm"),
    }
    measured["transferred other"] = measured["transferred router"]
    found: dict[str, dict[str, Any]] = {
        name: {"log_error": percentiles(errors), "points": len(errors), "basis": basis}
        for name, (errors, basis) in measured.items()
    }
    for name, values in _GUESSED.items():
        found[name] = {"log_error": list(values), "points": 0, "basis": "guessed"}
    return found


if __name__ == "__main__":
    FILE.write_text(json.dumps(source_errors(), indent=2) + "\n", encoding="utf-8")
