"""Rows of an invented sweep."""

from __future__ import annotations

import pytest

from essim.results.prices import PriceSources

ROUTINGS = {
    "gpu-target": 0.0,
    "gpu-target-fused": 0.031,
    "cpu-target": -0.185,
    "cpu-in": 0.072,
    "cpu-mid": 0.081,
    "gpu_side-mid": 0.056,
}
SOURCES = PriceSources(
    {
        "measured": ("gemm", "attn_dense", "attn_sparse", "gather", "norm"),
        "interpolated": ("cpu_route", "summary_update"),
        "roofline": ("rope", "embed"),
    }
)


def make_row(routing: str, batch: int, output: int) -> dict[str, object]:
    """Return one plausible row; only the form matters."""
    per_doubling = 0.004 if routing.endswith(("mid", "in")) else 0.0
    gain = ROUTINGS[routing] + per_doubling * (output.bit_length() - 8)
    gain -= (batch - 1) * (0.013 if routing.startswith("cpu") else 0.002) * (gain != 0)
    ceiling = 0.11 + 0.006 * (output.bit_length() - 8)
    base_step = (4.9e-3 + 0.35e-3 * batch) * (1 + output / 80_000)
    step = base_step / (1 + gain)
    decode = step * (output - 1)
    prefill = 2.4 * batch
    fits = not (batch == 8 and output == 8192 and routing.startswith("gpu"))
    row: dict[str, object] = {
        "name": "earlyselect-40k",
        "model": "llama-3.1-8b",
        "hardware": "h200-sxm",
        "selector": "rocketkv",
        "routing": routing,
        "batch": batch,
        "input_tokens": 40960,
        "output_tokens": output,
        "status": "ok" if fits else "infeasible",
        "reason": None if fits else "KV cache and K-summaries need 151.2 GiB, 120.0 GiB are free",
    }
    results: dict[str, object] = {
        "decode_tokens_per_s": batch / step,
        "output_tokens_per_s": batch * output / (prefill + decode),
        "prefill_s": prefill,
        "decode_s": decode,
        "step_s": step,
        "tpot_s": step,
        "exposed_routing_s": max(0.0, step - base_step / (1 + ceiling)),
        "gpu_busy_frac": 0.97,
        "cpu_busy_frac": 0.62 if routing.startswith("cpu") else 0.0,
        "kv_bytes": batch * 131072 * (40960 + output),
        "summary_gpu_bytes": 0 if routing.startswith("cpu") else batch * 16384 * 4096,
        "summary_cpu_bytes": batch * 16384 * 4096 if routing.startswith("cpu") else 0,
        "max_batch": 21,
        "decode_gain_frac": gain,
        "output_gain_frac": gain * decode / (prefill + decode),
        "gain_ceiling_frac": ceiling,
        "measured_frac": 0.93,
    }
    row |= results if fits else dict.fromkeys(results)
    return row | {"price_sources": SOURCES, "engine": "maxplus", "seed": 0}


@pytest.fixture
def rows() -> list[dict[str, object]]:
    """Six routings, three batches, seven output lengths."""
    lengths = (128, 256, 512, 1024, 2048, 4096, 8192)
    return [make_row(r, b, n) for r in ROUTINGS for b in (1, 4, 8) for n in lengths]


@pytest.fixture
def few() -> list[dict[str, object]]:
    """Two routings at two lengths and two batches with round numbers; one point does not fit."""
    numbers = {
        ("gpu-target", 1, 128): (200.0, 0.0),
        ("gpu-target", 1, 256): (190.0, 0.0),
        ("gpu-target", 4, 128): (700.0, 0.0),
        ("gpu-target", 4, 256): (650.0, 0.0),
        ("cpu-mid", 1, 128): (220.0, 0.1),
        ("cpu-mid", 1, 256): (209.5, 0.1026),
        ("cpu-mid", 4, 128): (693.0, -0.01),
        ("cpu-mid", 4, 256): (None, None),
    }
    return [
        make_row(*point)
        | {"decode_tokens_per_s": rate, "decode_gain_frac": gain, "gain_ceiling_frac": 0.125}
        | ({} if rate else {"status": "infeasible", "reason": "needs 90 GiB, 80 GiB are free"})
        for point, (rate, gain) in numbers.items()
    ]


@pytest.fixture
def comparison() -> dict[str, object]:
    """Two modes at two batches and contexts, predicted and measured, with round numbers."""
    # At context 1000, in ms: predicted and its interval, measured and its ends, then gains.
    steps = {
        ("gpu-target", 1): ((4.0, 2.5, 5.0), (5.0, 4.0, 8.0), (None, None)),
        ("gpu-target", 2): ((10.0, 8.0, 16.0), (8.0, 5.0, 10.0), (None, None)),
        ("cpu-mid", 1): ((3.2, 2.5, 4.0), (4.0, 2.5, 5.0), (0.25, 0.25)),
        ("cpu-mid", 2): ((8.0, 5.0, 10.0), (6.4, 5.0, 8.0), (0.25, 0.25)),
    }
    ends = ("", "_low", "_high")
    pairs = []
    for (mode, batch), (predicted, measured, gains) in steps.items():
        for context in (1000, 2000):
            scale = context * 1e-6
            pairs.append(
                {
                    **{"mode": mode, "batch": batch, "context_tokens": context},
                    **{"attended_tokens": 64, "steps": 16, "repetitions": 3},
                    **{f"predicted{e}_s": t * scale for e, t in zip(ends, predicted, strict=True)},
                    **{f"measured{e}_s": t * scale for e, t in zip(ends, measured, strict=True)},
                    "error_frac": predicted[0] / measured[0] - 1,
                    "predicted_gain_frac": gains[0],
                    "measured_gain_frac": gains[1],
                    "gain_error_points": None if gains[0] is None else 0.0,
                }
            )
    summary = {"cells": 8, "bias_frac": 0.09, "mape_frac": 0.09, "worst_frac": 0.1}
    errors = [{"mode": "all", "attended_tokens": None, **summary, "worst_cell": "cpu-mid, batch 1"}]
    gain = {"mode": "all", "gains": 4, "mean_points": 1.0, "worst_points": -1.0}
    dropped = [{"side": "predicted", "mode": "cpu-in", "reason": "not measured"}]
    gains = [gain | {"worst_cell": "cpu-mid, batch 1"}]
    return {"pairs": pairs, "errors": errors, "gains": gains, "dropped": dropped}


@pytest.fixture
def step() -> dict[str, object]:
    """A step of two ops, predicted and traced."""

    def ops(longer: float) -> list[dict[str, object]]:
        return [
            {"name": name, "kind": kind, "stream": stream, "start_s": at, "end_s": at + longer}
            for name, kind, stream, at in (
                ("norm1.1", "norm", "gpu", 0.0),
                ("down.3", "gemm_down", "gpu", 1e-5),
                ("route.1", "cpu_route", "cpu", 0.0),
            )
        ]

    errors = [{"kind": "norm", "predicted_ops": 1, "real_ops": 1, "predicted_s": 5e-6}]
    of = {"mode": "cpu-mid", "batch": 1, "context_tokens": 1004}
    rest = {"real_s": 6e-6, "error_s": -1e-6, "error_frac": -1 / 6}
    return {"of": of, "predicted": ops(5e-6), "real": ops(6e-6), "errors": [errors[0] | rest]}
