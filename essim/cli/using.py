"""``essim pareto``, ``breakeven`` and ``diff``: what follows from results, without simulating."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from essim.cli.options import JsonOption, print_json
from essim.errors import InputError

if TYPE_CHECKING:
    from essim.results.column import Row
    from essim.results.columns import ResultRow
    from essim.results.diff import Diff
    from essim.results.reading import Result

ResultArg = Annotated[Path, typer.Argument(help="What essim sweep wrote: a file or a folder.")]
# Longer tables are cut.
_MOST_ROWS = 30
_MOST_MAPS = 4


def pareto(
    result: ResultArg,
    across: Annotated[
        list[str], typer.Option(help="A column that points of one frontier may differ in, too.")
    ] = [],  # noqa: B006 (typer reads the default, nothing changes it)
    as_json: JsonOption = False,
) -> None:
    """Show which points nothing beats: tokens/s for a user against tokens/s for a GPU."""
    from essim.results.notes import QUALITY_NOTE
    from essim.results.pareto import frontier
    from reports.console import say

    rows, differ = _rows(result)
    for key in across:
        if key not in rows[0]:
            raise InputError(f"no column {key!r}", _one_of(differ), key="--across")
    found = frontier(rows, across)
    if not found:
        raise InputError("no point decodes", "Give a result with points that run", file=result)
    runs = sum(bool(row["decode_tokens_per_s"]) for row in rows)
    verdict = [f"Nothing beats {len(found)} of {runs} points that run.", QUALITY_NOTE]
    if as_json:
        print_json({"frontier": found, "verdict": verdict})
        return
    keys = [key for key in found[0] if key in differ]
    _table(found, [*keys, "user_tokens_per_s", "gpu_tokens_per_s", "measured_frac", "point"])
    say(*verdict)


def breakeven(
    result: ResultArg,
    x: Annotated[str, typer.Option(help="The column that goes right.")],
    y: Annotated[str, typer.Option(help="The column that goes down.")],
    as_json: JsonOption = False,
) -> None:
    """Map where early routing pays over two columns of a result, and where it stops to."""
    from essim.results.notes import QUALITY_NOTE
    from essim.simulate.breakeven import break_even, turns
    from reports import terminal as show
    from reports.console import say

    rows, differ = _rows(result)
    x, y = (_axis(differ, name, option) for name, option in ((x, "--x"), (y, "--y")))
    if x == y:
        raise InputError(f"{y} is both", "Name two columns", key="--x, --y")
    cells = break_even(rows, x, y)
    if all(cell["early_gain_frac"] is None for cell in cells):
        hint = "Sweep an early routing beside one whose anchor is target"
        raise InputError("nothing routes early beside what waits", hint, file=result)
    found = turns(cells, x, y)
    if as_json:
        print_json({"map": cells, "turns": found, "verdict": [QUALITY_NOTE]})
        return
    settings = list(dict.fromkeys(cell["setting"] for cell in cells))
    show.break_even([cell for cell in cells if cell["setting"] in settings[:_MOST_MAPS]], x, y)
    if len(settings) > _MOST_MAPS:
        print(f"{_MOST_MAPS} of {len(settings)} maps shown; --json has all of them.")
    _table(found, [y, "pays"])
    say(QUALITY_NOTE)


def diff(
    before: ResultArg,
    after: ResultArg,
    column: Annotated[
        str, typer.Option(help="The column of numbers to compare.")
    ] = "decode_tokens_per_s",
    tolerance: Annotated[
        float | None, typer.Option(min=0, help="Exit 1 where a change is larger: 0.03 is 3 %.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Lay two results side by side: what changed, largest first, and what may be why."""
    from essim.results.diff import diff as compared
    from essim.results.diff import manifest_changes
    from reports.console import say

    mine, theirs = (_read(path, column, "reason", "price_sources") for path in (before, after))
    found = compared(mine.rows, theirs.rows, column)
    made = [*found.apart]
    if len(mine.manifests) == len(theirs.manifests) == 1:
        made += manifest_changes(mine.manifests[0], theirs.manifests[0])
    verdict = _said(found, column)
    if as_json:
        parts = {"points": found.points, "alone": found.alone, "sources": found.sources}
        print_json({"made": made, **parts, "verdict": verdict})
    else:
        _show_diff(found, made, column)
        say(*verdict)
    if tolerance is not None and found.largest_frac > tolerance:
        print(f"the largest change is past {tolerance:.2%}", file=sys.stderr)
        raise typer.Exit(1)


def _rows(result: Path) -> tuple[list[ResultRow], list[str]]:
    """Return a result's rows, at least one, and the columns that tell them apart."""
    from essim.results.columns import differing

    numbers = ("decode_tokens_per_s", "decode_gain_frac", "gain_over_dense_frac", "measured_frac")
    rows = _read(result, *numbers).rows
    return rows, differing(rows)


def _read(path: Path, *columns: str) -> Result:
    """Return what tells a result's points apart, and some of its columns; it has a row."""
    from essim.results.columns import COLUMNS, FIELDS
    from essim.results.reading import read_result

    known = [column for column in columns if column in COLUMNS]
    found = read_result(path, (*FIELDS, *known, "settings"))
    if not found.rows:
        raise InputError("there is no row", "Give a result with points", file=path)
    return found


def _axis(differ: Sequence[str], name: str, option: str) -> str:
    """Return the column that a name or a dotted key means, one that differs."""
    for column in (name, name.split(".")[-1]):
        if column in differ and column != "routing":
            return column
    raise InputError(f"{name!r} does not differ in this result", _one_of(differ), key=option)


def _one_of(differ: Sequence[str]) -> str:
    return f"One of: {', '.join(key for key in differ if key != 'routing') or 'none'}"


def _table(rows: Sequence[Row], keys: Sequence[str]) -> None:
    """Print the first rows, a setting before them where there are several."""
    from reports import terminal as show

    settings = ["setting"] if any(row.get("setting") for row in rows) else []
    show.columns(rows[:_MOST_ROWS], [*settings, *keys])
    if len(rows) > _MOST_ROWS:
        print(f"{_MOST_ROWS} of {len(rows)} rows shown; --json has all of them.")


def _show_diff(found: Diff, made: list[Row], column: str) -> None:
    """Print what made the results differ, then points, largest change first, then sources."""
    from essim.results.tables import column as column_of

    if made:
        # A digest is told apart by its beginning.
        brief: list[Row] = [{key: str(value)[:40] for key, value in row.items()} for row in made]
        _table(brief, ["key", "before", "after"])
    text = column_of(column).brief
    points = [
        row | {"before": text(row["before"]), "after": text(row["after"])}
        for row in found.points
        if row["change_frac"] != 0
    ]
    if points:
        _table(points, [*found.keys, "before", "after", "change_frac"])
    if found.alone:
        _table(found.alone, ["runs", *found.keys, "reason"])
    if found.sources:
        _table(found.sources, ["kind", "before", "after", "points"])


def _said(found: Diff, column: str) -> list[str]:
    """Return what a diff comes to, in sentences."""
    changed = [row for row in found.points if row["change_frac"] != 0]
    if not changed:
        texts = [f"{column} is the same at all {len(found.points)} points."]
    else:
        texts = [
            f"{column} changed at {len(changed)} of {len(found.points)} points: "
            f"median {found.median_frac:+.2%}, largest {_signed(found.points[0])}."
        ]
    if found.alone:
        texts.append(f"{len(found.alone)} points run in one result alone.")
    return texts


def _signed(row: dict[str, Any]) -> str:
    change = row["change_frac"]
    return "from or to nothing" if change is None else f"{change:+.2%}"
