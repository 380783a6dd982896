"""What a plan says in sentences: the cheapest deployment, and what each routing saves."""

from __future__ import annotations

from collections.abc import Sequence

from essim.results.column import Row
from essim.serving.keys import Asked
from essim.serving.traffic import Offered


def sentences(rows: Sequence[Row], offer: Offered, asked: Asked) -> list[str]:
    """Return the cheapest deployment, and what each placement of routing saves."""
    kept = [row for row in rows if row["status"] == "ok"]
    if not kept:
        return ["No deployment that was tried keeps the promise. Reasons stand in the table."]
    best, rate = kept[0], offer.rate()
    carries = "bursts are too much for one GPU at any rate"
    if best["rate_per_gpu"]:
        carries = f"one GPU carries {best['rate_per_gpu']:.3g} a second"
    said = [
        f"At {rate:.3g} requests a second, {best['deployment']} keeps the promise with "
        f"{_gpus(best)}; {carries}, bound by {best['bound_by']}."
    ]
    base = next((r for r in kept if r["routing"] == asked.point.compare.baseline), None)
    if base is None:
        return said
    others = [
        r for r in kept if r["routing"] != base["routing"] and r["hardware"] == base["hardware"]
    ]
    return said + [_saving(row, base) for row in others if row["selector"] == base["selector"]]


def _gpus(row: Row) -> str:
    return f"{row['gpus']} GPU{'s' if row['gpus'] != 1 else ''}"


def _saving(row: Row, base: Row) -> str:
    """Return how many GPUs a routing saves, or that the prices do not tell."""
    ends = [row["gpus_low"], row["gpus_high"], base["gpus_low"], base["gpus_high"]]
    mine, theirs = int(row["gpus"] or 0), int(base["gpus"] or 0)
    what = f"{row['routing']} needs {_gpus(row)}, {base['routing']} {theirs}"
    if None in ends:
        return f"{what}: undecided, for want of an interval."
    low, high, base_low, base_high = (int(end or 0) for end in ends)
    if mine == theirs and low == high == base_low == base_high:
        return f"{what}: it saves none."
    if high < base_low or base_high < low:
        saved = theirs - mine
        return f"{what}: it {'saves' if saved > 0 else 'costs'} {abs(saved)}."
    return (
        f"{what}: undecided, since prices allow {low} to {high} against {base_low} to {base_high}."
    )
