"""Figures of predictions beside a real run: parity, curves, calibration and validation points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from plotly.graph_objects import Figure, Scatter

from essim.results.column import AnyRow, Rows, number
from essim.results.tables import column
from reports.pairs import band, line, markers, spread, unsteady, value
from reports.palette import ACCENT, NEUTRAL, look

_BASELINE = "gpu-target"
_BARS = {
    "tokens_per_s": "least and largest of the repetitions",
    "gain_frac": f"from the least repetition of {_BASELINE} over the mode's largest step time, to "
    f"the largest of {_BASELINE} over the mode's least",
}
# Throughput all but doubles with the batch: on this axis modes are apart at the small ones too.
_RATES = [digit * 10**power for power in range(6) for digit in (1, 2, 5)]
_LOG = {"type": "log", "tickvals": _RATES, "ticktext": [f"{rate:,}" for rate in _RATES]}
_TWOS = [2**power for power in range(24)]
_DOUBLING = {"type": "log", "tickvals": _TWOS, "ticktext": [f"{two:,}" for two in _TWOS]}
_SO_FAR = (
    "In a decode the context is the kept prompt and the output so far: this axis stands for output "
    "length. A real run times one output length from several positions; a marker "
    "is the mean of the steps timed from one of them."
)


def parity(pairs: Rows) -> Figure:
    """Draw predicted over measured step time, a marker a cell, with the line where they agree."""
    times = [t for row in pairs for key in ("predicted_s", "measured_s") if (t := value(row, key))]
    ends = [min(times) * 0.95, max(times) * 1.05]
    figure = Figure(
        [
            Scatter(
                x=ends,
                y=ends,
                mode="lines",
                name="equal",
                line={"color": NEUTRAL, "dash": "dot"},
                hoverinfo="skip",
            )
        ]
    )
    for mode, own in _by_mode(pairs).items():
        xs = [value(row, "measured_s") for row in own]
        figure.add_trace(markers(mode, own, xs, "predicted_s"))
    figure.add_traces(unsteady(pairs))
    figure.update_layout(
        title={"text": "Predicted over measured mean step"},
        height=560,
        xaxis={"title": {"text": "measured, ms"}, "type": "log"},
        yaxis={"title": {"text": "predicted, ms"}, "type": "log"},
        hovermode="closest",
    )
    return figure


def curves(pairs: Rows, which: str, axis: str) -> list[Figure]:
    """Draw predictions as lines and measurements as markers over batch or context.

    Parameters
    ----------
    which : {"tokens_per_s", "gain_frac"}
        Throughput of all sequences, with the predicted interval, or the gain over the baseline.
        Measurements carry the spread of their repetitions.
    axis : {"batch", "context_tokens"}
        The other of the two is at its smallest and its largest value; a figure for each, and for
        each budget of attended tokens.
    """
    other = "context_tokens" if axis == "batch" else "batch"
    rated = [row for row in _with_rates(pairs) if row.get(f"predicted_{which}") is not None]
    if not rated:
        return []
    counts = sorted({int(number(row[other]) or 0) for row in rated})
    budgets = dict.fromkeys(row["attended_tokens"] for row in rated if row["mode"] != "dense")
    figures = []
    for fixed in dict.fromkeys((counts[0], counts[-1])):
        for budget in budgets or {None: None}:
            own = [
                row
                for row in rated
                if row[other] == fixed
                and (row["mode"] == "dense" or row["attended_tokens"] == budget)
            ]
            if len({row[axis] for row in own}) > 1:
                where = f"{column(other).heading} {fixed:,}"
                figures.append(_curve(own, which, axis, where, budget))
    return figures


def _curve(shown: Rows, which: str, axis: str, where: str, budget: object) -> Figure:
    figure = Figure()
    for mode, own in _by_mode(shown).items():
        rows = sorted(own, key=lambda row: number(row[axis]) or 0.0)
        xs = [row[axis] for row in rows]
        figure.add_traces(band(rows, xs, which, look(mode).colour))
        figure.add_trace(line(mode, rows, xs, which))
        measured = markers(mode, rows, xs, f"measured_{which}")
        figure.add_trace(measured.update(showlegend=False, error_y=spread(rows, which)))
    figure.add_traces(unsteady(shown))
    _lay_out(figure, which, axis, where, budget)
    return figure


def _with_rates(pairs: Rows) -> list[dict[str, object]]:
    """Return pairs with throughputs beside step times, and with the ends of measured gains.

    ``SIDE_tokens_per_s`` is the batch over the step time: its ``_low`` is of the largest step, its
    ``_high`` of the least. ``measured_low_gain_frac`` is the baseline's least over the mode's
    largest step time less one, ``measured_high_gain_frac`` its largest over the mode's least.
    """
    base = {_setting(row): row for row in pairs if row["mode"] == _BASELINE}
    ends = {"": "", "_low": "_high", "_high": "_low"}
    rated = []
    for pair in pairs:
        row = dict(pair)
        for side in ("predicted", "measured"):
            for end, of in ends.items():
                rate = _ratio(pair.get("batch"), pair.get(f"{side}{of}_s"))
                row[f"{side}{end}_tokens_per_s"] = rate
        other = base.get(_setting(pair), {}) if pair["mode"] != _BASELINE else {}
        for end in ("_low", "_high"):
            ratio = _ratio(other.get(f"measured{end}_s"), pair.get(f"measured{ends[end]}_s"))
            row[f"measured{end}_gain_frac"] = None if ratio is None else ratio - 1
        rated.append(row)
    return rated


def _setting(row: AnyRow) -> tuple[object, ...]:
    return row["batch"], row["context_tokens"], row["attended_tokens"]


def _ratio(above: object, below: object) -> float | None:
    top, bottom = number(above), number(below)
    return top / bottom if top is not None and bottom else None


def grid(pairs: Rows, points: Mapping[str, Sequence[tuple[int, int]]]) -> Figure:
    """Draw where tables were calibrated and where steps were validated."""
    calibrated = sorted({tuple(point) for own in points.values() for point in own})
    validated = sorted({(row["batch"], row["context_tokens"]) for row in pairs}, key=str)
    figure = Figure()
    for name, places, symbol, colour in (
        (f"calibration, {len(calibrated)} points", calibrated, "circle-open", NEUTRAL),
        (f"validation, {len(validated)} points", validated, "x", ACCENT),
    ):
        figure.add_trace(
            Scatter(
                x=[batch for batch, _ in places],
                y=[context for _, context in places],
                mode="markers",
                name=name,
                marker={"symbol": symbol, "color": colour, "size": 9},
                hovertemplate="batch %{x}, context %{y}<extra></extra>",
            )
        )
    figure.update_layout(
        title={
            "text": "Calibration and validation points",
        },
        height=460,
        xaxis={"title": {"text": "batch, sequences"}, **_DOUBLING},
        yaxis={"title": {"text": "context, tokens"}, **_DOUBLING},
        meta={"notes": [f"Tables: {', '.join(points)}."]},
    )
    return figure


def _by_mode(rows: Rows) -> dict[str, list[AnyRow]]:
    groups: dict[str, list[AnyRow]] = {}
    for row in rows:
        groups.setdefault(str(row["mode"]), []).append(row)
    return groups


def _lay_out(figure: Figure, which: str, axis: str, fixed: str, budget: object) -> None:
    what = "Throughput" if which == "tokens_per_s" else f"Gain over {_BASELINE}"
    attended = f", {budget} attended tokens" if budget is not None else ""
    areas = " Areas: its interval." if any(trace.fill for trace in figure.data) else ""
    notes = [f"Lines: predicted.{areas} Markers: measured. Bars: {_BARS[which]}."]
    place = column(axis).title
    if axis == "context_tokens":
        notes.append(_SO_FAR)
        place += " (kept prompt + output so far)"
    unit = column(f"measured_{which}").shown.unit
    ticks = sorted({int(x) for trace in figure.data for x in trace.x if x is not None})
    figure.update_layout(
        title={
            "text": f"{what} over {column(axis).heading}",
            "subtitle": {"text": f"{fixed}{attended}"},
        },
        height=460,
        xaxis={
            "title": {"text": place},
            "type": "log",
            "tickvals": ticks,
            "ticktext": [f"{tick:,}" for tick in ticks],
        },
        yaxis={
            "title": {"text": f"{what.split()[0].lower()}, {unit}"},
            **(_LOG if (which, axis) == ("tokens_per_s", "batch") else {}),
        },
        hovermode="closest",
        meta={"notes": notes},
    )
