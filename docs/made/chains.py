"""Whole steps, neighbours, copies and graphs: what lies in the profile's ``chain`` folder."""

from __future__ import annotations

import itertools
from statistics import mean, median

import numpy as np

from essim.simulate.plan import load_scenario
from essim.step.kinds import Case, Point
from essim.step.price import CostModel
from made.data import ROOT, chain, profile, table

SIZES = {256: "256 B", 8 << 10: "8 KiB", 64 << 10: "64 KiB"}
SIZES |= {1 << 20: "1 MiB", 8 << 20: "8 MiB", 128 << 20: "128 MiB"}
# Trials in which a process came to use a third stream, and what turned it.
TURNED = {"1": "a kernel on a new stream", "2": "made cpu-mid"}
TURNED |= {"3": "made gpu_side-mid-fused", "4": "a kernel on a new stream"}


def _added(routing: str, kernel: str) -> dict[tuple[int, int], float]:
    """Microseconds a routed layer that a routing adds to a whole step, by batch and context."""
    return {
        (int(row["batch"]), int(row["context_tokens"])): float(row["added_us"])
        for row in chain("chain_routing")
        if (row["routing"], row["kernel"]) == (routing, kernel)
    }


def added_us(batch: int, context: int) -> str:
    """Return what the fused router adds inline."""
    return f"{_added('inline', 'fused')[batch, context]:.2f}"


def routing_added() -> list[str]:
    """What routing adds to a whole step, inline, beside, and as hand-over."""
    kinds = ("inline", "fused"), ("side", "fused"), ("inline", "stepwise")
    columns = [_added(*kind) for kind in (*kinds, ("side", "stepwise"), ("handover", "fused"))]
    body = [
        [str(batch), str(context), *(f"{column[batch, context]:.2f}" for column in columns)]
        for batch, context in sorted(columns[0])
    ]
    head = ("fused inline", "fused beside", "stepwise inline", "stepwise beside", "hand-over")
    return table(("batch", "S", *head), body)


def hosts() -> list[str]:
    """The CPU router beside copies and other routers."""
    names = ("beside", "routers", "threads", "batch", "context_tokens")
    body = [
        [row[name] for name in names]
        + [f"{float(row[name]):.1f}" for name in ("mean_us", "p50_us", "p99_us")]
        + [f"{100 * float(row['slowdown_frac']):.0f} %"]
        for row in chain("host")
    ]
    head = ("beside", "routers", "threads each", "batch", "S", "mean us", "median us")
    return table((*head, "99th percentile us", "slower"), body)


def _predicted_us(batch: int, context: int, counts: dict[str, int]) -> float:
    """What prices of a step's ops add up to, with what a long graph takes beyond.

    Sampling is in the head's price.
    """
    base, _ = load_scenario(ROOT / "scenarios" / "earlyselect-40k.yaml", [])
    case = Case(base.model, base.resolved_selector(), base.routing)
    costs = CostModel(profile(), case, strict=True)
    at = Point(batch, batch, np.array([context]))
    return sum(
        count * float(costs.price(op, at).mean_s[0]) * 1e6
        for op, count in (counts | {"host": 1}).items()
        if op != "sample"
    )


def _whole_steps() -> dict[tuple[int, int], dict[str, dict[str, str]]]:
    rows = sorted(
        chain("chain_prices"), key=lambda row: (int(row["batch"]), int(row["context_tokens"]))
    )
    points = itertools.groupby(rows, lambda row: (int(row["batch"]), int(row["context_tokens"])))
    return {point: {row["op"]: row for row in group} for point, group in points}


def whole_steps() -> list[str]:
    """Steps of a chain beside what prices add up to."""
    body = []
    for (batch, context), ops in _whole_steps().items():
        measured = float(ops.pop("step")["price_us"])
        ops.pop("sum of prices / step")
        predicted = _predicted_us(batch, context, {op: int(r["count"]) for op, r in ops.items()})
        cells = [
            f"{measured:.1f}",
            f"{predicted:.1f}",
            f"{100 * (predicted / measured - 1):+.2f} %",
        ]
        body.append([str(batch), str(context), *cells])
    return table(("batch", "S", "measured us", "predicted us", "error"), body)


def chain_sums() -> str:
    """Return what the differences by op add up to, over the step."""
    sums = [float(ops["sum of prices / step"]["price_us"]) for ops in _whole_steps().values()]
    return f"{100 * min(sums):.1f} to {100 * max(sums):.1f} %"


def _layers_us() -> dict[int, float]:
    return {int(row["layers"]): float(row["us_a_layer_more"]) for row in chain("graphs")}


def graph_layer_us() -> str:
    """Return what a layer more takes in graphs, but from 24 to 26 layers."""
    others = [us for layers, us in _layers_us().items() if layers != 26]
    return f"{min(others):.1f} to {max(others):.1f} us"


def graph_once_us() -> str:
    """Return what a layer more takes from 24 to 26 layers."""
    return f"{_layers_us()[26]:.1f} us"


def graph_beyond_us() -> str:
    """Return what these two layers take beyond others."""
    others = median(us for layers, us in _layers_us().items() if layers != 26)
    return f"{2 * (_layers_us()[26] - others):.0f} us"


def copies() -> list[str]:
    """Copies between the GPU and pinned memory over their size."""
    found = {(row["link"], int(row["size_bytes"])): float(row["copy_us"]) for row in chain("links")}
    body = [
        [label, *(f"{found[link, size]:.1f}" for size in SIZES)]
        for link, label in (("d2h", "to the host, us"), ("h2d", "to the GPU, us"))
    ]
    return table(("direction", *SIZES.values()), body)


def third_stream() -> list[str]:
    """Steps of eight layers before and after a process used a third stream."""
    before_names = ("made dense", "made gpu-target", "made gpu-target-fused")
    body = []
    for step, kernels in (("dense", 102), ("gpu-target", 144), ("gpu-target-fused", 102)):
        before, after = [], []
        for trial, event in TURNED.items():
            own = [s for s in chain("streams") if (s["trial"], s["step"]) == (trial, step)]
            assert {s["kernels"] for s in own} == {str(kernels)}
            before.append(mean(float(s["us"]) for s in own if s["after"] in before_names))
            after.append(mean(float(s["us"]) for s in own if s["after"] == event))
        more = (mean(after) - mean(before)) / kernels
        cells = [f"{mean(before):.1f}", f"{mean(after):.1f}", f"{more:.3f}"]
        body.append([f"`{step}`", str(kernels), *cells])
    return table(("step", "kernels", "two streams", "third stream used", "more a kernel"), body)
