"""HTML pages and traces: what the commands compute, handed to `reports` (plotly loads here)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essim.errors import InputError
from essim.results.column import Row
from essim.results.columns import ResultRow, differing
from essim.results.notes import QUALITY_NOTE
from essim.simulate.breakeven import break_even
from essim.simulate.scenario import Scenario
from essim.simulate.sweep import Simulator
from essim.simulate.timeline import Timeline
from essim.validate.compare import Comparison

if TYPE_CHECKING:
    from reports.page import Block
    from reports.verdict import Verdict


def sweep(
    base: Scenario,
    rows: list[ResultRow],
    verdict: Verdict,
    about: dict[str, Any],
    cells: list[Row],
    axes: tuple[str, str] | None,
) -> bytes:
    """Return the page of a sweep: verdict, curves, break-even maps, table, sources."""
    from reports.maps import break_even_maps
    from reports.page import Chart, Heading
    from reports.sweep_page import MOST_SETTINGS, sweep_blocks

    known = ("model", "hardware", "selector", "routing", "batch", "input_tokens", "output_tokens")
    by = [key for key in differing(rows) if key not in known]
    sentences, more, baseline = verdict.sentences, verdict.more, base.compare.baseline
    blocks = sweep_blocks(rows, sentences, baseline, about, by, more)
    if axes:
        settings = list(dict.fromkeys(cell["setting"] for cell in cells))[:MOST_SETTINGS]
        choices = _by_routing(rows, axes, cells, settings)
        maps = [Chart(figure) for figure in break_even_maps(choices, *axes)]
        at = next(i for i, block in enumerate(blocks) if block == Heading("Results"))
        blocks[at:at] = [Heading("Break-even"), *maps]
    return _page(base.name, blocks)


def _by_routing(
    rows: Sequence[ResultRow], axes: tuple[str, str], best: list[Row], settings: Sequence[object]
) -> dict[str, dict[str | None, list[Row]]]:
    """Return the cells of each gain's map: of the best routing (None), and of each one alone."""

    def shown(cells: list[Row]) -> list[Row]:
        return [cell for cell in cells if cell["setting"] in settings]

    def cells(routing: str, besides: bool) -> list[Row]:
        own = [
            row
            for row in rows
            if row["routing"] == routing or (besides and row["anchor"] in (None, "target"))
        ]
        return shown(break_even(own, *axes))

    anchors = {row["routing"]: row["anchor"] for row in rows if row["routing"] != "none"}
    early = [routing for routing, anchor in anchors.items() if anchor not in (None, "target")]
    best = shown(best)
    return {
        "early_gain_frac": {None: best} | {name: cells(name, True) for name in early},
        "sparse_gain_frac": {None: best} | {name: cells(name, False) for name in anchors},
    }


def sweep_sentences(
    points: Sequence[Scenario], rows: Sequence[ResultRow], simulator: Simulator
) -> Verdict:
    """Return what a sweep found; batches between the swept ones are simulated as it asks."""
    from reports.verdict import sweep_verdict

    def again(i: int, batch: int, baseline: str) -> ResultRow:
        load = points[i].workload.model_copy(update={"batch": batch})
        compare = points[i].compare.model_copy(update={"baseline": baseline})
        point = points[i].model_copy(update={"workload": load, "compare": compare})
        return simulator.rows([point])[0]

    provisional = any(simulator.profile(point.hardware).spec.provisional for point in points)
    return sweep_verdict(rows, [p.compare.baseline for p in points], again, provisional)


def figure2(rows: list[Row], about: dict[str, Any]) -> bytes:
    """Return the page of Figure 2."""
    from reports.figure2 import figure2_blocks
    from reports.page import Paragraph

    blocks = [Paragraph(QUALITY_NOTE, "note"), *figure2_blocks(rows, about)]
    return _page("Routing's share of attention-side compute", blocks)


def ranking(
    name: str, rows: list[ResultRow], ranked: list[Row], said: list[str], about: dict[str, Any]
) -> bytes:
    """Return the page of ranked selectors."""
    from reports.ranking import ranking_blocks

    return _page(name, ranking_blocks(rows, ranked, said, about))


def published(
    rows: list[Row],
    systems: list[Row],
    missing: list[Row],
    curves: list[Row],
    about: dict[str, Any],
) -> bytes:
    """Return the page of published comparisons."""
    from reports.published import published_blocks

    blocks = published_blocks(rows, systems, missing, curves, about)
    return _page("Published and predicted", blocks)


def step_files(
    trace: Path | None,
    html: Path | None,
    step: int | None,
    base: Scenario,
    simulator: Simulator,
    parts: list[Row],
    sentences: Sequence[str],
    about: dict[str, Any],
) -> dict[Path, bytes]:
    """Return one decode step as a trace, as a page, or both."""
    if trace is None and html is None:
        return {}
    steps = base.workload.output_tokens - 1
    if not parts:
        raise InputError("there is no decode step to show", sentences[0], key="--trace, --html")
    if step is not None and step > steps:
        raise InputError(f"{step} is past the last decode step", f"1 to {steps}", key="--step")
    chosen = step or (steps + 1) // 2
    timeline = Timeline.of(simulator.decode(base), chosen - 1)
    files = {}
    if trace is not None:
        load, selector = base.workload, base.resolved_selector()
        kept, pages = selector.kept_prompt_tokens(load.input_tokens), selector.table_conditions()
        attended = pages["page_tokens"] * pages["top_pages"] if pages else kept
        of = {"mode": base.mode, "batch": load.batch, "context_tokens": kept + chosen}
        of |= {"attended_tokens": attended}
        content = timeline.trace() | {"otherData": of}
        files[trace] = (json.dumps(content, indent=0) + "\n").encode()
    if html is not None:
        from reports.step_page import step_blocks

        title = f"{base.name}, {base.routing.name}, step {chosen} of {steps}"
        said = " ".join(sentences)
        blocks = step_blocks(timeline.rows(), parts, said, title, about, base.routing.name)
        files[html] = _page(base.name, blocks)
    return files


def comparison(
    result: Comparison,
    points: Mapping[str, Sequence[tuple[int, int]]],
    steps: Sequence[Mapping[str, Any]],
    verdict: Verdict,
    about: Mapping[str, Any],
) -> bytes:
    """Return the page of predictions beside a real run."""
    from reports.compare_page import compare_blocks

    said = verdict.sentences, about, verdict.more
    blocks = compare_blocks(result.as_dict(), points, steps, *said)
    return _page("Predicted and measured decode steps", blocks)


def _page(title: str, blocks: Sequence[Block]) -> bytes:
    from reports.page import render

    return render(title, blocks).encode()
