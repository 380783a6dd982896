"""Sentences about break-even: what an early routing gains, and at which batch it stops paying."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from essim.results.columns import ResultRow
from reports.wording import faster, percent, unsure

# Position of a row, a batch, a baseline -> the row of that point with those instead of its own.
Again = Callable[[int, int, str], ResultRow]
# Rows by their positions.
Own = Mapping[int, ResultRow]


def group_sentences(own: Own, baseline: str, again: Again, brief: bool) -> Iterator[str]:
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
    references = [baseline] + [r for r in routings if r.startswith("gpu-target") and r != baseline]
    for routing in routings:
        anchor = next(row["anchor"] for (r, _, _), (_, row) in table.items() if r == routing)
        if anchor in (None, "target"):
            continue
        ends = [table.get((routing, batches[0], tokens)) for tokens in (outputs[0], outputs[-1])]
        first, last = ends
        if first and last and first[1]["decode_gain_frac"] is not None:
            yield _gain_sentence(routing, baseline, first[1], last[1])
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


def _gain_sentence(routing: str, baseline: str, first: ResultRow, last: ResultRow) -> str:
    text = f"{routing} decodes {faster(first['decode_gain_frac'])} than {baseline}"
    text += f"{unsure(first)} at batch {first['batch']} and {first['output_tokens']} output tokens"
    if first is not last:
        text += f", {faster(last['decode_gain_frac'])}{unsure(last)} at {last['output_tokens']}"
    end_to_end, ceiling = percent(last["output_gain_frac"]), percent(last["gain_ceiling_frac"])
    return f"{text} (end to end {end_to_end}; a routing that cost nothing: {ceiling})."


def _break_even_sentence(
    routing: str, reference: str, at: Mapping[int, tuple[int, ResultRow]], again: Again
) -> str:
    """Say from which batch on `routing` is no faster than `reference`, at the longest output."""
    rows = {batch: compared(at, batch, reference, again) for batch in sorted(at)}
    known = {batch: row for batch, row in rows.items() if row["decode_gain_frac"] is not None}
    against = f"Against {reference}, {routing}"
    tail = f"at {next(iter(at.values()))[1]['output_tokens']} output tokens"
    if not known:
        return f"{against}: nothing to compare {tail}, since {reference} does not run."
    first, last = min(known), max(known)
    ends = f"{percent(known[first]['decode_gain_frac'])}{unsure(known[first])} at batch {first}"
    if first == last:
        return f"{against} gains {ends} {tail}."
    ends += f", {percent(known[last]['decode_gain_frac'])}{unsure(known[last])} at batch {last}"
    exposed = _exposed(at[last][1])
    wins = [batch for batch, row in known.items() if (row["decode_gain_frac"] or 0.0) > 0]
    if not wins:
        return f"{against} does not pay {tail}: {ends} ({exposed} of the step exposed)."
    if wins == list(known):
        return f"{against} pays at every swept batch {tail}: {ends}."
    batch = first_loss(at, known, reference, again)
    if batch is None:
        named = ", ".join(map(str, wins))
        return f"{against} pays at batch {named} only, {tail}: {ends}."
    return (
        f"{against} stops paying at batch {batch} {tail}: {ends}, where {exposed} of the step is "
        "exposed routing."
    )


def compared(
    at: Mapping[int, tuple[int, ResultRow]], batch: int, reference: str, again: Again
) -> ResultRow:
    """Return the row of a routing at any batch, its gains those over `reference`."""
    nearest, _ = at[max(b for b in at if b <= batch)]
    return again(nearest, batch, reference)


def first_loss(
    at: Mapping[int, tuple[int, ResultRow]],
    known: Mapping[int, ResultRow],
    reference: str,
    again: Again,
) -> int | None:
    """Return the first batch without a gain, found by halves between swept ones.

    None where the gain does not end once for all: it is there at every batch of `known`, at none,
    or comes back.
    """
    gains = [(row["decode_gain_frac"] or 0.0) > 0 for row in known.values()]
    wins = gains.index(False) if False in gains else len(gains)
    if wins in (0, len(gains)) or any(gains[wins:]):
        return None
    low, high = list(known)[wins - 1], list(known)[wins]
    while high - low > 1:
        middle = (low + high) // 2
        gain = compared(at, middle, reference, again)["decode_gain_frac"]
        if gain is None:
            break
        low, high = (middle, high) if gain > 0 else (low, middle)
    return high


def _exposed(row: ResultRow) -> str:
    return f"{(row['exposed_routing_s'] or 0.0) / (row['step_s'] or 1.0):.0%}"
