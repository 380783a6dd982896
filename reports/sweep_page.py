"""The page of a sweep: verdict, figures, results, where the numbers come from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from plotly.graph_objects import Figure

from essim.results.column import Rows
from essim.results.columns import ResultRow, unique
from essim.results.notes import gains_over_others
from essim.results.prices import PriceSources
from essim.results.tables import column
from reports.axes import axes_of
from reports.by_batch import by_batch
from reports.figures import curves
from reports.page import Block, Chart, Details, Heading, Paragraph, Table

SWEPT = ("model", "hardware", "selector", "routing", "batch", "input_tokens", "output_tokens")
_RESULTS = (
    *("decode_tokens_per_s", "decode_gain_frac", "gain_ceiling_frac", "output_tokens_per_s"),
    *("output_gain_frac", "output_ceiling_frac", "gain_over_dense_frac", "dense_ceiling_frac"),
    *("prefill_s", "decode_s", "step_s", "tpot_s", "exposed_routing_s"),
    *("gpu_busy_frac", "cpu_busy_frac", "kv_bytes", "summary_gpu_bytes", "summary_cpu_bytes"),
    *("max_batch", "measured_frac"),
)
# A browser takes long to lay out a longer table.
_MOST_ROWS = 1000
# More figures or tables of one kind would make a page that nobody reads to the end.
MOST_SETTINGS = 6
_MEANINGS = {
    "measured": "timed on the profile's hardware at this size",
    "interpolated": "between sizes timed on the profile's hardware",
    "roofline": "computed from peak rates and small kernels, not timed",
    "published": "taken from a publication, not timed",
    "extrapolated": "beyond the sizes timed, along the last slope, never below the roofline",
    "scaled": "of other settings of the method, with the difference in work",
    "transferred": "carried over from another shape, dtype or device",
    "assumed": "neither timed nor published; the profile says why",
}


def sweep_blocks(
    rows: Rows,
    verdict_sentences: Sequence[str],
    baseline: str,
    manifest: Mapping[str, object],
    by: Sequence[str] = (),
    more: Sequence[str] = (),
) -> list[Block]:
    """Compose the page of a sweep.

    Parameters
    ----------
    rows : sequence of mappings
        One row per point.
    verdict_sentences : sequence of str
        What the sweep found.
    baseline : str
        Routing that the rows' gains are against.
    manifest : mapping
        Versions, digests and the like; may be nested.
    by : sequence of str
        Swept columns beyond model, hardware, selector, routing, batch and token counts.
    more : sequence of str
        Sentences that are folded away.

    Returns
    -------
    list of Block
        For `reports.page.render`.
    """
    blocks: list[Block] = [Paragraph(sentence, "verdict") for sentence in verdict_sentences]
    folded = [Paragraph(text) for text in (*_summary(rows, by), *more)]
    blocks.append(Details("What was swept, and more in sentences", folded))
    for heading, figures in sweep_figures(rows, baseline, by, MOST_SETTINGS + 1).items():
        if figures:
            blocks += [Heading(heading), *(Chart(figure) for figure in figures[:MOST_SETTINGS])]
        if len(figures) > MOST_SETTINGS:
            text = f"The first {MOST_SETTINGS} figures; essim.plot draws all of them, or some rows."
            blocks.append(Paragraph(text, "note"))
    tables = by_batch(cast(Sequence[ResultRow], rows), [baseline] * len(rows))
    for own in tables[:MOST_SETTINGS]:
        table = Table(own.rows, list(own.rows[0]))
        blocks += [Heading("Routings by batch"), Paragraph(f"{own.title}."), table]
    others = [gains_over_others(row, baseline) for row in rows[:_MOST_ROWS]]
    blocks += [Heading("Results"), Table(others, _columns(rows, by))]
    if len(rows) > _MOST_ROWS:
        text = f"The first {_MOST_ROWS:,} of {len(rows):,} points; --out writes all of them."
        blocks.append(Paragraph(text, "note"))
    blocks += [Heading("Where the numbers come from"), *_sources(rows, manifest)]
    blocks.append(Details("Versions and digests", [Table(list(flat(manifest)), ["key", "value"])]))
    return blocks


def sweep_figures(
    rows: Rows, baseline: str, by: Sequence[str] = (), most: int | None = None
) -> dict[str, list[Figure]]:
    """Return the figures of a sweep under their headings, `most` under each.

    The other parameters are those of its page.
    """
    axes = axes_of(rows, by)
    found = {
        f"Decode by {column(axis).heading}": curves(rows, baseline, axis, by=by, most=most)
        for axis in axes
    }
    for axis in axes[:1]:
        heading = f"End to end by {column(axis).heading}"
        found[heading] = curves(rows, baseline, axis, "output", by, most)
    return found


def _summary(rows: Rows, by: Sequence[str]) -> Iterator[str]:
    """Yield how many points there are, what was swept and what was the same everywhere."""
    axes = {key: unique(rows, key) for key in (*SWEPT, *by)}
    texts = {key: [column(key).shown.text(v) for v in values] for key, values in axes.items()}
    phrases = {
        k: f"{column(k).heading} {', '.join(v)} {column(k).shown.unit}" for k, v in texts.items()
    }
    swept = [phrases[k].strip() for k, v in texts.items() if len(v) > 1]
    fixed = [phrases[k].strip() for k, v in texts.items() if len(v) == 1]
    failed = sum(row.get("status") != "ok" for row in rows)
    yield f"{len(rows):,} points" + (f", {failed:,} of which cannot run." if failed else ".")
    if swept:
        yield f"Swept: {'; '.join(swept)}."
    if fixed:
        yield f"The same everywhere: {'; '.join(fixed)}."


def _columns(rows: Rows, by: Sequence[str]) -> list[str]:
    """Return the table's columns: what differs between rows, then the results that are known."""
    axes = [key for key in (*SWEPT, *by) if len(unique(rows, key)) > 1]
    # Where all is the baseline or dense attention, there is no gain to list.
    results = [key for key in _RESULTS if set(unique(rows, key)) - {0.0 if "gain" in key else None}]
    if all(row.get("status") == "ok" for row in rows):
        return axes + results
    return [*axes, "status", *results, "reason"]


def _sources(rows: Rows, manifest: Mapping[str, object]) -> Iterator[Block]:
    """Yield the kinds of price, the operations priced so, and what to think of them."""
    points: dict[str, int] = {}
    operations: dict[str, dict[str, None]] = {}
    for row in rows:
        sources = [row.get("price_sources"), row.get("prefill_sources")]
        known = [own.kinds for own in sources if isinstance(own, PriceSources)]
        for kinds in known:
            for kind, names in kinds.items():
                operations.setdefault(kind, {}).update(dict.fromkeys(names))
        for kind in {kind for kinds in known for kind in kinds}:
            points[kind] = points.get(kind, 0) + 1
    yield Paragraph("Every operation has a price, and each price says where it comes from.")
    table = [
        {"price": k, "means": _meaning(k), "points": points[k], "operations": " ".join(names)}
        for k, names in operations.items()
    ]
    if table:
        yield Table(table, ["price", "means", "points", "operations"])
    if any(
        entry["key"].endswith(".provisional") and entry["value"] == "true"
        for entry in flat(manifest)
    ):
        yield Paragraph("Provisional: first numbers of this hardware, not a calibration.", "note")


def _meaning(kind: str) -> str:
    return "; ".join(text for word, text in _MEANINGS.items() if word in kind)


def flat(tree: Mapping[str, object], prefix: str = "") -> Iterator[dict[str, str]]:
    """Yield the leaves of a nested mapping as rows with a dotted key."""
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            text = value if isinstance(value, str) else json.dumps(value, default=str)
            yield {"key": f"{prefix}{key}", "value": text}
