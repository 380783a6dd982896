"""Selectors on one scale, and published numbers beside predictions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from statistics import median

import numpy as np

from essim.cli import listing
from essim.simulate.sweep import Simulator
from essim.step.like import cpu_ratio as ratio_of_cpu
from essim.step.like import form_of, measured_routers
from essim.validate.published import earlyselect as es
from essim.validate.published import prhs as tables
from essim.validate.published import table as numbers
from essim.validate.published.row import Published
from made.data import ROOT, csv_rows, profile, table

RANK = ROOT / "reports" / "data" / "zoo" / "rank.csv"


def selectors() -> list[str]:
    """Return all selectors: class, what they choose by, bytes, and their router's price."""
    entries = listing.selectors()
    keys = ["name", *list(entries[0])[1:-1], "about"]
    head = [key.replace("_", " ") for key in keys]
    return table(head, [[f"`{e['name']}`", *(e[key] for key in keys[1:])] for e in entries])


def like_form() -> str:
    """Return the four terms of routers."""
    form = form_of(profile())
    assert form is not None
    launch, read, alone, items = form.scan
    return (
        f"{launch * 1e6:.1f} us a kernel, {read:.2f} times the least time of its bytes, "
        f"{alone * 1e12:.0f} ps a byte alone, {items * 1e12:.0f} ps a value alone"
    )


def like_errors() -> list[str]:
    """Return how far off each measured router is by the others."""
    body = []
    for name, (features, times_s) in measured_routers(profile()).items():
        form = form_of(profile(), without=name)
        assert form is not None
        off = features @ form.scan / times_s - 1
        size = np.abs(off)
        middle, worst = f"{np.median(size):.0%}", f"{size.max():.0%}"
        body.append([f"`{name}`", str(len(off)), f"{np.median(off):+.0%}", middle, worst])
    return table(["router", "points", "bias", "median error", "worst"], body)


def cpu_ratio() -> str:
    """Return what a CPU router takes of its least time."""
    return f"{ratio_of_cpu(profile()):.2f}"


def _percent(text: str) -> str:
    return f"{float(text):+.0%}" if text else "–"


def _tokens(text: str) -> str:
    return f"{int(float(text)) // 1024}K" if text else "–"


def zoo() -> list[str]:
    """Return the ranking that lies in reports/data."""
    head = ["selector", "class", "routing", "TPOT", "over dense", "beats dense from"]
    head += ["surely from", "early adds", "p5 to p95"]
    body = []
    for row in csv_rows(RANK):
        low, high = row["early_gain_frac_p5"], row["early_gain_frac_p95"]
        body.append(
            [
                *(f"`{row['selector']}`", row["class"], row["routing"]),
                f"{float(row['tpot_s']) * 1e3:.2f} ms",
                _percent(row["gain_over_dense_frac"]),
                *(_tokens(row["beats_dense_from_tokens"]), _tokens(row["surely_from_tokens"])),
                _percent(row["early_gain_frac"]),
                f"{_percent(low)} to {_percent(high)}" if low else "–",
            ]
        )
    return table(head, body)


def zoo_answers() -> list[str]:
    """Return what the ranking comes to."""
    rows = csv_rows(RANK)
    best = rows[0]
    low = float(best["decode_tokens_per_s_p5"])
    near = [r["selector"] for r in rows[1:] if float(r["decode_tokens_per_s_p95"]) >= low]
    early = [row for row in rows if row["early_gain_frac"]]
    sure = [row for row in early if float(row["early_gain_frac_p5"]) > 0]
    routed = next(row for row in rows if row["class"] == "A")
    measured = ("rocketkv", "quest", "exact_topk")
    known = [row["selector"] for row in rows if row["selector"] in measured]
    return [
        f"- Fastest is `{best['selector']}`; within what prices are off by, as fast may be "
        f"{', '.join(f'`{kind}`' for kind in near)}.",
        f"- Of those that choose in each step `{routed['selector']}` is fastest. Only of "
        f"{', '.join(f'`{kind}`' for kind in known)} the router was measured.",
        f"- Early routing surely adds to {len(sure)} of {len(early)}: "
        f"{', '.join(f'`{row_}`' for row_ in (row['selector'] for row in sure))}.",
    ]


@cache
def _found() -> list[Published]:
    return list(numbers.comparisons(Simulator()))


def published() -> list[str]:
    """Return errors by system and kind."""
    head = ["system", "kind", "numbers", "held out", "fitted", "median error", "worst"]
    body: list[list[str]] = []
    for row in numbers.summary(_found()):
        errors = (row["median_error_frac"], row["worst_error_frac"])
        shown = ["–" if e is None else f"{float(e):.1%}" for e in errors]
        keys = ("system", "kind", "numbers", "checked", "fitted")
        body.append([*(str(row[key]) for key in keys), *shown])
    return table(head, body)


def _errors(found: Iterator[Published] | list[Published]) -> list[float]:
    return [abs(number.error) for number in found if number.held_out]


def prhs(which: str) -> str:
    """Return a number of the PrHS tables' errors."""
    own = [number for number in _found() if number.system == "PrHS"]
    if which == "median":
        return f"{median(_errors(own)):.1%}"
    if which == "worst":
        return f"{max(_errors(own)):.0%}"
    if which == "plain":
        return f"{max(_errors([n for n in own if 'Quest' not in n.setting])):.1%}"
    others = [_errors(tables.comparisons(first)) for first in (1, 2)]
    return " and ".join(f"{median(errors):.1%} and {max(errors):.0%}" for errors in others)


def earlyselect(fitted: int) -> list[str]:
    """Return the seven gains, with so many factors fitted."""
    own = [n for n in _found() if n.system == "EarlySelectKV" and n.unit == "%"]
    rows = [n for n in own if n.fitted == fitted and n.kind == "table"]
    body = [
        [
            *(n.setting.split(", RTX")[0], n.metric, f"{n.published:g} %", f"{n.predicted:.2f} %"),
            "yes" if n.held_out else "no",
        ]
        for n in rows
    ]
    return table(["setting", "gain", "published", "predicted", "held out"], body)


def factors() -> str:
    """Return the three factors."""
    found = es.fit(es.run(Simulator(), 1, es.LONG_TOKENS))
    return f"{found.routing:.2f}, {found.handover:.2f} and {found.prefill:.2f}"


def unpredicted() -> list[str]:
    """Return numbers without a prediction."""
    keys = ["system", "number", "reason"]
    return table(keys, [[str(row[key]) for key in keys] for row in numbers.unpredicted()])
