"""The page of predictions beside a real run: parity, curves, errors, one step over the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from essim.results.column import AnyRow, Rows, number
from reports.compare import curves, grid, parity
from reports.page import Block, Chart, Details, Heading, Paragraph, Table
from reports.step_page import step_figure
from reports.sweep_page import flat

_ERRORS = ("cells", "unsteady_cells", "bias_frac", "mape_frac", "worst_frac", "worst_cell")
_OPS = ("kind", "predicted_ops", "real_ops", "predicted_s", "real_s", "error_s", "error_frac")
_TRACED = (
    "Mean duration of an op by kind. Tracing itself lengthens each real op by a stamp, about a "
    "microsecond: a traced step is longer than a timed one, and a small op looks worse here than "
    "it is. A kind that one of the two does not show has no error."
)


def compare_blocks(
    result: Mapping[str, Any],
    points: Mapping[str, Sequence[tuple[int, int]]],
    steps: Sequence[Mapping[str, Any]],
    sentences: Sequence[str],
    manifest: Mapping[str, object],
    more: Sequence[str] = (),
) -> list[Block]:
    """Compose the page.

    Parameters
    ----------
    result : mapping
        ``pairs``, ``dropped``, ``errors`` and ``gains`` as rows.
    points : mapping
        Of each table that prices routing or attention, its calibrated (batch, context).
    steps : sequence of mapping
        One predicted step beside a traced one: ``of``, rows ``predicted``, ``real``, ``errors``.
    sentences : sequence of str
        What the comparison found.
    manifest : mapping
        Versions, settings; may be nested.
    more : sequence of str
        Sentences that are folded away.
    """
    pairs: Rows = result["pairs"]
    blocks: list[Block] = [Paragraph(text, "verdict") for text in sentences]
    if more:
        blocks.append(Details("More in sentences", [Paragraph(text) for text in more]))
    blocks += [Heading("Parity"), Chart(parity(pairs))]
    blocks += [Heading("Errors by mode")]
    blocks += [Table(result["errors"], ["mode", *_budget(result["errors"]), *_ERRORS])]
    for heading, which in (("Throughput", "tokens_per_s"), ("Gain over gpu-target", "gain_frac")):
        figures = [f for axis in ("batch", "context_tokens") for f in curves(pairs, which, axis)]
        if figures:
            blocks += [Heading(heading), *(Chart(figure) for figure in figures)]
    if result["gains"]:
        shown = ["gains", "mean_points", "worst_points", "worst_cell"]
        gains: Rows = result["gains"]
        blocks += [Heading("Gains by mode"), Table(gains, ["mode", *_budget(gains), *shown])]
    for step in steps:
        blocks += _step(step)
    if points:
        blocks += [Heading("Calibration and validation"), Chart(grid(pairs, points))]
    blocks += [Details("Every pair", [Table(pairs, list(pairs[0]))])]
    if result["dropped"]:
        dropped: Rows = result["dropped"]
        blocks.append(Details("Without a partner", [Table(dropped, list(dropped[0]))]))
    blocks.append(Details("Versions and settings", [Table(list(flat(manifest)), ["key", "value"])]))
    return blocks


def _step(step: Mapping[str, Any]) -> list[Block]:
    """Return one predicted step over the traced one, and errors by op kind."""
    rows: list[AnyRow] = [
        {**row, "stream": f"{_STREAMS.get(str(row['stream']), row['stream'])}, {side}"}
        for side in ("predicted", "real")
        for row in _with_exposed(step[side])
    ]
    of = step["of"]
    order = sorted(dict.fromkeys(str(row["stream"]) for row in rows))
    rows.sort(key=lambda row: order.index(str(row["stream"])))
    title = f"{of['mode']}, predicted at batch {of['batch']}, context {of['context_tokens']}"
    figure = step_figure(rows, title, of["mode"])
    figure.layout.meta["notes"].append(
        "The real step is the one that the run traced for this mode: its first cell."
    )
    return [
        Heading(f"A step of {of['mode']}, predicted and real"),
        Chart(figure),
        Paragraph(_TRACED, "note"),
        Table(step["errors"], _OPS),
    ]


def _with_exposed(rows: Rows) -> Iterator[AnyRow]:
    """Yield ops of a trace with what the main stream waits, and all that it is busy with, exposed.

    A predicted await starts when the answer is there; a real one spins from when it is asked for.
    """
    end_s = 0.0
    for row in rows:
        start, end = number(row["start_s"]) or 0.0, number(row["end_s"]) or 0.0
        main = row["stream"] == "gpu"
        wait_s = max(0.0, start - end_s) if main and row["kind"] == "await" else 0.0
        yield {**row, "wait_s": wait_s, "exposed_s": end - start + wait_s if main else 0.0}
        end_s = end if main else end_s


_STREAMS = {"gpu": "main", "gpu_side": "side", "cpu": "router"}


def _budget(rows: Rows) -> list[str]:
    key = "attended_tokens"
    return [key] if any(row.get(key) is not None for row in rows) else []
