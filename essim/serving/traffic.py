"""Requests from a scenario's traffic: drawn, or from a trace; what cannot be served is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from essim.errors import InputError
from essim.serving.keys import Histogram, Lengths, Lognormal, Traffic
from essim.serving.load import Load, Request
from essim.serving.trace import read_trace
from essim.text.units import PS_PER_S

TOO_LONG = "longer than the model's context"
NO_ROOM = "never fits the KV pool"

Numbers = NDArray[np.float64]


@dataclass
class Offered:
    """Requests as they are offered, before a deployment is asked what it can hold.

    Attributes
    ----------
    requests
        In order of arrival.
    bad
        What was left out of them, by reason.
    prefix_tokens
        Prompt tokens that an earlier prompt began with, too, where a trace says so. They are
        computed again here.
    """

    requests: list[Request]
    users: int = 0
    think_ps: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    prefix_tokens: int = 0

    def for_(self, most_tokens: int, fits: Callable[[int, int], bool]) -> tuple[Load, Counter[str]]:
        """Return what a deployment can serve, and all that is left out, by reason."""
        bad, kept = Counter(self.bad), []
        for request in self.requests:
            prompt, output = request.input_tokens, request.output_tokens
            if prompt + output > most_tokens:
                bad[TOO_LONG] += 1
            elif not fits(prompt, output):
                bad[NO_ROOM] += 1
            else:
                kept.append(request)
        return Load(kept, self.users, self.think_ps), bad

    def faster(self, factor: float) -> Offered:
        """Return the same requests with all gaps divided by a factor."""
        requests = [
            Request(round(r.arrival_ps / factor), r.input_tokens, r.output_tokens)
            for r in self.requests
        ]
        return Offered(requests, self.users, self.think_ps, self.bad, self.prefix_tokens)

    def rate(self) -> float:
        """Return the mean rate in requests a second."""
        span_ps = self.requests[-1].arrival_ps - self.requests[0].arrival_ps
        return (len(self.requests) - 1) * PS_PER_S / span_ps if span_ps else 0.0


def offered(traffic: Traffic, folder: Path, seed: int) -> Offered:
    """Return the requests of a scenario's traffic.

    Gaps are drawn for rate 1 and then divided by the rate, and lengths by a generator of their own,
    so that all rates and all deployments see the same requests: common random numbers.

    Parameters
    ----------
    folder
        Where relative paths of traces start.

    Raises
    ------
    InputError
        If a trace cannot be used, or nothing arrives.
    """
    if traffic.trace is not None:
        return _replayed(traffic, folder / traffic.trace)
    gaps, lengths = (np.random.default_rng([seed, i]) for i in range(2))
    count, bad = traffic.requests, Counter[str]()
    if traffic.lengths is not None:
        trace = read_trace(folder / traffic.lengths)
        picked = lengths.integers(0, len(trace.rows), count)
        pairs = [trace.rows[i][1:] for i in picked]
        bad = trace.bad
    else:
        assert traffic.input_tokens is not None
        assert traffic.output_tokens is not None
        prompts = _drawn(traffic.input_tokens, lengths, count)
        outputs = _drawn(traffic.output_tokens, lengths, count)
        pairs = list(zip(prompts, outputs, strict=True))
    if traffic.users is not None:
        requests = [Request(0, prompt, output) for prompt, output in pairs]
        return Offered(requests, traffic.users, round(traffic.think_s * PS_PER_S), bad)
    times = np.cumsum(_gaps(traffic, gaps, count)) / (traffic.rate or 1.0)
    at = np.rint(times * PS_PER_S).astype(np.int64).tolist()
    requests = [Request(time, *pair) for time, pair in zip(at, pairs, strict=True)]
    return Offered(requests, bad=bad)


def _gaps(traffic: Traffic, rng: np.random.Generator, count: int) -> Numbers:
    """Return gaps between arrivals with a mean of one."""
    if traffic.arrivals == "uniform":
        return np.ones(count)
    if traffic.arrivals == "poisson":
        return rng.exponential(1.0, count)
    shape = 1.0 / (traffic.cv or 1.0) ** 2
    return rng.gamma(shape, 1.0 / shape, count)


def _drawn(lengths: Lengths, rng: np.random.Generator, count: int) -> list[int]:
    if isinstance(lengths, int):
        return [lengths] * count
    if isinstance(lengths, Histogram):
        weights = np.array(lengths.weights) / sum(lengths.weights)
        bins = rng.choice(len(weights), count, p=weights)
        edges = np.array(lengths.edges, dtype=np.float64)
        drawn = edges[bins] + rng.random(count) * (edges[bins + 1] - edges[bins])
    else:
        drawn = _lognormal(lengths, rng, count)
    return [max(1, int(value)) for value in drawn]


def _lognormal(lengths: Lognormal, rng: np.random.Generator, count: int) -> Numbers:
    variance = np.log(1 + lengths.cv**2)
    drawn = rng.lognormal(np.log(lengths.mean) - variance / 2, np.sqrt(variance), count)
    return np.minimum(np.rint(drawn), lengths.most or np.inf)


def _replayed(traffic: Traffic, file: Path) -> Offered:
    trace = read_trace(file)
    start_s, end_s = traffic.from_s, traffic.to_s or float("inf")
    requests = [
        Request(round((time_s - start_s) / traffic.rate_scale * PS_PER_S), prompt, output)
        for time_s, prompt, output in trace.rows
        if start_s <= time_s < end_s
    ]
    if not requests:
        last_s = trace.rows[-1][0]
        raise InputError(
            f"no request from {start_s} to {end_s} s", f"Its last is at {last_s:.0f} s", file=file
        )
    return Offered(requests, bad=trace.bad, prefix_tokens=trace.prefix_tokens)
