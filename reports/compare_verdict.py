"""Sentences about predictions beside a real run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from essim.results.column import Rows, number
from essim.results.notes import QUALITY_NOTE
from reports.verdict import Verdict, at_most_five


def comparison_verdict(
    result: Mapping[str, Any],
    points: Mapping[str, Sequence[tuple[int, int]]],
    on_grid: Rows,
    machines: Sequence[str] = (),
) -> Verdict:
    """Return sentences about predictions beside a real run.

    Parameters
    ----------
    result
        ``pairs``, ``dropped``, ``errors`` and ``gains`` as rows, and ``coverage``.
    points
        Of each table that prices routing or attention, the (batch, context) it was measured at.
    on_grid
        The pairs that are such a point.
    machines
        What `machine_verdict` says.
    """
    total = result["errors"][0]
    sentences = [
        f"{len(result['pairs'])} cells are both predicted and measured: bias "
        f"{_fine(total['bias_frac'])}, MAPE {float(str(total['mape_frac'])):.2%}, worst "
        f"{_fine(total['worst_frac'])} ({total['worst_cell']}{_worst_is(result['pairs'])})."
    ]
    sentences += [*machines, *_unsteady(result["pairs"])]
    if result["coverage"] is not None:
        found = result["coverage"]
        sentences.append(
            f"{found['inside']} of {found['cells']} measured cells are inside their 90% "
            f"interval: {found['share_frac']:.1%} (95 % sure: {found['low_frac']:.1%} to "
            f"{found['high_frac']:.1%})."
        )
    if result["gains"]:
        gain = result["gains"][0]
        sentences.append(
            f"Gains over gpu-target are {gain['mean_points']:.2f} percentage points apart on "
            f"average, {gain['worst_points']:+.2f} at worst ({gain['worst_cell']})."
        )
    counted = Counter((str(row["side"]), str(row["reason"])) for row in result["dropped"])
    more = [f"Dropped, {side}: {n} ({reason})." for (side, reason), n in counted.items()]
    return at_most_five(sentences, [QUALITY_NOTE], more + _calibration(result, points, on_grid))


def _worst_is(pairs: Rows) -> str:
    """Say it where the worst error is of a bad measurement."""
    worst = max(pairs, key=lambda row: abs(number(row["error_frac"]) or 0.0))
    return ", measured unsteadily" if worst.get("unsteady") else ""


def _unsteady(pairs: Rows) -> list[str]:
    """Say which measured cells are not to be trusted, and what is left without them."""
    bad = [row for row in pairs if row.get("unsteady")]
    if not bad:
        return []
    steady = [abs(number(row["error_frac"]) or 0.0) for row in pairs if not row.get("unsteady")]
    left = "none is steady"
    if steady:
        left = f"without them MAPE is {sum(steady) / len(steady):.2%}"
    modes = ", ".join(dict.fromkeys(str(row["mode"]) for row in bad))
    return [
        f"{len(bad)} of {len(pairs)} measured cells are unsteady ({modes}): their repetitions, or "
        f"the steps within one, are more than 10% apart; {left}."
    ]


def _calibration(
    result: Mapping[str, Any], points: Mapping[str, Sequence[tuple[int, int]]], on_grid: Rows
) -> list[str]:
    if not points:
        return []
    calibrated = len({point for own in points.values() for point in own})
    settings = {(row["batch"], row["context_tokens"]) for row in result["pairs"]}
    return [
        f"Calibration has {calibrated} points (batch, context), this run {len(settings)}; "
        f"{len(on_grid) or 'none'} of its {len(result['pairs'])} cells "
        f"{'is' if len(on_grid) == 1 else 'are'} on one of them."
    ]


def machine_verdict(predicted: Sequence[str], measured: str | None) -> list[str]:
    """Return a sentence where machines predicted for are not the one measured, else nothing."""
    other = [name for name in dict.fromkeys(predicted) if name != measured]
    if not measured or not other:
        return []
    return [f"Predicted for {' and '.join(other)}, measured on {measured}."]


def _fine(value: object) -> str:
    return f"{float(str(value)):+.2%}"
