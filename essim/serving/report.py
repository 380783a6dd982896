"""The rows of `essim serve`: one for the deployment, and what it did over time."""

from __future__ import annotations

from typing import Any

import numpy as np

from essim.results.column import Row
from essim.serving.deployment import Deployment, Served
from essim.serving.keys import Slo
from essim.serving.load import Sample
from essim.serving.metrics import Seen, by_batches, queue_growth_per_s
from essim.serving.prices import StepPrices
from essim.serving.traffic import Offered
from essim.step.price import STRICT_SOURCES
from essim.text.units import PS_PER_S

# A page shows so many moments at most.
_MOMENTS = 400


def deployment_row(deployment: Deployment, offer: Offered, served: Served, own: Seen) -> Row:
    """Return what a deployment did with its load, in one row."""
    point, tpot = deployment.point, own.tpot_s[own.counted & ~np.isnan(own.tpot_s)]
    end_s = max(outcome.end_ps for outcome in served.outcomes) / PS_PER_S
    span_s = end_s - float(own.arrival_s[0])
    made = sum(record.request.output_tokens for record in served.records)
    busy = [ps for outcome in served.outcomes for ps in outcome.busy_ps]
    return {
        "name": point.name,
        "model": point.model.name,
        "hardware": point.hardware,
        "selector": point.selector.kind,
        "routing": point.routing.name if point.selector.query_conditioned else "none",
        "gpus": deployment.gpus,
        "requests": len(served.records),
        "left_out": sum(served.bad.values()),
        **_promise(offer, served, own),
        "output_tokens_per_s": made / span_s,
        "tokens_per_s_per_gpu": made / span_s / deployment.gpus,
        "tokens_per_s_per_user": float(1 / tpot.mean()) if tpot.size else None,
        "busy_frac": sum(busy) / PS_PER_S / (span_s * len(busy)),
        "preemptions": sum(record.preemptions for record in served.records),
        "repeated_prefix_tokens": offer.prefix_tokens,
        "kv_blocks": deployment.pool.gpu_blocks,
        "kv_block_tokens": deployment.pool.block_tokens,
        "peak_kv_frac": _peak(served, deployment),
        "exposed_routing_frac": exposed_frac(served),
        "engine": served.engine,
    }


def _promise(offer: Offered, served: Served, own: Seen) -> Row:
    """Return the rate, and how much of it keeps the promise; Nones for shares under overload."""
    arriving_s = float(own.arrival_s[-1] - own.arrival_s[0])
    rate = (len(served.records) - 1) / arriving_s if arriving_s else None
    growth = None if offer.users else queue_growth_per_s(served)
    row: Row = {"requests_per_s": rate, "queue_growth_per_s": growth}
    row |= dict.fromkeys(("kept_frac", "kept_low_frac", "kept_high_frac", "goodput_per_s"))
    if growth:
        return row
    places = np.flatnonzero(own.counted)
    low, high = by_batches([own.keeps[i : i + 1].astype(float) for i in places], "mean")
    share = float(own.keeps[places].mean())
    return row | {
        "kept_frac": share,
        "kept_low_frac": None if low is None else max(0.0, low),
        "kept_high_frac": None if high is None else min(1.0, high),
        "goodput_per_s": None if rate is None else share * rate,
    }


def _peak(served: Served, deployment: Deployment) -> float:
    samples = [sample for outcome in served.outcomes for sample in outcome.samples]
    most = max((s.used_blocks + s.reserved_blocks for s in samples), default=0)
    return most / deployment.pool.gpu_blocks


def exposed_frac(served: Served) -> float | None:
    """Return the share of the busy time that routing exposes; None where it is not known."""
    prices = served.prices
    if not isinstance(prices, StepPrices):
        return None
    busy_ps = sum(sum(outcome.busy_ps) for outcome in served.outcomes)
    samples = (sample for outcome in served.outcomes for sample in outcome.samples)
    exposed_ps = sum(_exposed_ps(prices, sample) for sample in samples)
    return exposed_ps / busy_ps if busy_ps else None


def _exposed_ps(prices: StepPrices, sample: Sample) -> int:
    if not sample.batch:
        return 0
    contexts = sample.batch, sample.mean, sample.longest
    value, slope, _ = prices.routing_line(*contexts, sample.chunk_tokens)
    steps = sample.steps
    return steps * value + slope * (steps * (steps - 1) // 2)


def over_time(served: Served, deployment: Deployment) -> list[Row]:
    """Return moments: requests that wait, prefill and decode, and how full the KV pools are."""
    pairs = [(i, s) for i, outcome in enumerate(served.outcomes) for s in outcome.samples]
    samples = sorted(pairs, key=lambda pair: pair[1].time_ps)
    latest: dict[tuple[int, int], Sample] = {}
    rows: list[Row] = []
    pools = sum(len(outcome.busy_ps) for outcome in served.outcomes)
    every = max(1, len(samples) // _MOMENTS)
    for place, (i, sample) in enumerate(samples):
        latest[i, sample.replica] = sample
        if place % every and place != len(samples) - 1:
            continue
        now = latest.values()
        used = sum(s.used_blocks + s.reserved_blocks for s in now)
        rows.append(
            {
                "time_s": sample.time_ps / PS_PER_S,
                "waiting": sum(s.waiting for s in now),
                "prefilling": sum(s.prefilling for s in now),
                "decoding": sum(s.decoding for s in now),
                "kv_frac": used / (deployment.pool.gpu_blocks * pools),
            }
        )
    return rows


def trace(served: Served) -> dict[str, Any]:
    """Return the steps in the Chrome trace event format, which Perfetto opens: a row a replica."""
    events: list[dict[str, Any]] = []
    for pool, outcome in enumerate(served.outcomes):
        ends = _ends_ps(outcome.samples)
        for sample, end_ps in zip(outcome.samples, ends, strict=True):
            place = {"pid": pool, "tid": sample.replica, "ts": sample.time_ps / 1e6}
            counts = {k: vars(sample)[k] for k in ("waiting", "prefilling", "decoding")}
            name = f"requests of replica {sample.replica}"
            events.append({"name": name, "ph": "C", "args": counts} | place)
            if not sample.steps:
                continue
            what = (
                "mixed"
                if sample.batch and sample.chunk_tokens
                else ("decode" if sample.batch else "prefill")
            )
            shown = {k: vars(sample)[k] for k in ("steps", "batch", "mean", "longest")}
            shown |= {"chunk_tokens": sample.chunk_tokens, "kv_blocks": sample.used_blocks}
            length = {"ph": "X", "dur": (end_ps - sample.time_ps) / 1e6, "args": shown}
            events.append({"name": what, "cat": what} | length | place)
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _ends_ps(samples: list[Sample]) -> list[int]:
    """Return when each sample's steps ended: at the next sample of its replica."""
    following: dict[int, int] = {}
    ends = []
    for sample in reversed(samples):
        ends.append(following.get(sample.replica, sample.time_ps))
        following[sample.replica] = sample.time_ps
    return ends[::-1]


def sources(served: Served) -> dict[str, str]:
    """Return the worst source of every op kind that a step was priced with."""
    prices = served.prices
    return dict(sorted(prices.sources.items())) if isinstance(prices, StepPrices) else {}


def unmeasured(worst: dict[str, str]) -> list[str]:
    """Return, in a sentence, what is priced otherwise than measured or between measured points."""
    by: dict[str, list[str]] = {}
    for kind, source in worst.items():
        if source not in STRICT_SOURCES:
            by.setdefault(source, []).append(kind)
    listed = "; ".join(f"{source} ({' '.join(kinds)})" for source, kinds in by.items())
    return [f"Not measured: {listed}. Of each, the worst that a step may have met."] if by else []


def verdict(row: dict[str, Any], slo: Slo, bad: dict[str, int]) -> list[str]:
    """Return what the row says, in sentences."""
    said = []
    if bad:
        reasons = "; ".join(f"{count:,} {reason}" for reason, count in bad.items())
        said.append(f"Left out, and not served: {reasons}.")
    growth = row["queue_growth_per_s"]
    if growth:
        said.append(
            f"Overload: the queue grows by {growth:.3g} requests a second while "
            f"{row['requests_per_s']:.3g} arrive. Latencies would only say how long one simulated."
        )
        return said
    share = float(row["kept_frac"] or 0.0)
    between = ""
    if row["kept_low_frac"] is not None:
        between = f" ({row['kept_low_frac']:.1%} to {row['kept_high_frac']:.1%} by batch means)"
    said.append(
        f"The promise is {'kept' if share >= slo.share else 'not kept'}: {share:.1%} of requests "
        f"keep all limits{between}, {slo.share:.0%} must."
    )
    if row["repeated_prefix_tokens"]:
        said.append(
            f"{row['repeated_prefix_tokens']:,} prompt tokens repeat the beginning of an "
            "earlier prompt. They are prefilled again: this server reuses no prefix."
        )
    return said
