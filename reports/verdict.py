"""The answer in sentences: whether early routing pays, what each gains, how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from essim.results.columns import ResultRow, differing
from essim.results.notes import PROVISIONAL, QUALITY_NOTE
from essim.results.tables import column
from reports.break_even import Again, Own, first_loss, group_sentences
from reports.cores import cores_sentences
from reports.wording import (
    INTERVAL,
    Place,
    faster,
    gain,
    least_measured,
    measured_share,
    percent,
    rate,
    roofline_kinds,
)

MOST_SENTENCES = 5
# With more settings than this, each gets a sentence instead of a paragraph.
_MANY_GROUPS = 4


@dataclass(frozen=True)
class Verdict:
    """What a report says in sentences.

    Attributes
    ----------
    sentences
        What everybody reads, `MOST_SENTENCES` at most: the answer comes first.
    more
        What is folded away.
    """

    sentences: list[str]
    more: list[str]


def at_most_five(first: Sequence[str], last: Sequence[str], more: Sequence[str] = ()) -> Verdict:
    """Return `first` as far as there is room, then `last`; what is left goes before `more`."""
    room = MOST_SENTENCES - len(last)
    return Verdict([*first[:room], *last], [*first[room:], *more])


def run_verdict(row: ResultRow, baseline: str) -> str:
    """Return one sentence about a single point; `baseline` is what its gains are against."""
    if row["status"] != "ok":
        return f"This point does not run: {row['reason']}."
    step = row["step_s"]
    if step is None:
        return "One output token is prefill alone: there is no decode step and no TPOT."
    routing = row["routing"]
    if routing == "none":
        against = "needs no routing"
    elif routing == baseline:
        ceiling = percent(row["gain_ceiling_frac"])
        against = f"is the baseline; routing that cost nothing would gain {ceiling}"
    else:
        ceiling = percent(row["gain_ceiling_frac"])
        sure = gain(row, INTERVAL).partition(" (")[2].rstrip(")")
        against = f"decodes {faster(row['decode_gain_frac'])} than {baseline} "
        against += f"({f'{sure}; ' if sure else ''}ceiling {ceiling})"
    exposed = (row["exposed_routing_s"] or 0.0) / step
    dense = ""
    if routing != "none":
        dense = f"; over dense attention it gains {percent(row['gain_over_dense_frac'])}"
        dense += f" (ceiling {percent(row['dense_ceiling_frac'])})"
        if (row["read_ratio"] or 0.0) <= 1:
            dense += ". Attention reads the whole cache all the same: routing is pure overhead"
    return (
        f"{_name(row)} {against}; {exposed:.1%} of each step is exposed routing and hand-over"
        f"{dense}."
    )


def run_notes(row: ResultRow, provisional: bool) -> list[str]:
    """Return what to know beside `run_verdict`: the rate, how much is measured, what is not."""
    notes = []
    if row["decode_tokens_per_s"] is not None:
        little = least_measured([row], lambda row: "this point")
        share = "" if little else f"; {measured_share([row])}"
        notes = [f"It decodes {rate(row)}{share}.", *little]
    return [*notes, *([PROVISIONAL] if provisional else []), QUALITY_NOTE]


def sweep_verdict(
    rows: Sequence[ResultRow],
    baselines: Sequence[str],
    again: Again,
    provisional: bool = False,
) -> Verdict:
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
    provisional
        Whether a hardware profile is.
    """
    groups, longest = grouped(rows), _longest(rows)
    lost = [row for row in rows if row["status"] != "ok"]
    cautions = least_measured(rows, lambda row: _point(row, _setting(rows)))
    if lost:
        reason = lost[0]["reason"]
        cautions.append(f"{len(lost)} of {len(rows)} points do not run, such as: {reason}.")
    cautions += [PROVISIONAL] * provisional
    first = _answer(longest, baselines, again)
    for routing, own in _by_routing(longest, baselines).items():
        first.append(_routing_sentence(routing, own, longest, baselines, again))
    first[1:1] = cores_sentences(longest.values())
    if "output_tokens" in differing(rows):
        output = max((row["output_tokens"] for row in longest.values()), default=0)
        first[:1] = [f"At {output} output tokens {text}" for text in first[:1]]
    first[:1] = [
        text[0].upper() + text[1:] if text.startswith("early") else text for text in first[:1]
    ]
    more: list[str] = []
    for setting, members in groups.items():
        prefix, baseline = f"[{setting}] " if setting else "", baselines[next(iter(members))]
        texts = group_sentences(members, baseline, again, brief=len(groups) > _MANY_GROUPS)
        more += [prefix + text for text in texts]
    more += roofline_kinds(rows)
    return at_most_five(first, [*cautions[:2], QUALITY_NOTE], [*cautions[2:], *more])


def grouped(rows: Sequence[ResultRow]) -> dict[str, dict[int, ResultRow]]:
    """Return rows by their position, apart by all settings but routing, batch and output length."""
    keys = [k for k in differing(rows) if k not in ("routing", "batch", "output_tokens")]
    groups: dict[str, dict[int, ResultRow]] = {}
    for i, row in enumerate(rows):
        setting = ", ".join(f"{key} {row.get(key)}" for key in keys)
        groups.setdefault(setting, {})[i] = row
    return groups


def _longest(rows: Sequence[ResultRow]) -> dict[int, ResultRow]:
    """Return the rows with a decode rate at the longest output of their setting."""
    found: dict[int, ResultRow] = {}
    for members in grouped(rows).values():
        rated = {i: row for i, row in members.items() if row["decode_tokens_per_s"] is not None}
        most = max((row["output_tokens"] for row in rated.values()), default=0)
        found |= {i: row for i, row in rated.items() if row["output_tokens"] == most}
    return found


def _by_routing(longest: Own, baselines: Sequence[str]) -> dict[str, dict[int, ResultRow]]:
    """Return rows by routing: first those with the largest gain at any point, baselines last."""
    found: dict[str, dict[int, ResultRow]] = {}
    for i, row in longest.items():
        found.setdefault(row["routing"], {})[i] = row

    def order(routing: str) -> tuple[bool, float]:
        gains = [row["decode_gain_frac"] or 0.0 for row in found[routing].values()]
        return routing in (*baselines, "none"), -max(gains)

    return {routing: found[routing] for routing in sorted(found, key=order)}


def _setting(rows: Sequence[ResultRow]) -> Place:
    """Return a function that names a row's settings: those in which `rows` differ, or its batch."""
    told = ("routing", "selector", "output_tokens")
    keys = [key for key in differing(rows) if key not in told] or ["batch"]

    def setting(row: ResultRow) -> str:
        values = ((key, row.get(key)) for key in keys)
        return ", ".join(f"{column(k).short or column(k).heading} {v}" for k, v in values if v)

    return setting


def _point(row: ResultRow, setting: Place) -> str:
    name = "dense attention" if row["routing"] == "none" else row["routing"]
    return f"{name} at {setting(row)}"


def _routing_sentence(
    routing: str, own: Own, longest: Own, baselines: Sequence[str], again: Again
) -> str:
    """Say what a routing gains at its ends, how sure that is, and how much of it is measured."""
    setting, baseline = _setting(list(longest.values())), baselines[next(iter(own))]
    rows = list(own.values())
    share = measured_share(rows)
    gained = {i: row for i, row in own.items() if row["decode_gain_frac"] is not None}
    if routing in ("none", baseline) or not gained:
        name = "dense attention" if routing == "none" else routing
        rows.sort(key=lambda row: row["decode_tokens_per_s"] or 0.0)
        ends = [f"{rate(row)} at {setting(row)}" for row in _ends(rows)]
        return f"{name} decodes {' to '.join(ends)}; {share}."
    at = {row["batch"]: (i, row) for i, row in gained.items()}
    stops, joiner = "", " to "
    if len(at) == len(gained):  # points that differ in batch alone
        ordered, joiner = [at[batch][1] for batch in sorted(at)], ", "
        batch = first_loss(at, {row["batch"]: row for row in ordered}, baseline, again)
        stops = "" if batch is None else f", and stops paying at batch {batch}"
    else:
        ordered = sorted(gained.values(), key=lambda row: row["decode_gain_frac"] or 0.0)
    return f"{_gains(routing, baseline, ordered, setting, joiner)}{stops}; {share}."


def _gains(
    routing: str, over: str, rows: Sequence[ResultRow], setting: Place, joiner: str = " to "
) -> str:
    """Say what a routing gains in the first and the last of rows."""
    first, *last = _ends(rows)
    text = f"{routing} gains {gain(first, INTERVAL)} over {over} at {setting(first)}"
    return text + "".join(f"{joiner}{gain(row)} at {setting(row)}" for row in last)


def _ends(rows: Sequence[ResultRow]) -> list[ResultRow]:
    return [rows[0], rows[-1]] if len(rows) > 1 else list(rows)


def _answer(longest: Own, baselines: Sequence[str], again: Again) -> list[str]:
    """Say whether early routing pays over the fastest that waits, where most and where least."""
    setting, found = _setting(list(longest.values())), _early(longest, baselines, again)
    if not found:
        return []
    found.sort(key=lambda pair: pair[0]["decode_gain_frac"] or 0.0)
    pays = sum((row["decode_gain_frac"] or 0.0) > 0 for row, _ in found)
    where = f"at {pays} of {len(found)} swept points"
    if len(found) == 1:
        where = "here" if pays else "not here"
    elif pays in (0, len(found)):
        where = "at every swept point" if pays else "at no swept point"
    ends = [found[0], found[-1]] if len(found) > 1 else found
    texts = [_gains(row["routing"], over, [row], setting) for row, over in ends]
    if len({(row["routing"], over) for row, over in ends}) == 1:
        texts = [_gains(ends[0][0]["routing"], ends[0][1], [row for row, _ in ends], setting)]
    return [
        f"early routing pays {where}, against the fastest routing that waits for the layer's own "
        f"query: {' to '.join(texts)}."
    ]


def _early(longest: Own, baselines: Sequence[str], again: Again) -> list[tuple[ResultRow, str]]:
    """Return each point's fastest early routing, with its gain over the fastest that waits."""
    positions, found = list(longest), []
    for members in grouped(list(longest.values())).values():
        own = {positions[j]: row for j, row in members.items()}
        for batch in dict.fromkeys(row["batch"] for row in own.values()):
            there = {i: row for i, row in own.items() if row["batch"] == batch}
            found += _fastest_early(there, baselines, again)
    return found


def _fastest_early(
    there: Own, baselines: Sequence[str], again: Again
) -> list[tuple[ResultRow, str]]:
    """Return the fastest early routing of rows at one point and what it gains over, if any."""

    def fastest(positions: list[int]) -> int | None:
        return max(positions, key=lambda i: there[i]["decode_tokens_per_s"] or 0.0, default=None)

    best = fastest([i for i, row in there.items() if row["anchor"] not in (None, "target")])
    waiting = fastest([i for i, row in there.items() if row["anchor"] == "target"])
    if best is None:
        return []
    names = [] if waiting is None else [there[waiting]["routing"]]
    if "-target" in baselines[best]:
        names.append(baselines[best])  # it may not be swept itself
    rows = [(again(best, there[best]["batch"], name), name) for name in dict.fromkeys(names)]
    known = [pair for pair in rows if pair[0]["decode_gain_frac"] is not None]
    return sorted(known, key=lambda pair: pair[0]["decode_gain_frac"] or 0.0)[:1]


def _name(row: ResultRow) -> str:
    return row["selector"] + ("" if row["routing"] == "none" else f" with {row['routing']}")
