"""A campaign of decode runs: cells, repetitions spread over time, a CSV that survives a kill."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from measure.harness.table import Progress, ResultTable, fill
from measure.harness.timing import Axis, Measurement, Spec, from_samples

AXES = ("mode", "batch", "context_tokens", "attended_tokens", "repetition")
REPETITIONS = 3
WARM_UP_STEPS = 4


@dataclass(frozen=True)
class Cell:
    """One point of a campaign.

    Attributes
    ----------
    position_tokens
        Cached tokens when the first timed step starts: timed step i = 1, 2, ... attends over
        ``position_tokens + i``.
    attended_tokens
        Tokens of the routed pages, the tail page not counted; in mode ``dense`` the position.
    """

    mode: str
    batch: int
    position_tokens: int
    attended_tokens: int


class Run(Protocol):
    """What a campaign needs of a decode run."""

    def set_position(self, tokens: int) -> None:
        """Fill the cache up to `tokens`."""

    def steps(self, count: int) -> list[float]:
        """Decode so many tokens a sequence; return seconds of each step."""


MakeRun = Callable[[Cell], AbstractContextManager[Run]]


@dataclass(frozen=True)
class Plan:
    """What a machine measures.

    Attributes
    ----------
    make_run
        Returns a run with room for the cell's position and its steps; leaving it gives it back.
    dtype
        Of weights and cache.
    source_hash
        Of everything that is timed.
    facts
        What provenance says of the plan.
    trace_step
        Returns one step of a cell in the Chrome trace format: the last of `WARM_UP_STEPS` from its
        position on.
    group
        What cells have in common whose repetitions are made before the next group's: where setting
        up takes longer than measuring. By default all cells are one group.
    host
        Returns the state of the host so far, a row a look; ``host.csv`` beside the cells keeps it.
    release
        Frees what the last group holds, after a last look at the host.
    """

    cells: tuple[Cell, ...]
    make_run: MakeRun
    steps: int
    dtype: str
    source_hash: str
    facts: dict[str, object]
    trace_step: Callable[[Cell], dict[str, Any]]
    group: Callable[[Cell], object] = lambda cell: None
    host: Callable[[], Sequence[Mapping[str, float]]] = list
    release: Callable[[], None] = lambda: None


def grid(
    modes: Sequence[str],
    batches: Sequence[int],
    positions_tokens: Sequence[int],
    attended_tokens: Sequence[int],
) -> tuple[Cell, ...]:
    """Return all cells; modes vary fastest, so that what is compared is measured close in time."""
    cells: dict[Cell, None] = {}
    for batch in batches:
        for position in positions_tokens:
            for attended in attended_tokens:
                for mode in modes:
                    kept = position if mode == "dense" else attended
                    cells[Cell(mode, batch, position, kept)] = None
    return tuple(cells)


def run(plan: Plan, out_csv: Path, on_progress: Callable[[Progress], None]) -> None:
    """Time every cell `REPETITIONS` times and write a row each, synced as it is made.

    All cells of a group are gone over once, then again: a drift of the machine shows as spread
    between repetitions. What the CSV has already is not measured again.

    Raises
    ------
    InputError
        If the CSV has rows of other sources.
    """
    specs = [
        Spec("decode_step", _axes(cell, repetition), plan.dtype, "cold", None, plan.source_hash)
        for group in dict.fromkeys(map(plan.group, plan.cells))
        for repetition in range(1, REPETITIONS + 1)
        for cell in plan.cells
        if plan.group(cell) == group
    ]
    cells = {tuple(_axes(cell, 0).values())[:-1]: cell for cell in plan.cells}
    written = 0

    def keep_host() -> None:
        nonlocal written
        looks = plan.host()
        _append(out_csv.with_name("host.csv"), looks[written:])
        written = len(looks)

    def tell(progress: Progress) -> None:
        keep_host()
        on_progress(progress)

    fill(
        ResultTable(out_csv, AXES, plan.source_hash),
        specs,
        lambda spec: _measure(spec, cells[tuple(spec.axes.values())[:-1]], plan),
        tell,
    )
    plan.release()
    keep_host()


def _append(file: Path, rows: Sequence[Mapping[str, float]]) -> None:
    if not rows:
        return
    fresh = not file.exists()
    with file.open("a", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        if fresh:
            writer.writeheader()
        writer.writerows(rows)


def _axes(cell: Cell, repetition: int) -> dict[str, Axis]:
    where = (cell.mode, cell.batch, cell.position_tokens, cell.attended_tokens, repetition)
    return dict(zip(AXES, where, strict=True))


def _measure(spec: Spec, cell: Cell, plan: Plan) -> Measurement:
    """Time consecutive steps of a fresh run, after a few to warm up."""
    with plan.make_run(cell) as made:
        made.set_position(cell.position_tokens - WARM_UP_STEPS)
        made.steps(WARM_UP_STEPS)
        return from_samples(spec, made.steps(plan.steps))


def write_traces(plan: Plan, folder: Path) -> None:
    """Write ``trace-MODE.json`` of each mode's first cell, for Chrome or Perfetto."""
    first = {cell.mode: cell for cell in reversed(plan.cells)}
    for mode, cell in first.items():
        of = {
            "mode": mode,
            "batch": cell.batch,
            "context_tokens": cell.position_tokens + WARM_UP_STEPS,
            "attended_tokens": cell.attended_tokens,
        }
        text = json.dumps(plan.trace_step(cell) | {"otherData": of})
        (folder / f"trace-{mode}.json").write_text(text + "\n", encoding="utf-8")
