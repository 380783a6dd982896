"""The answer in sentences: what early routing gains, and at which batch it stops paying."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from essim.results.column import Rows
from essim.results.columns import ResultRow, differing

# Position of a row, a batch, a baseline -> the row of that point with those instead of its own.
Again = Callable[[int, int, str], ResultRow]

# With more settings than this, each gets a sentence instead of a paragraph.
_MANY_GROUPS = 4


def run_verdict(row: ResultRow, baseline: str) -> str:
    """Return one sentence about a single point; `baseline` is what its gains are against."""
    if row["status"] != "ok":
        return f"This point does not run: {row['reason']}."
    step, gain = row["step_s"], row["decode_gain_frac"]
    if step is None:
        return "One output token is prefill alone: there is no decode step and no TPOT."
    routing = row["routing"]
    if routing == "none":
        against = "needs no routing"
    elif routing == baseline:
        ceiling = _percent(row["gain_ceiling_frac"])
        against = f"is the baseline; routing that cost nothing would gain {ceiling}"
    else:
        ceiling = _percent(row["gain_ceiling_frac"])
        against = f"decodes {_faster(gain)} than {baseline}{_unsure(row)} (ceiling {ceiling})"
    exposed = (row["exposed_routing_s"] or 0.0) / step
    dense = ""
    if routing != "none":
        dense = f"; over dense attention it gains {_percent(row['gain_over_dense_frac'])}"
        dense += f" (ceiling {_percent(row['dense_ceiling_frac'])})"
        if (row["read_ratio"] or 0.0) <= 1:
            dense += ". Attention reads the whole cache all the same: routing is pure overhead"
    return (
        f"{_name(row)} {against}; {exposed:.1%} of each step is exposed routing and hand-over"
        f"{dense}."
    )


def sweep_verdict(rows: Sequence[ResultRow], baselines: Sequence[str], again: Again) -> list[str]:
    """Return sentences about a sweep.

    Parameters
    ----------
    rows
        One a point.
    baselines
        The routing that each row's gains are against, in the same order.
    again
        Returns a row's point with another batch and baseline: break-even batches are searched
        between swept ones.
    """
    keys = [k for k in differing(rows) if k not in ("routing", "batch", "output_tokens")]
    groups: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        setting = ", ".join(f"{key} {row.get(key)}" for key in keys)
        groups.setdefault(setting, []).append(i)
    sentences: list[str] = []
    for setting, members in groups.items():
        prefix = f"[{setting}] " if setting else ""
        own, baseline = {i: rows[i] for i in members}, baselines[members[0]]
        texts = list(_group_verdict(own, baseline, again, brief=len(groups) > _MANY_GROUPS))
        sentences += [prefix + text for text in texts]
    lost = [row for row in rows if row["status"] != "ok"]
    if lost:
        example = lost[0]["reason"]
        sentences.append(f"{len(lost)} of {len(rows)} points do not run, such as: {example}.")
    return sentences


def _group_verdict(
    own: Mapping[int, ResultRow], baseline: str, again: Again, brief: bool
) -> Iterator[str]:
    """Yield the sentences of points that differ in routing, batch and output length only.

    With `brief`, only what each early routing gains.
    """
    table = {
        (row["routing"], row["batch"], row["output_tokens"]): (i, row)
        for i, row in own.items()
        if row["decode_tokens_per_s"] is not None
    }
    routings = list(dict.fromkeys(routing for routing, _, _ in table))
    batches = sorted({batch for _, batch, _ in table})
    outputs = sorted({tokens for _, _, tokens in table})
    if not table:
        return
    references = [baseline] + [r for r in routings if r.startswith("gpu-target") and r != baseline]
    for routing in routings:
        anchor = next(row["anchor"] for (r, _, _), (_, row) in table.items() if r == routing)
        if anchor in (None, "target"):
            continue
        ends = [table.get((routing, batches[0], tokens)) for tokens in (outputs[0], outputs[-1])]
        if all(ends) and ends[0] and ends[0][1]["decode_gain_frac"] is not None:
            yield _gain_sentence(routing, baseline, [end[1] for end in ends if end])
        for reference in [] if brief else [r for r in references if r != routing]:
            at = {
                batch: table[routing, batch, outputs[-1]]
                for batch in batches
                if (routing, batch, outputs[-1]) in table
            }
            if at:
                yield _break_even_sentence(routing, reference, at, again)
            else:
                yield f"{routing} does not run at {outputs[-1]} output tokens."
    for batch in [] if brief or len(routings) < 2 else batches:
        there = [row for (_, b, n), (_, row) in table.items() if (b, n) == (batch, outputs[-1])]
        if there:
            yield _fastest_sentence(there)


def _fastest_sentence(rows: Sequence[ResultRow]) -> str:
    """Say which routing is the fastest of those at one batch and output length."""
    best = max(rows, key=lambda row: row["decode_tokens_per_s"] or 0.0)
    return (
        f"Fastest at batch {best['batch']} and {best['output_tokens']} output tokens: "
        f"{best['routing']}, {best['decode_tokens_per_s'] or 0.0:.0f} tokens/s"
        f" ({_percent(best['gain_over_dense_frac'])} over dense attention)."
    )


def _gain_sentence(routing: str, baseline: str, ends: Sequence[ResultRow]) -> str:
    first, last = ends
    text = f"{routing} decodes {_faster(first['decode_gain_frac'])} than {baseline}"
    text += f"{_unsure(first)} at batch {first['batch']} and {first['output_tokens']} output tokens"
    if first is not last:
        text += f", {_faster(last['decode_gain_frac'])}{_unsure(last)} at {last['output_tokens']}"
    end_to_end, ceiling = _percent(last["output_gain_frac"]), _percent(last["gain_ceiling_frac"])
    return f"{text} (end to end {end_to_end}; a routing that cost nothing: {ceiling})."


def _break_even_sentence(
    routing: str, reference: str, at: dict[int, tuple[int, ResultRow]], again: Again
) -> str:
    """Say from which batch on `routing` is no faster than `reference`, at the longest output."""

    def compared(batch: int) -> ResultRow:
        nearest, _ = at[max(b for b in at if b <= batch)]
        return again(nearest, batch, reference)

    rows = {batch: compared(batch) for batch in sorted(at)}
    known = {batch: row for batch, row in rows.items() if row["decode_gain_frac"] is not None}
    against = f"Against {reference}, {routing}"
    tail = f"at {next(iter(at.values()))[1]['output_tokens']} output tokens"
    if not known:
        return f"{against}: nothing to compare {tail}, since {reference} does not run."
    first, last = min(known), max(known)
    ends = f"{_percent(known[first]['decode_gain_frac'])}{_unsure(known[first])} at batch {first}"
    if first == last:
        return f"{against} gains {ends} {tail}."
    ends += f", {_percent(known[last]['decode_gain_frac'])}{_unsure(known[last])} at batch {last}"
    exposed = _exposed(at[last][1])
    wins = [batch for batch, row in known.items() if (row["decode_gain_frac"] or 0.0) > 0]
    if not wins:
        return f"{against} does not pay {tail}: {ends} ({exposed} of the step exposed)."
    if wins == list(known):
        return f"{against} pays at every swept batch {tail}: {ends}."
    if wins != list(known)[: len(wins)]:
        named = ", ".join(map(str, wins))
        return f"{against} pays at batch {named} only, {tail}: {ends}."
    batch = _first_loss(compared, wins[-1], list(known)[len(wins)])
    return (
        f"{against} stops paying at batch {batch} {tail}: {ends}, where {exposed} of the step is "
        "exposed routing."
    )


def _first_loss(compared: Callable[[int], ResultRow], low: int, high: int) -> int:
    """Return the first batch without a gain, if `low` has one and `high` has none, by halves."""
    while high - low > 1:
        middle = (low + high) // 2
        gain = compared(middle)["decode_gain_frac"]
        if gain is None:
            break
        low, high = (middle, high) if gain > 0 else (low, middle)
    return high


def _unsure(row: ResultRow) -> str:
    """Return a gain's 5th and 95th percentile where these do not agree on its sign."""
    low, high = row.get("decode_gain_frac_p5"), row.get("decode_gain_frac_p95")
    if low is not None and high is not None and low < 0 < high:
        return f" (undecided: {low:+.0%} to {high:+.0%})"
    return ""


def _exposed(row: ResultRow) -> str:
    return f"{(row['exposed_routing_s'] or 0.0) / (row['step_s'] or 1.0):.0%}"


def _name(row: ResultRow) -> str:
    return row["selector"] + ("" if row["routing"] == "none" else f" with {row['routing']}")


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value:+.1%}"


def _faster(gain: float | None) -> str:
    if gain is None:
        return "at an unknown speed"
    return f"{abs(gain):.1%} {'faster' if gain >= 0 else 'slower'}"


def comparison_verdict(
    result: Mapping[str, Any], points: Mapping[str, Sequence[tuple[int, int]]], on_grid: Rows
) -> list[str]:
    """Return sentences about predictions beside a real run.

    Parameters
    ----------
    result
        ``pairs``, ``dropped``, ``errors`` and ``gains`` as rows, and ``coverage``.
    points
        Of each table that prices routing or attention, the (batch, context) it was measured at.
    on_grid
        The pairs that are such a point.
    """
    total = result["errors"][0]
    sentences = [
        f"{len(result['pairs'])} cells are both predicted and measured: bias "
        f"{_fine(total['bias_frac'])}, MAPE {float(str(total['mape_frac'])):.2%}, worst "
        f"{_fine(total['worst_frac'])} ({total['worst_cell']})."
    ]
    counted = Counter((str(row["side"]), str(row["reason"])) for row in result["dropped"])
    sentences += [f"Dropped, {side}: {n} ({reason})." for (side, reason), n in counted.items()]
    if result["gains"]:
        gain = result["gains"][0]
        sentences.append(
            f"Gains over gpu-target are {gain['mean_points']:.2f} percentage points apart on "
            f"average, {gain['worst_points']:+.2f} at worst ({gain['worst_cell']})."
        )
    if result["coverage"] is not None:
        found = result["coverage"]
        sentences.append(
            f"{found['inside']} of {found['cells']} measured cells are inside their p5..p95 "
            f"interval: {found['share_frac']:.1%} (95 % sure: {found['low_frac']:.1%} to "
            f"{found['high_frac']:.1%})."
        )
    if points:
        calibrated = len({point for own in points.values() for point in own})
        settings = {(row["batch"], row["context_tokens"]) for row in result["pairs"]}
        sentences.append(
            f"Calibration has {calibrated} points (batch, context), this run {len(settings)}; "
            f"{len(on_grid) or 'none'} of its {len(result['pairs'])} cells "
            f"{'is' if len(on_grid) == 1 else 'are'} on one of them."
        )
    return sentences


def machine_verdict(predicted: Sequence[str], measured: str | None) -> list[str]:
    """Return a sentence where machines predicted for are not the one measured, else nothing."""
    other = [name for name in dict.fromkeys(predicted) if name != measured]
    if not measured or not other:
        return []
    return [f"Predicted for {' and '.join(other)}, measured on {measured}."]


def _fine(value: object) -> str:
    return f"{float(str(value)):+.2%}"
