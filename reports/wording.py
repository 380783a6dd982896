"""How sentences word a gain, a rate, an interval, and how much of a time is measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from essim.results.columns import ResultRow

# Below this share of measured time a result comes with a warning.
MEASURED_ENOUGH = 0.8
# More op kinds than these are counted, not named.
_MOST_KINDS = 6
INTERVAL = "90% interval "
# A share that rounds to all of it.
_ALL = 0.9995

Place = Callable[[ResultRow], str]


def percent(value: float | None) -> str:
    """Return a gain with its sign."""
    return "unknown" if value is None else f"{value:+.1%}"


def faster(gain: float | None) -> str:
    """Return a gain in words."""
    if gain is None:
        return "at an unknown speed"
    return f"{abs(gain):.1%} {'faster' if gain >= 0 else 'slower'}"


def unsure(row: ResultRow) -> str:
    """Return a gain's interval where its ends do not agree on the sign."""
    low, high = row.get("decode_gain_frac_p5"), row.get("decode_gain_frac_p95")
    if low is not None and high is not None and low < 0 < high:
        return f" (undecided: {low:+.0%} to {high:+.0%})"
    return ""


def gain(row: ResultRow, word: str = "") -> str:
    """Return a gain with its 90 % interval after `word`; undecided where the signs differ."""
    low, high = row.get("decode_gain_frac_p5"), row.get("decode_gain_frac_p95")
    text = percent(row["decode_gain_frac"])
    if low is None or high is None:
        return text
    return (
        f"{text} ({'undecided, ' if low < 0 < high else ''}{word}{percent(low)} to {percent(high)})"
    )


def rate(row: ResultRow) -> str:
    """Return a decode rate with its 90 % interval."""
    low, high = row.get("decode_tokens_per_s_p5"), row.get("decode_tokens_per_s_p95")
    middle = row["decode_tokens_per_s"] or 0.0
    digits = ",.0f" if middle >= 100 else ",.3g"
    text = f"{middle:{digits}} tokens/s"
    if low is None or high is None:
        return text
    return f"{text} ({INTERVAL}{low:{digits}} to {high:{digits}})"


def measured_share(rows: Sequence[ResultRow]) -> str:
    """Return how much of the decode time of rows is measured or interpolated."""
    shares = [row["measured_frac"] for row in rows if row["measured_frac"] is not None]
    if not shares:
        return "nothing is said of its prices"
    least, most = (f"{share:.0%}" for share in (min(shares), max(shares)))
    if min(shares) >= _ALL:
        return "all of it is measured or interpolated"
    return f"{least if least == most else f'{least} to {most}'} of it is measured or interpolated"


def least_measured(rows: Sequence[ResultRow], place: Place) -> list[str]:
    """Return a sentence about the point of which the least is measured, if that is little."""
    known = [row for row in rows if row["measured_frac"] is not None]
    weak = [row for row in known if (row["measured_frac"] or 0.0) < MEASURED_ENOUGH]
    if not weak:
        return []
    least = min(weak, key=lambda row: row["measured_frac"] or 0.0)
    text = f"Only {least['measured_frac'] or 0.0:.0%} of the decode time of {place(least)} is "
    text += f"measured or interpolated; the rest is {_weak_kinds(least)}"
    if len(known) > 1:
        text += f"; {len(weak)} of {len(known)} points are below {MEASURED_ENOUGH:.0%}"
    return [f"{text}: compare with care."]


def _weak_kinds(row: ResultRow) -> str:
    """Return by source the op kinds of a step that are not measured."""
    sources = row["price_sources"]
    weak = {s: k for s, k in (sources.kinds if sources else {}).items() if s not in _MEASURED}
    named = {
        source: " ".join(kinds) if len(kinds) <= _MOST_KINDS else f"{len(kinds)} kinds of op"
        for source, kinds in weak.items()
    }
    return ", ".join(f"{source} ({kinds})" for source, kinds in named.items())


_MEASURED = ("measured", "interpolated")


def roofline_kinds(rows: Sequence[ResultRow]) -> list[str]:
    """Return a sentence on what some row prices by roofline, in decode or prefill, if anything."""
    kinds: set[str] = set()
    for row in rows:
        for sources in (row["price_sources"], row["prefill_sources"]):
            kinds |= set(sources.kinds.get("roofline", ()) if sources else ())
    return [f"Priced by roofline, not timed: {' '.join(sorted(kinds))}."] if kinds else []
