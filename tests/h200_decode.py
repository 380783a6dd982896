"""The decode run that was measured on an H200, as tables of docs/real-run.md show it."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from statistics import mean

from h200 import H200, ROOT

from essim.engines import finish_maxplus
from essim.simulate.plan import load_scenario
from essim.simulate.replay import run_decode
from essim.simulate.scenario import Scenario

FOLDER = ROOT / "reports" / "data" / "h200-decode"
BATCHES, CONTEXTS, BUDGETS = (1, 2, 4, 8, 16), (4480, 7424, 11520), (128, 256)
GPU_MODES = ("gpu-target", "gpu-target-fused", "gpu_side-mid", "gpu_side-mid-fused")
CPU_MODES = ("cpu-target", "cpu-in", "cpu-mid", "cpu-mix")
MODES = ("dense", *GPU_MODES, *CPU_MODES)

Cell = tuple[str, int, int, int]
"""Mode, batch, context, attended tokens (of dense the context)."""


def rows() -> list[dict[str, str]]:
    """Return the rows of the CSV."""
    with (FOLDER / "decode.csv").open() as file:
        return list(csv.DictReader(file))


def _cells() -> dict[Cell, list[float]]:
    found: dict[Cell, list[float]] = defaultdict(list)
    for row in rows():
        point = (int(row[key]) for key in ("batch", "context_tokens", "attended_tokens"))
        found[row["mode"], *point].append(float(row["mean_s"]) * 1e3)  # type: ignore[index]
    return dict(found)


STEPS_MS = _cells()
"""Milliseconds a step of each repetition."""


def cell(mode: str, batch: int, context: int, attended: int = 128) -> Cell:
    """Return a cell's key."""
    return mode, batch, context, context if mode == "dense" else attended


def step_ms(mode: str, batch: int, context: int, attended: int = 128) -> float:
    """Return a cell's mean over its repetitions."""
    return mean(STEPS_MS[cell(mode, batch, context, attended)])


def spread(key: Cell) -> float:
    """Return the range of a cell's repetitions over their mean, in percent."""
    steps = STEPS_MS[key]
    return 100 * (max(steps) - min(steps)) / mean(steps)


def gain(mode: str, over: str, batch: int, context: int, attended: int = 128) -> float:
    """Return how much more throughput a mode has than another, in percent."""
    point = (batch, context, attended)
    return 100 * (step_ms(over, *point) / step_ms(mode, *point) - 1)


def table(head: tuple[str, ...], body: list[list[str]]) -> list[str]:
    """Return a Markdown table's lines."""
    return [f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *body)]


def steps_table() -> list[str]:
    """Step times at 128 attended tokens: mean of the repetitions, range over mean."""
    body = [
        [str(context), str(batch)]
        + [
            f"{step_ms(m, batch, context):.3f} ({spread(cell(m, batch, context)):.1f})"
            for m in MODES
        ]
        for context in CONTEXTS
        for batch in BATCHES
    ]
    return table(("S", "batch", *(f"`{mode}`" for mode in MODES)), body)


def gains_table() -> list[str]:
    """Gains over the stepwise and the fused inline router at 128 attended tokens."""
    modes = (*GPU_MODES[2:], *CPU_MODES)
    body = [
        [str(context), str(batch)]
        + [
            " / ".join(f"{gain(m, over, batch, context):+.1f}" for over in GPU_MODES[:2])
            for m in modes
        ]
        for context in CONTEXTS
        for batch in BATCHES
    ]
    return table(("S", "batch", *(f"`{mode}`" for mode in modes)), body)


def paying(mode: str, over: str, context: int, attended: int) -> str:
    """Return the measured batches at which a mode is faster than another; ~ where ranges overlap.

    Behind them the gain at the last of them and at the next batch.
    """
    gains = {batch: gain(mode, over, batch, context, attended) for batch in BATCHES}
    pays = [batch for batch in BATCHES if gains[batch] > 0]
    after = next(batch for batch in BATCHES if batch > max(pays, default=0))
    said = f"{gains[after]:+.1f} % at {after}"
    if not pays:
        return f"never ({said})"
    names = []
    for batch in pays:
        slower, faster = (STEPS_MS[cell(m, batch, context, attended)] for m in (over, mode))
        names.append(f"~{batch}" if max(faster) >= min(slower) else str(batch))
    return f"{', '.join(names)} ({gains[pays[-1]]:+.1f} % at {pays[-1]}, {said})"


def paying_table() -> list[str]:
    """At which batches each CPU mode pays."""
    body = [
        [str(attended), str(context), f"`{mode}`"]
        + [paying(mode, over, context, attended) for over in GPU_MODES[:2]]
        for attended in BUDGETS
        for context in CONTEXTS
        for mode in CPU_MODES
        if cell(mode, 1, context, attended) in STEPS_MS
    ]
    return table(
        ("attended", "S", "mode", "faster than `gpu-target` at batch", "than `gpu-target-fused`"),
        body,
    )


def early_table() -> list[str]:
    """Gains of early routing over the target's own query, in the same place."""
    pairs = [("gpu_side-mid", "gpu-target"), ("gpu_side-mid-fused", "gpu-target-fused")]
    pairs += [(mode, "cpu-target") for mode in CPU_MODES[1:]]
    body = [
        [str(context), str(batch)]
        + [f"{gain(m, over, batch, context):+.1f} %" for m, over in pairs]
        for context in CONTEXTS
        for batch in BATCHES
    ]
    return table(("S", "batch", *(f"`{mode}` over `{over}`" for mode, over in pairs)), body)


def _dense(batch: int) -> Scenario:
    overrides = ["selector={kind: dense}", "routing=gpu-target", f"workload.batch={batch}"]
    overrides += ["workload.input_tokens=4096", "workload.output_tokens=512"]
    return load_scenario(ROOT / "scenarios" / "earlyselect-40k.yaml", overrides)[0]


def limit_ms(batch: int, context: int) -> float:
    """Return weights and KV, read once, over the profile's bandwidth; of the embedding nothing."""
    model = _dense(batch).model
    embedding = model.padded_vocab * model.hidden * model.activation_bytes
    moved = model.weight_bytes() - embedding + batch * model.kv_bytes(context, context)
    return 1e3 * moved / float(H200.spec.gpu.bandwidth_bytes_per_s.value)


def simulated_ms(batch: int, context: int) -> float:
    """Return essim's mean of the 16 dense steps behind a context."""
    first = context - 4096
    run = run_decode(_dense(batch), H200, finish_maxplus, first + 16)
    return float(run.step_ps[first:].mean()) / 1e9


def dense_table() -> list[str]:
    """Dense steps at the first position beside their limit and the aim."""
    body = []
    for batch, aim in ((1, 4.7), (8, 5.7)):
        real, limit = step_ms("dense", batch, 4480), limit_ms(batch, 4480)
        cells = [f"{real:.3f}", f"{limit:.3f}", f"{100 * limit / real:.0f} %"]
        cells += [f"{aim}", f"{100 * (real / aim - 1):+.1f} %", f"{simulated_ms(batch, 4480):.3f}"]
        cells += [f"{simulated_ms(batch, 4480) - simulated_ms(batch, 4096):.3f}"]
        body.append([str(batch), *cells])
    head = ("batch", "real, S = 4480", "limit at 4480", "limit / real", "aim at 4096", "real / aim")
    return table((*head, "simulated, 4480", "simulated, 4480 less 4096"), body)


def trace_table() -> list[str]:
    """A traced step of each mode beside those of the CSV, batch 1 and S = 4480."""
    body = []
    for mode in MODES:
        events = json.loads((FOLDER / f"trace-{mode}.json").read_text())["traceEvents"]
        ops = [e for e in events if e["ph"] == "X" and e["tid"] == 0]
        traced_ms = max(e["ts"] + e["dur"] for e in ops) / 1e3
        real_ms = step_ms(mode, 1, 4480)
        stamp_us = 1e3 * (traced_ms - real_ms) / (len(ops) + 1)
        cells = [f"{real_ms:.3f}", f"{traced_ms:.3f}", str(len(ops) + 1), f"{stamp_us:.2f}"]
        body.append([f"`{mode}`", *cells])
    return table(("mode", "untraced ms", "traced ms", "stamps", "us a stamp"), body)


def traced_us(mode: str, kind: str) -> float:
    """Return a kind's mean over its ops in a trace."""
    events = json.loads((FOLDER / f"trace-{mode}.json").read_text())["traceEvents"]
    return mean(float(e["dur"]) for e in events if e.get("cat") == kind)
