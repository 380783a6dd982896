"""The (max,+) premise against a real machine: extra time per routed layer on an H200.

Measured 2026-11-29: a Llama-3.1-8B-shaped decode step in one CUDA graph (32 layers, cuBLAS GEMVs,
sparse attention over 128 tokens, context 8192, batch 1). Once per routed layer a CPU thread spins
on a pinned flag, stays busy for X us and answers. The table is that run; the durations below are
its skeleton without hand-over: GEMMs of a layer 119 us, a layer 129 us, publish + await 4.5 us.
The window of `mid` was seen as 109 us: 105.2 us of GEMMs, so 3.8 us for two norms and SiLU*mul, and
what is left of the layer is attention. So `mid` below the window, `target`, and where `in` bends
are predictions; where `mid` bends is not.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from essim.engines import finish_des, finish_maxplus
from essim.engines.graph import Graph
from essim.methods.routing import Routing
from essim.methods.selectors.rocketkv import RocketKV
from essim.model.shape import PRESETS
from essim.step.ops import decode_step

TABLE = Path(__file__).parents[1] / "data" / "premise_h200.csv"
SKELETON_US = {
    "gemm_qkv": 16.3,
    "gemm_o": 13.8,
    "gemm_gate_up": 56.6,
    "gemm_down": 32.3,
    "norm": 1.3,
    "act": 1.2,
    "attn_sparse": 6.2,
    "attn_dense": 6.2,
    "head": 300.0,
    "publish": 2.25,
    "await": 2.25,
}
MODEL = PRESETS["llama-3.1-8b"]
SELECTOR = RocketKV(prompt_budget=4096, page_tokens=4, top_pages=32)
ROUTED_LAYERS = 31


def step_us(routing: Routing, busy_us: float, finish=finish_maxplus) -> float:
    ops = decode_step(MODEL, SELECTOR, routing)
    durations_us = SKELETON_US | {"cpu_route": busy_us}
    rows = [np.array([round(durations_us.get(op.kind, 0.0) * 1e6)]) for op in ops]
    return finish(ops, rows, [Graph.of(ops).last_main])[0, 0] / 1e6


def unrouted_us() -> float:
    ops = decode_step(MODEL, SELECTOR, Routing(where="gpu", anchor="target"))
    return sum(SKELETON_US.get(op.kind, 0.0) for op in ops)


with TABLE.open() as file:
    ROWS = [{key: float(cell) for key, cell in row.items()} for row in csv.DictReader(file)]


@pytest.mark.parametrize("anchor", ["target", "mid", "in"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['busy_us']:g}us")
def test_extra_time_per_routed_layer(anchor: str, row: dict[str, float]) -> None:
    routing = Routing(where="cpu", anchor=anchor)
    extra_us = (step_us(routing, row["busy_us"]) - unrouted_us()) / ROUTED_LAYERS
    assert extra_us == pytest.approx(row[f"{anchor}_us"], abs=1.5)
    assert step_us(routing, row["busy_us"], finish_des) == step_us(routing, row["busy_us"])


def test_in_saturates_at_the_layer_period_because_the_worker_is_serial() -> None:
    """Its own window is a period longer than that of mid, but a job must end every period."""
    period_us = 129.0 + 4.5
    routing = Routing(where="cpu", anchor="in")
    at_period = step_us(routing, period_us)
    # Publish and await in each layer, and two keys that are published when the step ends.
    hand_over_us = 4.5 * ROUTED_LAYERS + 2 * SKELETON_US["publish"]
    assert at_period - unrouted_us() == pytest.approx(hand_over_us, abs=0.1)
    per_us = (step_us(routing, period_us + 50.0) - step_us(routing, period_us + 10.0)) / 40.0
    assert per_us / ROUTED_LAYERS == pytest.approx(1.0, abs=0.01)
