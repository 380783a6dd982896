"""Selectors of a sweep on one scale: fastest, from where faster than dense, what earlier adds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from essim.results.column import Row
from essim.results.columns import ResultRow
from essim.simulate.scenario import Scenario

DENSE = "dense"
LATE = ("none", "gpu-target")


def rank(points: Sequence[Scenario], rows: Sequence[ResultRow], at_tokens: int) -> list[Row]:
    """Return a row for each selector, fastest first, those that do not run last.

    Parameters
    ----------
    at_tokens
        The input length that selectors are ranked at; each is taken with its fastest routing.
    """
    classes = {p.selector.kind: p.selector.route_class() for p in points}
    dense = {r["input_tokens"]: r for r in rows if r["selector"] == DENSE and _runs(r)}
    found = [_of(kind, classes[kind], rows, dense, at_tokens) for kind in classes]
    return sorted(found, key=lambda row: -float(row["decode_tokens_per_s"] or 0.0))


def ranked(
    points: Sequence[Scenario], rows: Sequence[ResultRow], at_tokens: int
) -> tuple[list[Row], list[str]]:
    """Return `rank` and the `sentences` about it."""
    found = rank(points, rows, at_tokens)
    return found, list(sentences(found, at_tokens))


def _runs(row: ResultRow) -> bool:
    return row["status"] == "ok" and row.get("decode_tokens_per_s") is not None


def _of(
    kind: str,
    letter: str,
    rows: Sequence[ResultRow],
    dense: dict[int, ResultRow],
    at_tokens: int,
) -> Row:
    """Return what is known of one selector."""
    own = [row for row in rows if row["selector"] == kind and _runs(row)]
    here = [row for row in own if row["input_tokens"] == at_tokens]
    late = [row for row in own if row["routing"] in LATE]
    found: Row = {
        "selector": kind,
        "class": letter,
        "beats_dense_from_tokens": _from(late, dense, "decode_tokens_per_s"),
        "surely_from_tokens": _from(late, dense, "decode_tokens_per_s_p5"),
    }
    if not here:
        return found | dict.fromkeys(_AT, None)
    best = max(here, key=_rate)
    early = [row for row in here if row["routing"] not in LATE]
    added = max(early, key=_rate) if early else None
    return found | {
        "routing": best["routing"],
        "tpot_s": best["tpot_s"],
        "decode_tokens_per_s": best["decode_tokens_per_s"],
        "decode_tokens_per_s_p5": best.get("decode_tokens_per_s_p5"),
        "decode_tokens_per_s_p95": best.get("decode_tokens_per_s_p95"),
        "gain_over_dense_frac": best.get("gain_over_dense_frac"),
        "early_routing": added["routing"] if added else None,
        "early_gain_frac": added["decode_gain_frac"] if added else None,
        "early_gain_frac_p5": added.get("decode_gain_frac_p5") if added else None,
        "early_gain_frac_p95": added.get("decode_gain_frac_p95") if added else None,
        "measured_frac": best["measured_frac"],
    }


_AT = (
    *("routing", "tpot_s", "decode_tokens_per_s", "decode_tokens_per_s_p5"),
    *("decode_tokens_per_s_p95", "gain_over_dense_frac", "early_routing", "early_gain_frac"),
    *("early_gain_frac_p5", "early_gain_frac_p95", "measured_frac"),
)


def _rate(row: ResultRow) -> float:
    return float(row["decode_tokens_per_s"] or 0.0)


def _from(late: Sequence[ResultRow], dense: dict[int, ResultRow], column: str) -> int | None:
    """Return the least context from which on a selector decodes faster than dense attention."""
    start = None
    for row in sorted(late, key=lambda r: -r["input_tokens"]):
        theirs, mine = dense.get(row["input_tokens"]), row.get(column)
        if theirs is None:
            continue
        if mine is None or float(str(mine)) <= _rate(theirs):
            break
        start = row["input_tokens"]
    return start


def sentences(ranked: Sequence[Row], at_tokens: int) -> Iterator[str]:
    """Yield the answers: which is fastest, which others may be, what earlier routing adds."""
    runs = [row for row in ranked if row["decode_tokens_per_s"] is not None]
    if not runs:
        yield f"No selector runs at {at_tokens:,} input tokens."
        return
    best = runs[0]
    low = float(best["decode_tokens_per_s_p5"] or best["decode_tokens_per_s"] or 0.0)
    near = [
        str(row["selector"])
        for row in runs[1:]
        if float(row["decode_tokens_per_s_p95"] or row["decode_tokens_per_s"] or 0.0) >= low
    ]
    gain = float(best["gain_over_dense_frac"] or 0.0)
    yield (
        f"Fastest at {at_tokens:,} input tokens: {best['selector']} ({best['routing']}), "
        f"{gain:+.0%} over dense attention."
    )
    yield f"As fast within what prices are off by: {', '.join(near) or 'none'}."
    early = [row for row in runs if row["early_gain_frac"] is not None]
    sure = [row for row in early if float(row["early_gain_frac_p5"] or 0.0) > 0]
    if early:
        most = max(early, key=lambda row: float(row["early_gain_frac"] or 0.0))
        added = float(most["early_gain_frac"] or 0.0)
        yield (
            f"Early routing adds most to {most['selector']}: {added:+.0%} "
            f"({most['early_routing']}). It surely adds to {len(sure)} of {len(early)} that can be "
            "routed early."
        )
    no_gain = [str(row["selector"]) for row in runs if row["beats_dense_from_tokens"] is None]
    slower = ", ".join(kind for kind in no_gain if kind != DENSE)
    if slower:
        yield f"No faster than dense attention in decode at any length here: {slower}."
