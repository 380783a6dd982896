"""HTML pages and traces: what the commands compute, handed to `reports` (plotly loads here)."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essim.errors import InputError
from essim.results import Row, differing, write_bytes
from essim.scenario import Scenario
from essim.simulate import Simulator
from essim.timeline import Timeline

if TYPE_CHECKING:
    from reports.page import Block


def write_sweep(
    html: Path,
    base: Scenario,
    rows: list[Row],
    verdict: list[str],
    about: dict[str, Any],
    cells: list[Row],
    axes: tuple[str, str] | None,
) -> None:
    """Write the page of a sweep: verdict, curves, break-even maps, table, sources."""
    from reports.maps import break_even_maps
    from reports.page import Chart, Heading
    from reports.sweep_page import sweep_blocks

    known = ("model", "hardware", "selector", "routing", "batch", "input_tokens", "output_tokens")
    by = [key for key in differing(rows) if key not in known]
    blocks = sweep_blocks(rows, verdict, base.compare.baseline, about, by)
    if axes:
        maps = [Chart(figure) for figure in break_even_maps(cells, *axes)]
        at = next(i for i, block in enumerate(blocks) if block == Heading("Results"))
        blocks[at:at] = [Heading("Break-even"), *maps]
    _write_html(html, base.name, blocks)


def write_step(
    trace: Path | None,
    html: Path | None,
    step: int | None,
    base: Scenario,
    simulator: Simulator,
    parts: list[Row],
    verdict: str,
    about: dict[str, Any],
) -> None:
    """Write one decode step as a trace, as a page, or both."""
    steps = base.workload.output_tokens - 1
    if not parts:
        raise InputError("there is no decode step to show", verdict, key="--trace, --html")
    if step is not None and step > steps:
        raise InputError(f"{step} is past the last decode step", f"1 to {steps}", key="--step")
    chosen = step or (steps + 1) // 2
    timeline = Timeline.of(simulator.decode(base), chosen - 1)
    if trace is not None:
        write_bytes(trace, (json.dumps(timeline.trace(), indent=0) + "\n").encode())
    if html is not None:
        from reports.step_page import step_blocks

        title = f"{base.name}, {base.routing.name}, step {chosen} of {steps}"
        _write_html(html, base.name, step_blocks(timeline.rows(), parts, verdict, title, about))
    for written in filter(None, (trace, html)):
        print(f"wrote {written}", file=sys.stderr)


def _write_html(html: Path, title: str, blocks: Sequence[Block]) -> None:
    from reports.page import write_page

    try:
        write_page(html, title, blocks)
    except OSError as error:
        raise InputError(f"cannot be written ({error.strerror})", file=html) from None
