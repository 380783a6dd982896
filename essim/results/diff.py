"""What changed between two results: versions, profiles or machines laid side by side."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from essim.errors import InputError
from essim.results.column import Row, plain
from essim.results.columns import COLUMNS, FIELDS, ResultRow
from essim.results.prices import PriceSources
from essim.text.yaml import nearest_hint

# What a manifest says that is told elsewhere.
_TOLD = ("rows", "columns", "scenario.text")
_OF_ROUTING = ("where", "anchor", "mix", "kernel", "projection_rank", "channels", "cpu_threads")


@dataclass(frozen=True)
class Diff:
    """What changed from one result to another.

    Attributes
    ----------
    keys
        The columns that tell points apart, without those that the routing's name says.
    apart
        ``key before after`` of columns that are one thing in all of one result and another in all
        of the other, such as the machine.
    points
        A row a point that runs in both, largest change first: `keys`, ``before``, ``after`` and
        ``change_frac``: after over before, less one; of a share, after less before. None where
        nothing became something.
    alone
        Points that run in one alone: ``runs`` (before or after), `keys`, ``reason``.
    sources
        ``kind before after points``: op kinds whose time comes from elsewhere now.
    """

    keys: list[str]
    apart: list[Row]
    points: list[Row]
    alone: list[Row]
    sources: list[Row]

    @property
    def largest_frac(self) -> float:
        """The largest change, without its sign."""
        return _size(self.points[0]) if self.points else 0.0

    @property
    def median_frac(self) -> float:
        """The median change."""
        known = [float(row["change_frac"]) for row in self.points if row["change_frac"] is not None]
        return statistics.median(known or [0.0])


def diff(
    before: Sequence[ResultRow], after: Sequence[ResultRow], column: str = "decode_tokens_per_s"
) -> Diff:
    """Return what changed in a column of numbers from one result's rows to another's.

    Points are the same where their scenarios are, but for what sets all of one result apart.

    Raises
    ------
    InputError
        If there is no such column, a result has a point twice, or no point is in both.
    """
    numbers = [name for name, c in COLUMNS.items() if name not in FIELDS and c.kind is not str]
    if column not in numbers:
        hint = nearest_hint(column, numbers) or "Such as decode_tokens_per_s, step_s, prefill_s"
        raise InputError(f"no column {column!r} of numbers", hint, key="--column")
    if not before or not after:
        raise InputError("there is no row", key="after" if before else "before")
    both = (*before, *after)
    extra = [key for key in {**before[0], **after[0]} if key not in COLUMNS]
    values = {k: (_values(before, k), _values(after, k)) for k in (*extra, *FIELDS)}
    apart: list[Row] = []
    keys: list[str] = []
    for key, (one, other) in values.items():
        if len(one) == len(other) == 1 and one != other:
            apart.append({"key": key, "before": one.pop(), "after": other.pop()})
        elif len(one | other) > 1:
            keys.append(key)
    mine, theirs = _by_point(before, keys, "before"), _by_point(after, keys, "after")
    common = [(own, theirs[key]) for key, own in mine.items() if key in theirs]
    if not common:
        ways = ", ".join(keys) or "none"
        raise InputError("no point is in both", f"They differ in {ways}: give results that share")
    run = [pair for pair in common if pair[0]["status"] == pair[1]["status"] == "ok"]
    shown = [key for key in keys if not _follows_routing(both, key)]
    points = sorted((_point(*pair, shown, column) for pair in run), key=_size, reverse=True)
    return Diff(shown, apart, points, list(_alone(mine, theirs, shown)), _sources(run))


def _follows_routing(rows: Sequence[ResultRow], key: str) -> bool:
    """Return whether a setting of the routing is the same for all points of a routing."""
    if key not in _OF_ROUTING:
        return False
    return len({(row["routing"], row.get(key)) for row in rows}) == len(_values(rows, "routing"))


def manifest_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Row]:
    """Return ``key before after`` of what two manifests both say, each differently."""
    mine, theirs = dict(_leaves(before)), dict(_leaves(after))
    return [
        {"key": key, "before": value, "after": theirs[key]}
        for key, value in mine.items()
        if value != theirs.get(key, value) and not key.startswith(_TOLD)
    ]


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)


def _values(rows: Sequence[ResultRow], key: str) -> set[Any]:
    """Return what rows have in a column."""
    return {row.get(key) for row in rows}


def _by_point(
    rows: Sequence[ResultRow], keys: Sequence[str], side: str
) -> dict[tuple[object, ...], ResultRow]:
    found: dict[tuple[object, ...], ResultRow] = {}
    for row in rows:
        key = tuple([row.get(name) for name in keys])
        if key in found:
            where = ", ".join(f"{n} {v}" for n, v in zip(keys, key, strict=True) if v is not None)
            raise InputError(f"a point is there twice: {where or 'one alone'}", key=side)
        found[key] = row
    return found


def _point(one: ResultRow, other: ResultRow, keys: Sequence[str], column: str) -> Row:
    """Return a point's row: where it is, and how much it changed."""
    mine, theirs = (dict[str, Any](row)[column] for row in (one, other))
    change = None
    if mine is not None and theirs is not None:
        if COLUMNS[column].unit == "1" or mine == theirs:
            change = float(theirs - mine)
        elif mine:
            change = theirs / mine - 1
    return {
        **{key: plain(one, key) for key in keys},
        **{"before": mine, "after": theirs, "change_frac": change},
    }


def _size(row: Row) -> float:
    """Return how large a change is; what became something from nothing comes first."""
    if row["change_frac"] is None:
        return math.inf if row["before"] != row["after"] else -1.0
    return abs(float(row["change_frac"]))


def _alone(
    mine: Mapping[tuple[object, ...], ResultRow],
    theirs: Mapping[tuple[object, ...], ResultRow],
    keys: Sequence[str],
) -> Iterator[Row]:
    """Yield the points that run in one result and not in the other, and why."""
    for runs, own, others in (("before", mine, theirs), ("after", theirs, mine)):
        for key, row in own.items():
            other = others.get(key)
            if row["status"] == "ok" and (other is None or other["status"] != "ok"):
                reason = other["reason"] if other else "the other result does not have it"
                yield {"runs": runs, **{name: plain(row, name) for name in keys}, "reason": reason}


def _sources(pairs: Sequence[tuple[ResultRow, ResultRow]]) -> list[Row]:
    """Return op kinds whose worst price has another source, in most points first."""
    moved: Counter[tuple[str, str, str]] = Counter()
    for one, other in pairs:
        mine, theirs = (_by_kind(row["price_sources"]) for row in (one, other))
        for kind in mine.keys() & theirs.keys():
            if mine[kind] != theirs[kind]:
                moved[kind, mine[kind], theirs[kind]] += 1
    return [
        {"kind": kind, "before": one, "after": other, "points": count}
        for (kind, one, other), count in sorted(moved.items(), key=lambda item: (-item[1], item[0]))
    ]


@cache
def _by_kind(text: str | None) -> dict[str, str]:
    """Return the source of each op kind."""
    sources = PriceSources.read(text or "").kinds
    return {kind: source for source, kinds in sources.items() for kind in kinds}
