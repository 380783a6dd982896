"""The decode steps that were really run on an H200."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from statistics import mean, median
from typing import Any

from essim.engines import finish_maxplus
from essim.simulate.plan import load_scenario
from essim.simulate.replay import run_decode
from essim.simulate.scenario import Scenario
from made.data import (
    BATCHES,
    BUDGETS,
    CONTEXTS,
    CPU_MODES,
    GPU_MODES,
    H200_RUN,
    MODES,
    POOL_BATCHES,
    POOL_CONTEXTS,
    ROOT,
    cell,
    chain,
    csv_rows,
    pool_steps_ms,
    profile,
    real_ms,
    steps_ms,
    table,
    table_us,
)

FASTEST = "gpu_side-mid-fused"
POINTS = list(itertools.product(BATCHES, CONTEXTS, BUDGETS))


def _gain(mode: str, over: str, batch: int, context: int, attended: int = 128) -> float:
    """How much more throughput a mode has than another, in percent."""
    point = (batch, context, attended)
    return 100 * (real_ms(over, *point) / real_ms(mode, *point) - 1)


def _spread(mode: str, batch: int, context: int, attended: int = 128) -> float:
    """The range of a cell's repetitions over their mean, in percent."""
    steps = steps_ms()[cell(mode, batch, context, attended)]
    return 100 * (max(steps) - min(steps)) / mean(steps)


def step(mode: str, batch: int, context: int, attended: int = 128) -> str:
    """Return a cell's step in milliseconds."""
    return f"{real_ms(mode, batch, context, attended):.3f}"


def gain(mode: str, over: str, batches: str | int = "all", attended: int = 128) -> str:
    """Return the least and the largest gain of a mode over another, over all contexts."""
    own = BATCHES if batches == "all" else [int(batch) for batch in str(batches).split(",")]
    values = [_gain(mode, over, b, c, attended) for b in own for c in CONTEXTS]
    return f"{min(values):.1f} to {max(values):.1f} %"


def longer(mode: str) -> str:
    """Return how much longer a mode's step is at 256 attended tokens than at 128."""
    values = [
        100 * (real_ms(mode, b, c, 256) / real_ms(mode, b, c) - 1)
        for b, c in itertools.product(BATCHES, CONTEXTS)
    ]
    return f"{min(values):.1f} to {max(values):.1f} %"


def fastest() -> str:
    """Return at how many points the second stream with the fused router is the fastest mode."""
    won = [
        all(
            real_ms(FASTEST, *point) <= real_ms(mode, *point)
            for mode in MODES
            if cell(mode, *point) in steps_ms()
        )
        for point in POINTS
    ]
    return f"{sum(won)} of {len(won)}"


def slower_than_dense(mode: str) -> str:
    """Return at how many points of 128 tokens a mode is slower than dense attention."""
    slower = [_gain(mode, "dense", b, c) < 0 for b, c in itertools.product(BATCHES, CONTEXTS)]
    return f"{sum(slower)} of {len(slower)}"


def behind_fused(attended: int) -> str:
    """How far the best CPU mode stays behind the fused router inline, at best."""
    best = max(
        _gain(mode, "gpu-target-fused", b, c, attended)
        for mode in CPU_MODES
        for b, c in itertools.product(BATCHES, CONTEXTS)
        if cell(mode, b, c, attended) in steps_ms()
    )
    assert best < 0, "a CPU mode pays against the fused router"
    return f"{-best:.1f} %"


def pool_steps() -> list[str]:
    """Step times of today's CPU router: mean of the repetitions, 192 attended tokens."""
    modes = ("gpu-target-fused", FASTEST, *CPU_MODES)
    found = pool_steps_ms()
    body = [
        [str(c), str(b), *(f"{mean(found[m, b, c]):.3f}" for m in modes)]
        for c in POOL_CONTEXTS
        for b in POOL_BATCHES
        if all((m, b, c) in found for m in modes)
    ]
    return table(("S", "batch", *(f"`{mode}`" for mode in modes)), body)


def pool_behind(batch: int, mode: str = "") -> str:
    """How far the best CPU mode (or one) is behind the fused router inline, over all contexts."""
    found = pool_steps_ms()
    values = []
    for context in POOL_CONTEXTS:
        own = [mean(found[m, batch, context]) for m in ([mode] if mode else CPU_MODES)]
        values.append(100 * (1 - mean(found["gpu-target-fused", batch, context]) / min(own)))
    return f"{min(values):.0f} to {max(values):.0f} %"


def router_speed() -> list[str]:
    """The CPU router before and now, in turns on one host: mean of two passes, 20 us idle."""
    found: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    late: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for row in chain("cpu_router"):
        at = row["router"], int(row["batch"]), int(row["context_tokens"])
        # Each as it was by default: today's workers fetch the next layer's share while idle.
        kind = {"before": "idle", "now": "prefetched"}[row["router"]]
        found[at].append(float(row[f"{kind}_p50_us"]))
        late[at].append(float(row[f"{kind}_p99_us"]))
    body = []
    for _, batch, context in sorted(key for key in found if key[0] == "now"):
        before, now = (mean(found[name, batch, context]) for name in ("before", "now"))
        tails = [f"{mean(late[n, batch, context]):.0f}" for n in ("before", "now")]
        cells = [f"{before:.0f}", f"{now:.0f}", f"{now / before:.2f}", *tails]
        body.append([str(batch), str(context), *cells])
    head = ("batch", "S", "before, us", "now, us", "now / before")
    return table((*head, "99th percentile before", "now"), body)


def range_below(limit: float) -> str:
    """How many cells without the pool have a range of repetitions below a limit."""
    values = [_spread(*key) for key in steps_ms() if key[0] not in CPU_MODES]
    small = sum(value < limit for value in values)
    return f"{small} of {len(values)} cells, {max(values):.1f} % at most"


def pool_range(batch: int = 0) -> str:
    """The median range of repetitions of modes with the pool (of a batch, of all)."""
    keys = [key for key in steps_ms() if key[0] in CPU_MODES and batch in (0, key[1])]
    return f"{median(_spread(*key) for key in keys):.1f} %"


def pool_range_most() -> str:
    """The largest of these ranges."""
    return f"{max(_spread(*key) for key in steps_ms() if key[0] in CPU_MODES):.0f} %"


def unstable() -> str:
    """How many rows of modes with the pool are unstable; no other is."""
    rows = csv_rows(H200_RUN / "decode.csv")
    found = [row["mode"] for row in rows if row["unstable"] == "True"]
    assert set(found) <= set(CPU_MODES)
    return f"{len(found)} of {sum(row['mode'] in CPU_MODES for row in rows)}"


def steps() -> list[str]:
    """Step times at 128 attended tokens: mean of the repetitions."""
    body = [[str(c), str(b), *(step(m, b, c) for m in MODES)] for c in CONTEXTS for b in BATCHES]
    return table(("S", "batch", *(f"`{mode}`" for mode in MODES)), body)


def gains() -> list[str]:
    """Gains over the fused inline router at 128 attended tokens, over all contexts."""
    modes = (*GPU_MODES[2:], *CPU_MODES)
    body = [[str(b), *(gain(m, GPU_MODES[1], b) for m in modes)] for b in BATCHES]
    return table(("batch", *(f"`{mode}`" for mode in modes)), body)


def _paying(mode: str, context: int, attended: int) -> str:
    """Return the last batch at which a mode is faster than the stepwise router, and both gains."""
    if cell(mode, 1, context, attended) not in steps_ms():
        return "-"
    gains = {batch: _gain(mode, "gpu-target", batch, context, attended) for batch in BATCHES}
    last = max(batch for batch in BATCHES if gains[batch] > 0)
    after = min(batch for batch in BATCHES if batch > last)
    slower, faster = (steps_ms()[cell(m, last, context, attended)] for m in ("gpu-target", mode))
    unsure = "~" if max(faster) >= min(slower) else ""
    return f"{unsure}{last} ({gains[last]:+.1f}; then {gains[after]:+.1f})"


def paying() -> list[str]:
    """Up to which batch each CPU mode pays against the stepwise router inline."""
    body = [
        [str(attended), str(context), *(_paying(mode, context, attended) for mode in CPU_MODES)]
        for attended in BUDGETS
        for context in CONTEXTS
    ]
    return table(("attended", "S", *(f"`{mode}`" for mode in CPU_MODES)), body)


def early() -> list[str]:
    """Gains of early routing over the target's own query, in the same place, over all contexts."""
    pairs = [("gpu_side-mid", "gpu-target"), ("gpu_side-mid-fused", "gpu-target-fused")]
    pairs += [(mode, "cpu-target") for mode in CPU_MODES[1:]]
    body = [[str(b), *(gain(mode, over, b) for mode, over in pairs)] for b in BATCHES]
    return table(("batch", *(f"`{mode}` over `{over}`" for mode, over in pairs)), body)


def _dense(batch: int) -> Scenario:
    overrides = ["selector={kind: dense}", "routing=gpu-target", f"workload.batch={batch}"]
    overrides += ["workload.input_tokens=4096", "workload.output_tokens=512"]
    return load_scenario(ROOT / "scenarios" / "earlyselect-40k.yaml", overrides)[0]


def _limit_ms(batch: int, context: int) -> float:
    """Weights and KV, read once, over the profile's bandwidth; of the embedding nothing."""
    model = _dense(batch).model
    embedding = model.padded_vocab * model.hidden * model.activation_bytes
    moved = model.weight_bytes() - embedding + batch * model.kv_bytes(context, context)
    return 1e3 * moved / float(profile().spec.gpu.bandwidth_bytes_per_s.value)


def limit(batch: int, context: int) -> str:
    """Return that limit in milliseconds."""
    return f"{_limit_ms(batch, context):.2f}"


def _predicted_ms(batch: int, context: int) -> float:
    """What essim says of the 16 dense steps behind a context."""
    first = context - 4096
    run = run_decode(_dense(batch), profile(), finish_maxplus, first + 16)
    return float(run.step_ps[first:].mean()) / 1e9


def dense() -> list[str]:
    """Dense steps beside their limit and the aim, which was stated at 4096 tokens."""
    body = []
    for batch, aim in ((1, 4.7), (8, 5.7)):
        real, least = real_ms("dense", batch, 4480), _limit_ms(batch, 4480)
        predicted = _predicted_ms(batch, 4480)
        at_4096 = real - predicted + _predicted_ms(batch, 4096)
        cells = [f"{real:.3f}", f"{least:.3f}", f"{100 * least / real:.0f} %", f"{at_4096:.3f}"]
        cells += [f"{aim}", f"{100 * (at_4096 / aim - 1):+.1f} %", f"{predicted:.3f}"]
        body.append([str(batch), *cells])
    head = ("batch", "real, S = 4480", "limit", "limit / real", "real less 384 tokens", "aim")
    return table((*head, "against it", "simulated, S = 4480"), body)


def _events(mode: str) -> list[dict[str, Any]]:
    found = json.loads((H200_RUN / f"trace-{mode}.json").read_text())["traceEvents"]
    return [event for event in found if event["ph"] == "X"]


def _trace(mode: str) -> tuple[float, int, float]:
    """Milliseconds of a traced step, its stamps, microseconds a stamp."""
    ops = [event for event in _events(mode) if event["tid"] == 0]
    traced_ms = max(op["ts"] + op["dur"] for op in ops) / 1e3
    stamps = len(ops) + 1
    return traced_ms, stamps, 1e3 * (traced_ms - real_ms(mode, 1, 4480)) / stamps


def traces() -> list[str]:
    """A traced step of each mode beside those of the CSV, batch 1 and S = 4480."""
    body = []
    for mode in MODES:
        traced_ms, stamps, stamp_us = _trace(mode)
        body.append([f"`{mode}`", step(mode, 1, 4480), f"{traced_ms:.3f}", str(stamps)])
        body[-1].append(f"{stamp_us:.2f}")
    return table(("mode", "untraced ms", "traced ms", "stamps", "us a stamp"), body)


def traced_us(mode: str, kind: str, less_stamp: bool = False) -> str:
    """Return a kind's mean over its ops in a trace, maybe less the mode's stamp."""
    own = mean(event["dur"] for event in _events(mode) if event.get("cat") == kind)
    return f"{own - less_stamp * _trace(mode)[2]:.1f}"


def traced_ops() -> list[str]:
    """Prices beside the traced ops of one step, less a stamp each."""
    mode = "gpu-target-fused"
    shapes = {"gemm_qkv": (6144, 4096), "gemm_o": (4096, 4096)}
    shapes |= {"gemm_gate_up": (28672, 4096), "gemm_down": (4096, 14336)}
    stamp_us = _trace(mode)[2]
    body = []
    for op in ("norm", "rope", "act", *shapes):
        shape = (*shapes[op], "bf16") if op in shapes else ()
        keys = dict(zip(("n", "k", "dtype"), shape, strict=False))
        price_us = table_us(op.split("_")[0], 1, **keys)
        traced = mean(e["dur"] for e in _events(mode) if e.get("cat") == op)
        body.append([f"`{op}`", f"{price_us:.2f}", f"{traced - stamp_us:.2f}"])
    return table(("op", "price us", "traced us"), body)
