"""How far predictions are from real runs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from statistics import mean, median

from essim.engines import finish_maxplus
from essim.methods.selectors.dense import Dense
from essim.simulate.plan import load_scenario
from essim.simulate.replay import Run, run_decode
from essim.validate.binomial import clopper_pearson
from made.data import (
    BUDGETS,
    CPU_MODES,
    MODES,
    POOL_BATCHES,
    POOL_RUN,
    ROOT,
    RUNS,
    Row,
    compared,
    csv_rows,
    inside_count,
    profile,
    table,
)

LAPTOP_MODES = ("dense", "gpu-target", "cpu-target", "cpu-in", "cpu-mid", "cpu-mix")
LAPTOP_KINDS = {
    "gpu-target": {"gpu": "inline routing"},
    "cpu-mid": {
        "gemm": "GEMMs of the layers",
        "head": "LM head",
        "attn": "attention",
        "norm": "norms",
        "rope": "RoPE with append",
        "proxy": "`proxy_down`",
        "publish": "`publish` with the keys",
        "await": "`await`",
    },
}
IN_LAYERS = 11  # of the last target layers of `cpu-mix`, as the campaign's plan has it


def _of(group: str, *batches: int, run: str = "") -> list[Row]:
    """Return pairs of a mode or group: ``all``, ``pool``, ``early`` (of the pool), ``no_pool``.

    Modes with the CPU router are of its own run, the others of the run of all GPU modes.
    """
    if group == "all" and not run:
        return _of("no_pool") + _of("pool")
    pooled = group in ("pool", "early") or group.startswith("cpu")
    run = run or ("h200-pool" if pooled else "h200")

    def has(mode: str) -> bool:
        pool = mode.startswith("cpu")
        groups = {"all": True, "pool": pool, "no_pool": not pool}
        groups["early"] = pool and mode != "cpu-target"
        return groups.get(group, mode == group)

    wanted = batches or {row["batch"] for row in compared(run).pairs}
    return [p for p in compared(run).pairs if has(str(p["mode"])) and p["batch"] in wanted]


def _percent(pairs: Sequence[Row]) -> list[float]:
    return [100 * pair["error_frac"] for pair in pairs]


def _summary(pairs: Sequence[Row], digits: int = 2) -> list[str]:
    """Return cells, bias, MAPE and worst error."""
    errors = _percent(pairs)
    figures = [f"{mean(errors):+.2f} %", f"{mean(map(abs, errors)):.2f} %"]
    return [str(len(errors)), *figures, f"{max(errors, key=abs):+.{digits}f} %"]


def mape(group: str, *batches: int, run: str = "") -> str:
    """The mean of a group's errors without their signs."""
    return f"{mean(map(abs, _percent(_of(group, *batches, run=run)))):.2f} %"


def worst(group: str, *batches: int, run: str = "") -> str:
    """The largest of a group's errors without its sign."""
    return f"{max(map(abs, _percent(_of(group, *batches, run=run)))):.1f} %"


def range_of(group: str, *batches: int, run: str = "") -> str:
    """Return the least and the largest of a group's errors."""
    errors = _percent(_of(group, *batches, run=run))
    return f"{min(errors):+.1f} to {max(errors):+.1f} %"


def mapes(group: str) -> str:
    """The least and the largest MAPE of a group's modes."""
    modes = {str(pair["mode"]) for pair in _of(group)}
    values = [mean(map(abs, _percent(_of(mode)))) for mode in modes]
    return f"{min(values):.1f} to {max(values):.1f} %"


def mapes_by_batch() -> str:
    """The MAPE of all modes with the pool, batch by batch."""
    own = {batch: mean(map(abs, _percent(_of("pool", batch)))) for batch in POOL_BATCHES}
    first, *others = (f"{value:.0f} % at {batch}" for batch, value in own.items())
    first = first.replace("% at", "% on average at batch")
    return f"{', '.join([first, *others[:-1]])} and {others[-1]}"


def inside(group: str) -> str:
    """How many cells of a group are inside their intervals."""
    return f"{inside_count(_of(group))} of {len(_of(group))}"


def inside_share() -> str:
    """The share inside, and how sure it is."""
    low, high = clopper_pearson(inside_count(_of("all")), len(_of("all")))
    share = inside_count(_of("all")) / len(_of("all"))
    return f"{100 * share:.0f} % (95 % sure: {100 * low:.0f} to {100 * high:.0f} %)"


def gains_apart() -> str:
    """How many gains without the pool are more than a point apart, and of how many."""
    own = [p for p in _of("no_pool") if p["mode"] not in ("dense", "gpu-target")]
    far = [p for p in own if abs(p["gain_error_points"]) > 1]
    return f"{len(far)} of {len(own)}"


def errors() -> list[str]:
    """One row a mode: errors and intervals."""
    body = [[f"`{mode}`", *_summary(_of(mode), 1), inside(mode)] for mode in MODES]
    body.append(["all", *_summary(_of("all"), 1), inside("all")])
    return table(("mode", "cells", "bias", "MAPE", "worst", "inside its 90 % interval"), body)


def errors_by_budget() -> list[str]:
    """One row a mode: errors, and how far gains are apart; / parts 128 and 256 attended tokens."""
    every = [*compared("h200").gains, *compared("h200-pool").gains]
    gains = {(row["mode"], row["attended_tokens"]): row for row in reversed(every)}
    body = []
    for mode in MODES:
        parts = [[p for p in _of(mode) if p["attended_tokens"] == budget] for budget in BUDGETS]
        mapes = [f"{mean(map(abs, _percent(own))):.2f}" for own in parts if own]
        # A mode with one budget has its gains once, of all budgets.
        apart = [row for budget in BUDGETS if (row := gains.get((mode, budget)))]
        apart = apart or [row for row in [gains.get((mode, None))] if row]
        points = [f"{row['mean_points']:.2f}" for row in apart]
        worst = max((row["worst_points"] for row in apart), key=abs, default=None)
        cells, bias, mape, largest = _summary(_of(mode))
        shown = f"{' / '.join(mapes)} %" if mapes else mape
        gain = [" / ".join(points) or "-", "-" if worst is None else f"{worst:+.2f}"]
        body.append([f"`{mode}`", cells, bias, shown, largest, *gain])
    head = ("mode", "cells", "bias", "MAPE", "worst", "gains apart", "worst gain")
    return table(head, body)


def errors_by_batch() -> list[str]:
    """Errors of the modes with the CPU's pool, by batch; and at the state the host was in."""
    body = []
    for batch in POOL_BATCHES:
        for group in ("cpu-target", "early"):
            own = _of(group, batch)
            name = "early" if group == "early" else f"`{group}`"
            held = f"{inside_count(own)} of {len(own)}"
            there = _at_state(group, batch)
            said = [f"{mean(map(abs, there)):.2f} %", f"{max(there, key=abs):+.1f} %"]
            body.append([str(batch), name, *_summary(own, 1), held, *said])
    head = ("batch", "modes", "cells", "bias", "MAPE", "worst", "inside")
    return table((*head, "MAPE at the host's state", "worst there"), body)


def _at_state(group: str, *batches: int) -> list[float]:
    """Errors of a mode or ``early`` or ``pool`` at the host's state, in percent."""
    modes = {"early": CPU_MODES[1:], "pool": CPU_MODES}.get(group, (group,))
    return [
        100 * float(row["at_state_frac"])
        for row in csv_rows(POOL_RUN / "state.csv")
        if row["mode"] in modes and int(row["batch"]) in (batches or POOL_BATCHES)
    ]


def mape_at_state(group: str, *batches: int) -> str:
    """The mean of these errors without their signs."""
    return f"{mean(map(abs, _at_state(group, *batches))):.1f} %"


def worst_at_state(group: str, *batches: int) -> str:
    """The largest of them."""
    return f"{max(map(abs, _at_state(group, *batches))):.0f} %"


def host_states() -> str:
    """Routes at the looks over the table's, the least and the largest."""
    found = [float(row["state"]) for row in csv_rows(POOL_RUN / "state.csv")]
    return f"{min(found):.2f} to {max(found):.2f}"


def off_grid() -> list[str]:
    """The point that is on no grid."""
    body = []
    for pair in sorted(compared("offgrid").pairs, key=lambda pair: MODES.index(str(pair["mode"]))):
        ms = [f"{1e3 * pair[key]:.3f}" for key in ("predicted_s", "measured_s")]
        held = "yes" if inside_count([pair]) else "no"
        body.append([f"`{pair['mode']}`", *ms, f"{_percent([pair])[0]:+.1f} %", held])
    return table(("mode", "predicted ms", "measured ms", "error", "inside"), body)


def _laptop_ms() -> dict[tuple[str, int, int], list[float]]:
    found = defaultdict(list)
    for row in csv_rows(RUNS / "cpu-2core-decode" / "decode.csv"):
        key = row["mode"], int(row["batch"]), int(row["context_tokens"])
        found[key].append(float(row["mean_s"]) * 1e3)
    return dict(found)


def _laptop_run(mode: str, batch: int, context: int) -> Run:
    """What essim makes of the same 16 steps, by the shipped profile of such a machine."""
    base, _ = load_scenario(ROOT / "scenarios" / "validate-laptop.yaml")
    selector = base.selector.model_copy(update={"prompt_budget": context})
    load = {"batch": batch, "input_tokens": context, "output_tokens": 17}
    update = {"workload": base.workload.model_copy(update=load), "selector": selector}
    if mode == "dense":
        update["selector"] = Dense()
    else:
        where, anchor = mode.split("-")
        place: dict[str, object] = {"where": where, "anchor": anchor}
        if anchor == "mix":
            place["mix"] = ["mid"] * (base.model.layers - 1 - IN_LAYERS) + ["in"] * IN_LAYERS
        update["routing"] = base.routing.model_copy(update=place)
    point = base.model_copy(update=update)
    return run_decode(point, profile("cpu-2core"), finish_maxplus, 16)


@cache
def _laptop_predicted_ms(mode: str, batch: int, context: int) -> float:
    return float(_laptop_run(mode, batch, context).step_ps.mean()) * 1e-9


def laptop() -> list[str]:
    """Real and simulated steps of a machine without a GPU."""
    real = _laptop_ms()
    body = []
    for batch, context in sorted({key[1:] for key in real}):
        row = [str(batch), str(context)]
        for mode in LAPTOP_MODES:
            steps = real[mode, batch, context]
            spread = 100 * (max(steps) - min(steps)) / median(steps)
            predicted = _laptop_predicted_ms(mode, batch, context)
            row.append(f"{median(steps):.1f} ({spread:.0f}) / {predicted:.1f}")
        body.append(row)
    return table(("batch", "context", *(f"`{mode}`" for mode in LAPTOP_MODES)), body)


def laptop_longer() -> str:
    """How much longer real steps are there than simulated ones."""
    ratios = [median(steps) / _laptop_predicted_ms(*key) for key, steps in _laptop_ms().items()]
    return f"{100 * (min(ratios) - 1):.0f} to {100 * (max(ratios) - 1):.0f} %"


def laptop_ops() -> list[str]:
    """Kinds of ops of traced steps beside their prices: batch 1, 512 tokens."""
    body = []
    for mode, wanted in LAPTOP_KINDS.items():
        trace = json.loads((RUNS / "cpu-2core-decode" / f"trace-{mode}.json").read_text())
        real: dict[str, float] = defaultdict(float)
        for event in trace["traceEvents"]:
            if event["ph"] == "X" and event["tid"] == 0:
                real[event["cat"].split("_")[0]] += event["dur"] / 1e3
        run = _laptop_run(mode, 1, 512)
        prices: dict[str, float] = defaultdict(float)
        for op, row in zip(run.ops, run.durations_ps, strict=True):
            prices[op.kind.split("_")[0]] += float(row[4]) / 1e9  # The traced step is the fifth.
        for kind, label in wanted.items():
            ratio = f"{real[kind] / prices[kind]:.1f}"
            body.append([label, f"`{mode}`", f"{real[kind]:.2f}", f"{prices[kind]:.2f}", ratio])
    return table(("ops", "mode", "traced ms", "priced ms", "traced / priced"), body)
