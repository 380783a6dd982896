"""What a request saw, and what all of them did: every metric is defined here, once.

A request arrives, is admitted (its first chunk starts), gets its first token when the step that
ends its prompt ends, and each further token when the step that made it ends.

- TTFT: first token less arrival.
- TPOT: (last token less first) / (tokens - 1); a request of one token has none.
- ITL: the gaps between its tokens, each; those of a request that was preempted hold the wait.
- E2E: last token less arrival.

Warm-up: requests that arrive in the first tenth of the time in which requests arrive are served,
but not counted. Intervals are by batch means: what is counted, in order of arrival, is cut into 20
batches, each batch has its own quantile, and the interval is their mean plus and minus Student's t
(95 %, 19 degrees of freedom) standard errors. Of a percentile there is none with fewer than 20
requests a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from essim.results.column import Row
from essim.serving.deployment import Served
from essim.serving.keys import Slo
from essim.text.units import PS_PER_S

WARM_UP = 0.1
BATCHES = 20
# Student's t for 19 degrees of freedom, two-sided 95 %.
_T19 = 2.093
_FEW = 20
QUANTILES = (50, 90, 95, 99)
# A queue that grows by more than this share of what arrives is a queue that never ends.
_GROWS = 0.05

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Seen:
    """What each request saw, in order of arrival; times in seconds, NaN where there is none.

    Attributes
    ----------
    keeps
        Whether it keeps every limit of the promise.
    counted
        Whether it comes after the warm-up.
    """

    arrival_s: Values
    ttft_s: Values
    tpot_s: Values
    itl_s: Values
    e2e_s: Values
    queued_s: Values
    keeps: NDArray[np.bool_]
    counted: NDArray[np.bool_]


def seen(served: Served, slo: Slo) -> Seen:
    """Return what each request saw; its ITL is at the promise's quantile, else its longest."""
    share = slo.itl_s.quantile if slo.itl_s else 1.0
    itl = np.array([_itl_s(served, i, share) for i in range(len(served.records))])
    return _seen(served, slo, itl)


def _seen(served: Served, slo: Slo, itl: Values) -> Seen:
    arrival, admitted, first, finish, tokens = _columns(served)
    tpot = np.where(tokens > 1, (finish - first) / np.maximum(tokens - 1, 1), np.nan)
    keeps = np.ones(len(arrival), dtype=bool)
    for limit, values in (
        (slo.ttft_s, first - arrival),
        (slo.tpot_s, tpot),
        (slo.itl_s.limit_s if slo.itl_s else None, itl),
        (slo.e2e_s, finish - arrival),
    ):
        if limit is not None:
            keeps &= np.isnan(values) | (values <= limit)
    counted = np.ones(0, dtype=bool)
    if len(arrival):
        counted = arrival >= arrival[0] + WARM_UP * (arrival[-1] - arrival[0])
    return Seen(
        *(arrival, first - arrival, tpot, itl, finish - arrival, admitted - arrival),
        *(keeps, counted),
    )


def _columns(served: Served) -> tuple[Values, Values, Values, Values, NDArray[np.int64]]:
    rows = [(r.arrival_ps, r.admitted_ps, r.first_ps, r.finish_ps) for r in served.records]
    times = np.array(rows, dtype=np.float64).reshape(-1, 4) / PS_PER_S
    tokens = np.array([r.request.output_tokens for r in served.records], dtype=np.int64)
    return times[:, 0], times[:, 1], times[:, 2], times[:, 3], tokens


def _itl_s(served: Served, i: int, share: float) -> float:
    gaps = np.diff(served.token_ps(i))
    if not gaps.size:
        return float("nan")
    if share == 1.0:
        return float(gaps.max()) / PS_PER_S
    return float(np.quantile(gaps, share, method="inverted_cdf")) / PS_PER_S


def kept_share(served: Served, slo: Slo) -> float:
    """Return the share of counted requests that keep the promise."""
    if slo.itl_s is None:  # gaps are many, and not asked for
        own = _seen(served, slo, np.full(len(served.records), np.nan))
    else:
        own = seen(served, slo)
    return float(own.keeps[own.counted].mean())


def by_batches(values: Sequence[Values], statistic: str) -> tuple[float | None, float | None]:
    """Return the interval of a statistic by batch means; Nones with too little to tell.

    Parameters
    ----------
    values
        One array a request, in order of arrival.
    statistic
        ``mean``, or a percentile such as ``95``.
    """
    if len(values) < BATCHES * (2 if statistic == "mean" else _FEW):
        return None, None
    found = []
    for part in np.array_split(np.arange(len(values)), BATCHES):
        batch = np.concatenate([values[i] for i in part])
        batch = batch[~np.isnan(batch)]
        if not batch.size:
            return None, None
        each = batch.mean() if statistic == "mean" else np.percentile(batch, float(statistic))
        found.append(float(each))
    mean, error = float(np.mean(found)), _T19 * float(np.std(found, ddof=1)) / BATCHES**0.5
    return mean - error, mean + error


def latency_rows(served: Served, own: Seen) -> list[Row]:
    """Return a row each for TTFT, TPOT, ITL and E2E: mean, percentiles, interval of the 95th."""
    places = np.flatnonzero(own.counted)
    gaps = [np.diff(served.token_ps(int(i))) / PS_PER_S for i in places]
    rows = []
    for name, values in (
        ("TTFT", [own.ttft_s[i : i + 1] for i in places]),
        ("TPOT", [own.tpot_s[i : i + 1] for i in places]),
        ("ITL", gaps),
        ("E2E", [own.e2e_s[i : i + 1] for i in places]),
    ):
        rows.append(_latency_row(name, values))
    return rows


def _latency_row(name: str, values: Sequence[Values]) -> Row:
    every = np.concatenate([*values, np.empty(0)])
    every = every[~np.isnan(every)]
    row: Row = {"metric": name, "mean_s": float(every.mean()) if every.size else None}
    for percent in QUANTILES:
        row[f"p{percent}_s"] = float(np.percentile(every, percent)) if every.size else None
    row["p95_low_s"], row["p95_high_s"] = by_batches(values, "95")
    return row


def request_rows(served: Served, own: Seen) -> list[Row]:
    """Return one row a request."""
    _, _, first, finish, _ = _columns(served)
    return [
        {
            "request": i,
            "replica": record.replica,
            "arrival_s": float(own.arrival_s[i]),
            "input_tokens": record.request.input_tokens,
            "output_tokens": record.request.output_tokens,
            "queued_s": float(own.queued_s[i]),
            "first_token_s": float(first[i]),
            "finish_s": float(finish[i]),
            "ttft_s": float(own.ttft_s[i]),
            "tpot_s": float(own.tpot_s[i]),
            "itl_s": float(own.itl_s[i]),
            "e2e_s": float(own.e2e_s[i]),
            "preemptions": record.preemptions,
            "keeps": int(own.keeps[i]),
            "counted": int(own.counted[i]),
        }
        for i, record in enumerate(served.records)
    ]


def queue_growth_per_s(served: Served) -> float | None:
    """Return by how many requests a second the queue grows, None where it does not.

    It does if, over the second half of the time in which requests arrive, it grows by more than a
    twentieth of those that arrive then, and by two at least. A closed loop has no such queue.
    """
    arrivals = [record.arrival_ps for record in served.records]
    first, last = arrivals[0], arrivals[-1]
    middle = (first + last) // 2
    if first == last:
        return None
    waiting_at = [
        sum(r.arrival_ps <= time < r.admitted_ps for r in served.records) for time in (middle, last)
    ]
    grown, came = waiting_at[1] - waiting_at[0], sum(time > middle for time in arrivals)
    if grown <= max(2, _GROWS * came):
        return None
    return grown * PS_PER_S / (last - middle)
