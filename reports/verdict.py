"""The answer in sentences: what early routing gains, and at which batch it stops paying."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from essim.hardware.profile import HardwareProfile
from essim.results.rows import Row, differing
from essim.simulate.scenario import Scenario
from essim.validate.compare import Comparison

Simulate = Callable[[Scenario], Row]

# With more settings than this, each gets a sentence instead of a paragraph.
_MANY_GROUPS = 4


def run_verdict(point: Scenario, row: Row) -> str:
    """Return one sentence about a single point."""
    if row["status"] != "ok":
        return f"This point does not run: {row['reason']}."
    step, gain = row["step_s"], row["decode_gain_frac"]
    if step is None:
        return "One output token is prefill alone: there is no decode step and no TPOT."
    routing, baseline = str(row["routing"]), point.compare.baseline
    if routing == "none":
        against = "needs no routing"
    elif routing == baseline:
        ceiling = _percent(row["gain_ceiling_frac"])
        against = f"is the baseline; routing that cost nothing would gain {ceiling}"
    else:
        ceiling = _percent(row["gain_ceiling_frac"])
        against = f"decodes {_faster(gain)} than {baseline}{_maybe(row)} (ceiling {ceiling})"
    exposed = float(row["exposed_routing_s"] or 0.0) / float(step)
    dense = ""
    if routing != "none":
        dense = f"; over dense attention it gains {_percent(row['gain_over_dense_frac'])}"
        dense += f" (ceiling {_percent(row['dense_ceiling_frac'])})"
        if float(row["read_ratio"] or 0) <= 1:
            dense += ". Attention reads the whole cache all the same: routing is pure overhead"
    return (
        f"{_name(row)} {against}; {exposed:.1%} of each step is exposed routing and hand-over"
        f"{dense}."
    )


def sweep_verdict(points: Sequence[Scenario], rows: Sequence[Row], simulate: Simulate) -> list[str]:
    """Return sentences about a sweep.

    Parameters
    ----------
    points, rows
        The sweep's points and their rows, in the same order.
    simulate
        Returns the row of a further point: break-even batches are searched between swept ones.
    """
    keys = [k for k in differing(rows) if k not in ("routing", "batch", "output_tokens")]
    groups: dict[str, list[tuple[Scenario, Row]]] = {}
    for point, row in zip(points, rows, strict=True):
        setting = ", ".join(f"{key} {row[key]}" for key in keys)
        groups.setdefault(setting, []).append((point, row))
    sentences: list[str] = []
    for setting, members in groups.items():
        prefix = f"[{setting}] " if setting else ""
        texts = list(_group_verdict(members, simulate, brief=len(groups) > _MANY_GROUPS))
        sentences += [prefix + text for text in texts]
    lost = [row for row in rows if row["status"] != "ok"]
    if lost:
        example = lost[0]["reason"]
        sentences.append(f"{len(lost)} of {len(rows)} points do not run, such as: {example}.")
    return sentences


def _group_verdict(
    members: list[tuple[Scenario, Row]], simulate: Simulate, brief: bool
) -> Iterator[str]:
    """Yield the sentences of points that differ in routing, batch and output length only.

    With `brief`, only what each early routing gains.
    """
    table = {
        (str(row["routing"]), point.workload.batch, point.workload.output_tokens): (point, row)
        for point, row in members
        if row["decode_tokens_per_s"] is not None
    }
    routings = list(dict.fromkeys(routing for routing, _, _ in table))
    batches = sorted({batch for _, batch, _ in table})
    outputs = sorted({tokens for _, _, tokens in table})
    if not table:
        return
    baseline = members[0][0].compare.baseline
    references = [baseline] + [r for r in routings if r.startswith("gpu-target") and r != baseline]
    for routing in routings:
        point = next(p for (r, _, _), (p, _) in table.items() if r == routing)
        if not point.routing.early or routing == "none":
            continue
        ends = [table.get((routing, batches[0], tokens)) for tokens in (outputs[0], outputs[-1])]
        if all(ends) and ends[0] and ends[0][1]["decode_gain_frac"] is not None:
            yield _gain_sentence(routing, baseline, [end[1] for end in ends if end])
        for reference in [] if brief else [r for r in references if r != routing]:
            at = {
                batch: table[routing, batch, outputs[-1]][0]
                for batch in batches
                if (routing, batch, outputs[-1]) in table
            }
            yield _break_even_sentence(routing, reference, at, simulate)
    for batch in [] if brief else batches:
        best = max(
            (row for (_, b, n), (_, row) in table.items() if (b, n) == (batch, outputs[-1])),
            key=lambda row: float(row["decode_tokens_per_s"] or 0),
            default=None,
        )
        if best is not None and len(routings) > 1:
            yield (
                f"Fastest at batch {batch} and {outputs[-1]} output tokens: {best['routing']}, "
                f"{float(best['decode_tokens_per_s'] or 0):.0f} tokens/s"
                f" ({_percent(best['gain_over_dense_frac'])} over dense attention)."
            )


def _gain_sentence(routing: str, baseline: str, ends: Sequence[Row]) -> str:
    first, last = ends
    text = f"{routing} decodes {_faster(first['decode_gain_frac'])} than {baseline}"
    text += f"{_maybe(first)} at batch {first['batch']} and {first['output_tokens']} output tokens"
    if first is not last:
        text += f", {_faster(last['decode_gain_frac'])}{_maybe(last)} at {last['output_tokens']}"
    end_to_end, ceiling = (_percent(last[k]) for k in ("output_gain_frac", "gain_ceiling_frac"))
    return f"{text} (end to end {end_to_end}; a routing that cost nothing: {ceiling})."


def _break_even_sentence(
    routing: str, reference: str, at: dict[int, Scenario], simulate: Simulate
) -> str:
    """Say from which batch on `routing` is no faster than `reference`, at the longest output."""

    def compared(batch: int) -> Row:
        nearest = at[max(b for b in at if b <= batch)]
        load = nearest.workload.model_copy(update={"batch": batch})
        point = nearest.model_copy(update={"workload": load})
        compare = point.compare.model_copy(update={"baseline": reference})
        return simulate(point.model_copy(update={"compare": compare}))

    def pays(row: Row) -> bool:
        return float(str(row["decode_gain_frac"])) > 0

    rows = {batch: compared(batch) for batch in sorted(at)}
    known = {batch: row for batch, row in rows.items() if row["decode_gain_frac"] is not None}
    against = f"Against {reference}, {routing}"
    tail = f"at {next(iter(at.values())).workload.output_tokens} output tokens"
    if not known:
        return f"{against}: nothing to compare {tail}, since {reference} does not run."
    first, last = min(known), max(known)
    ends = f"{_percent(known[first]['decode_gain_frac'])}{_maybe(known[first])} at batch {first}"
    if first == last:
        return f"{against} gains {ends} {tail}."
    ends += f", {_percent(known[last]['decode_gain_frac'])}{_maybe(known[last])} at batch {last}"
    exposed = _exposed(simulate(at[last]))
    wins = [batch for batch, row in known.items() if pays(row)]
    if not wins:
        return f"{against} does not pay {tail}: {ends} ({exposed} of the step exposed)."
    if wins == list(known):
        return f"{against} pays at every swept batch {tail}: {ends}."
    if wins != list(known)[: len(wins)]:
        named = ", ".join(map(str, wins))
        return f"{against} pays at batch {named} only, {tail}: {ends}."
    low, high = wins[-1], list(known)[len(wins)]
    while high - low > 1:
        middle = (low + high) // 2
        row = compared(middle)
        if row["decode_gain_frac"] is None:
            break
        low, high = (middle, high) if pays(row) else (low, middle)
    return (
        f"{against} stops paying at batch {high} {tail}: {ends}, where {exposed} of the step is "
        "exposed routing."
    )


def _maybe(row: Row) -> str:
    """Return a gain's 5th and 95th percentile where these do not agree on its sign."""
    low, high = (row.get(f"decode_gain_frac_{end}") for end in ("p5", "p95"))
    if isinstance(low, float) and isinstance(high, float) and low < 0 < high:
        return f" (maybe {low:+.0%} to {high:+.0%})"
    return ""


def _exposed(row: Row) -> str:
    return f"{float(row['exposed_routing_s'] or 0) / float(row['step_s'] or 1):.0%}"


def _name(row: Row) -> str:
    return str(row["selector"]) + ("" if row["routing"] == "none" else f" with {row['routing']}")


def _percent(value: object) -> str:
    return "unknown" if value is None else f"{float(str(value)):+.1%}"


def _faster(value: object) -> str:
    if value is None:
        return "at an unknown speed"
    gain = float(str(value))
    return f"{abs(gain):.1%} {'faster' if gain >= 0 else 'slower'}"


def comparison_verdict(
    result: Comparison, points: Mapping[str, Sequence[tuple[int, int]]], on_grid: Sequence[Row]
) -> list[str]:
    """Return sentences about predictions beside a real run.

    Parameters
    ----------
    points
        Of each table that prices routing or attention, the (batch, context) it was measured at.
    on_grid
        The pairs that are such a point.
    """
    total = result.errors[0]
    sentences = [
        f"{len(result.pairs)} cells are both predicted and measured: bias "
        f"{_fine(total['bias_frac'])}, MAPE {float(str(total['mape_frac'])):.2%}, worst "
        f"{_fine(total['worst_frac'])} ({total['worst_cell']})."
    ]
    counted = Counter((str(row["side"]), str(row["reason"])) for row in result.dropped)
    sentences += [f"Dropped, {side}: {n} ({reason})." for (side, reason), n in counted.items()]
    if result.gains:
        gain = result.gains[0]
        sentences.append(
            f"Gains over gpu-target are {gain['mean_points']:.2f} percentage points apart on "
            f"average, {gain['worst_points']:+.2f} at worst ({gain['worst_cell']})."
        )
    if result.coverage is not None:
        found = result.coverage
        sentences.append(
            f"{found['inside']} of {found['cells']} measured cells are inside their p5..p95 "
            f"interval: {found['share_frac']:.1%} (95 % sure: {found['low_frac']:.1%} to "
            f"{found['high_frac']:.1%})."
        )
    if points:
        calibrated = len({point for own in points.values() for point in own})
        settings = {(row["batch"], row["context_tokens"]) for row in result.pairs}
        sentences.append(
            f"Calibration has {calibrated} points (batch, context), this run {len(settings)}; "
            f"{len(on_grid) or 'none'} of its {len(result.pairs)} cells "
            f"{'is' if len(on_grid) == 1 else 'are'} on one of them."
        )
    return sentences


def machine_verdict(profiles: Sequence[HardwareProfile], facts: Mapping[str, Any]) -> list[str]:
    """Return a sentence where predictions are for another machine than the run's, else nothing.

    Machines are told by the names of their GPUs, of a run without one by those of CPUs.
    """
    gpu = facts.get("gpu_name")
    names = (p.spec.gpu.name if gpu else p.spec.cpu.name for p in profiles)
    real = gpu or facts.get("cpu")
    other = [name for name in dict.fromkeys(names) if name != real]
    if not real or not other:
        return []
    return [f"Predicted for {' and '.join(other)}, measured on {real}."]


def _fine(value: object) -> str:
    return f"{float(str(value)):+.2%}"
