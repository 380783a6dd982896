"""Break-even over two swept axes: where early routing pays, where sparse pays, by how much."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from essim.errors import InputError
from essim.methods.routing import expand_preset
from essim.results.column import AnyRow, Row, plain
from essim.results.columns import COLUMNS, ResultRow, differing
from essim.simulate.scenario import Scenario

# Shares of a step that are measured differ by more: sources are unlike.
_UNLIKE_FRAC = 0.25


def map_axes(base: Scenario, rows: Sequence[AnyRow], asked: str | None) -> tuple[str, str] | None:
    """Return the result columns (x, y) of a sweep's map, None if fewer than two axes vary.

    Parameters
    ----------
    asked
        ``X,Y``, two swept keys; default the last two that are not the routing.

    Raises
    ------
    InputError
        If `asked` does not name two different swept keys with a column each.
    """
    leaves = {key: key.split(".")[-1] for key in base.sweep if key != "routing"}
    swept = {key: leaf if leaf in COLUMNS else key for key, leaf in leaves.items()}
    if asked is None:
        varied = [c for c in swept.values() if len({str(row[c]) for row in rows}) > 1]
        return (varied[-1], varied[-2]) if len(varied) > 1 else None
    by_name = swept | {column: column for column in swept.values()}
    names = [name.strip() for name in asked.split(",")]
    if len(names) != 2 or names[0] == names[1] or any(name not in by_name for name in names):
        hint = f"Two of: {', '.join(swept)}" if swept else "Nothing but the routing is swept"
        raise InputError(f"{asked!r} is not two swept keys X,Y", hint, key="--map")
    return by_name[names[0]], by_name[names[1]]


def break_even(rows: Sequence[ResultRow], x: str, y: str) -> list[Row]:
    """Return one row a cell of the map over columns `x` and `y`, other swept axes apart.

    Returns
    -------
    list of Row
        `setting` (the other axes), x, y, and at that cell: `best_routing` and its rate;
        `early_routing`, the fastest with an early anchor, and `early_gain_frac` over the fastest
        that waits for the layer's own query; `sparse_gain_frac` of the best over dense attention;
        `unlike_sources`, 1 where routings were not priced alike. None where there is nothing to
        compare.
    """
    others = [key for key in differing(rows) if key not in (x, y, "routing")]
    cells: dict[tuple[object, ...], list[ResultRow]] = {}
    for row in rows:
        key = tuple(plain(row, column) for column in (*others, x, y))
        cells.setdefault(key, []).append(row)
    return [_cell(others, x, y, members) for members in cells.values()]


def _cell(others: Sequence[str], x: str, y: str, members: list[ResultRow]) -> Row:
    first = members[0]
    cell: Row = {
        "setting": ", ".join(f"{other} {plain(first, other)}" for other in others),
        x: plain(first, x),
        y: plain(first, y),
    }
    rated = [row for row in members if row["decode_tokens_per_s"]]
    early = [row for row in rated if row["anchor"] not in (None, "target")]
    waiting = [_rate(row) for row in rated if row["anchor"] in (None, "target")]
    # The baseline may not be swept itself; its rate follows from any gain over it.
    waiting += [
        _rate(row) / (1 + row["decode_gain_frac"])
        for row in rated
        if row["decode_gain_frac"] is not None
        and expand_preset(row["baseline"])["anchor"] == "target"
    ]
    best, fastest = max(rated, key=_rate, default=None), max(early, key=_rate, default=None)
    return cell | {
        "best_routing": None if best is None else best["routing"],
        "decode_tokens_per_s": None if best is None else _rate(best),
        "early_routing": None if fastest is None else fastest["routing"],
        "early_gain_frac": _rate(fastest) / max(waiting) - 1 if fastest and waiting else None,
        "sparse_gain_frac": None if best is None else best["gain_over_dense_frac"],
        "unlike_sources": _unlike([row["measured_frac"] for row in rated]),
    }


def turns(cells: Sequence[Row], x: str, y: str) -> list[Row]:
    """Return for each setting and `y` where along `x` early routing pays: ``setting``, y, ``pays``.

    Between two numbers of `x` the gain is taken as a line: where it is zero is an estimate.
    """
    lines: dict[tuple[Any, Any], list[tuple[Any, float]]] = {}
    for cell in cells:
        line = lines.setdefault((cell["setting"], cell[y]), [])
        if cell["early_gain_frac"] is not None:
            line.append((cell[x], float(cell["early_gain_frac"])))
    return [
        {"setting": setting, y: value, "pays": _where(line, x) if line else None}
        for (setting, value), line in lines.items()
    ]


def _where(line: list[tuple[Any, float]], x: str) -> str:
    """Return where along `x` a gain is above zero, in words."""
    pays = [gain > 0 for _, gain in line]
    if all(pays) or not any(pays):
        heading = COLUMNS[x].heading if x in COLUMNS else x
        return f"{'every' if all(pays) else 'no'} {heading}"
    if not all(isinstance(place, int | float) for place, _ in line):
        return ", ".join(str(place) for place, gain in line if gain > 0)
    parts: list[str] = []
    for (a, before), (b, after) in pairwise(sorted(line)):
        if (before > 0) != (after > 0):
            at = a + (b - a) * before / (before - after)
            word = "up to" if before > 0 else "from"
            parts.append(f"{word} about {at:,.3g} (between {a:,} and {b:,})")
    return ", ".join(parts)


def _rate(row: ResultRow) -> float:
    """Return a point's decode rate, 0 where it does not run."""
    return row["decode_tokens_per_s"] or 0.0


def _unlike(measured: list[float | None]) -> int:
    """Return 1 where one routing's time is measured far more than another's, else 0.

    A gain then compares a measurement with a price that was carried over.
    """
    known = [share for share in measured if share is not None]
    return int(bool(known) and max(known) - min(known) > _UNLIKE_FRAC)
