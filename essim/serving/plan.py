"""`essim plan`: the cheapest deployments that keep the promise, routing among what is varied.

A candidate's rate is the largest that one replica carries, found by bisection over the same
requests, only closer together (common random numbers). A candidate that fails at the best rate
found so far for its routing, selector and hardware cannot win there, and is not looked at further.
The best of each such group is then served with whole replicas, until they keep the promise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from essim.errors import InputError
from essim.hardware.profile import HardwareProfile
from essim.results.column import Row
from essim.serving.deployment import Served, deploy, serve
from essim.serving.grid import Candidate, Scaled, changes_of, said_of
from essim.serving.keys import Asked, Server, Slo
from essim.serving.metrics import kept_share
from essim.serving.prices import StepPrices
from essim.serving.traffic import NO_ROOM, Offered
from essim.simulate.sweep import Simulator
from essim.text.units import PS_PER_S

# A bisection sees so many requests at most, and ends with rates this close.
_SAMPLE, _CLOSE = 2000, 1.02
_FASTEST = 1 << 10


@dataclass
class Planner:
    """Searches the grid of a plan.

    Raises
    ------
    InputError
        If the load is a closed loop, or nothing is promised.
    """

    asked: Asked
    offer: Offered
    strict: bool = False
    points: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        file = self.asked.document.file
        if self.offer.users:
            message = "a plan needs requests that arrive by themselves"
            raise InputError(message, "Users of a closed loop wait", file=file, key="traffic")
        slo = self.asked.slo
        if not any((slo.ttft_s, slo.tpot_s, slo.itl_s, slo.e2e_s)):
            raise InputError("a plan needs a promise", "Such as ttft_s: 2", file=file, key="slo")
        self.simulator = Simulator()
        self.sample = replace(self.offer, requests=self.offer.requests[:_SAMPLE])
        self.longest = max(request.input_tokens for request in self.offer.requests)
        self.shared: dict[tuple[Any, ...], StepPrices] = {}
        self.candidates = [self._candidate(changes) for changes in changes_of(self.asked)]

    def profiles(self) -> list[HardwareProfile]:
        """Return the machines that are planned with."""
        names = dict.fromkeys(candidate.asked.point.hardware for candidate in self.candidates)
        return [self.simulator.profile(name) for name in names]

    def _candidate(self, changes: Sequence[tuple[str, Any]]) -> Candidate:
        asked = self.asked.with_(changes)
        point = asked.point
        found = deploy(asked, self.simulator.profile(point.hardware), self.longest, self.shared)
        routing = point.routing.name if point.selector.query_conditioned else "none"
        group = routing, repr(point.resolved_selector()), point.hardware
        name = ", ".join(said_of(key, value) for key, value in changes) or "as it stands"
        return Candidate(name, asked, found, group, reason=found.reason)

    def rows(
        self, tell: Callable[[str, int, int], None] = lambda name, done, total: None
    ) -> tuple[list[Row], list[Row]]:
        """Return a row a candidate, cheapest first, and the points of the frontier."""
        best: dict[tuple[str, str, str], Candidate] = {}
        for done, candidate in enumerate(self.candidates, 1):
            if not candidate.reason:
                self._find_rate(candidate, best.get(candidate.group))
                if candidate.rate or candidate.group not in best:
                    best[candidate.group] = candidate
            tell("deployments", done, len(self.candidates))
        rows = []
        for candidate in self.candidates:
            won = best.get(candidate.group) is candidate
            rows.append(self._row(candidate, won=won))
            if won:
                tell("with whole replicas", sum(r["status"] == "ok" for r in rows), len(best))
        rows.sort(key=_cost)
        return rows, self.points

    def _find_rate(self, candidate: Candidate, best: Candidate | None) -> None:
        """Set the candidate's rate, or the reason why it has none."""
        least = self.offer.rate() / candidate.asked.plan.most_gpus
        start = best.rate if best and best.rate else self.offer.rate()
        low, high = start, start * 2
        if not self._keeps(candidate, low):
            if best is not None and best.rate:
                candidate.reason = f"carries less than {best.name}"
                return
            while low > least and not self._keeps(candidate, low):
                low, high = low / 2, low
            if low <= least:
                return  # bursts are too much for one at any rate; several may do
        else:
            while high < start * _FASTEST and self._keeps(candidate, high):
                low, high = high, high * 2
        candidate.rate = self._bisect(candidate, low, high)

    def _bisect(
        self,
        candidate: Candidate,
        low: float,
        high: float,
        scaled: Callable[[StepPrices], Any] = lambda prices: prices,
    ) -> float:
        """Return the largest rate that is kept: it is at `low`, it is not at `high`."""
        while high / low > _CLOSE:
            middle = math.sqrt(low * high)
            if self._keeps(candidate, middle, scaled):
                low = middle
            else:
                high = middle
        return low

    def _keeps(
        self,
        candidate: Candidate,
        rate: float,
        scaled: Callable[[StepPrices], Any] = lambda prices: prices,
    ) -> bool:
        """Return whether one replica keeps the promise at a rate; note the point if it does."""
        single = replace(candidate.deployment, server=_of(candidate.asked.server, 1))
        faster = self.sample.faster(rate / self.sample.rate())
        served = serve(single, faster, strict=self.strict, scaled=scaled, sampled=False)
        kept = _share(served, candidate.asked.slo) >= candidate.asked.slo.share
        if kept and isinstance(served.prices, StepPrices):
            speeds = _speeds(served, single.gpus)
            name = {"deployment": candidate.name, "routing": candidate.group[0]}
            self.points.append({**name, "requests_per_s": rate, **speeds})
        return kept

    def _row(self, candidate: Candidate, *, won: bool) -> Row:
        row: Row = {
            "deployment": candidate.name,
            "routing": candidate.group[0],
            "selector": candidate.asked.point.selector.kind,
            "hardware": candidate.group[2],
            "status": "ok" if won else "no",
            "gpus": None,
            "gpus_low": None,
            "gpus_high": None,
            "rate_per_gpu": candidate.rate or None,
            "kept_frac": None,
            "tokens_per_s_per_gpu": None,
            "tokens_per_s_per_user": None,
            "cost_per_million_tokens": None,
            "bound_by": "",
            "reason": candidate.reason,
        }
        if not won:
            better = "another of its routing carries more"
            return row | {"reason": candidate.reason or better}
        return row | self._whole(candidate)

    def _whole(self, candidate: Candidate) -> Row:
        """Return what whole replicas do with all of the load: the fewest that keep the promise."""
        slo, server, rate = candidate.asked.slo, candidate.asked.server, self.offer.rate()
        each = 2 if server.policy == "disaggregated" else 1
        guess = math.ceil(rate / candidate.rate) if candidate.rate else 1
        guess = max(1, min(guess, candidate.asked.plan.most_gpus // each))
        replicas, served = self._fewest(candidate, guess)
        if served is None:
            return {"status": "no", "reason": f"not on {candidate.asked.plan.most_gpus} GPUs"}
        gpus, speeds = replicas * each, _speeds(served, replicas * each)
        price = candidate.asked.plan.price_per_hour.get(candidate.group[2])
        cost = price / 3600 / float(speeds["tokens_per_s_per_gpu"] or 0) * 1e6 if price else None
        return {
            "gpus": gpus,
            **self._interval(candidate, replicas, each),
            "rate_per_gpu": candidate.rate / each or None,
            "kept_frac": _share(served, slo),
            **speeds,
            "cost_per_million_tokens": cost,
            "bound_by": self._bound_by(candidate, candidate.rate or rate / replicas),
        }

    def _fewest(
        self,
        candidate: Candidate,
        replicas: int,
        scaled: Callable[[StepPrices], Any] = lambda prices: prices,
    ) -> tuple[int, Served | None]:
        """Return the fewest replicas that keep the promise, and what they do, from a first guess.

        None where not even the most GPUs do.
        """
        most, found = candidate.asked.plan.most_gpus, dict[int, Served]()

        def keeps(count: int) -> bool:
            fleet = replace(candidate.deployment, server=_of(candidate.asked.server, count))
            if count < 1 or fleet.gpus > most:
                return False
            found[count] = serve(
                fleet, self.offer, strict=self.strict, scaled=scaled, sampled=False
            )
            return _share(found[count], candidate.asked.slo) >= candidate.asked.slo.share

        # Ever further apart from the guess, then between what fails and what keeps.
        fails, step = 0, 1
        while not keeps(replicas):
            fails, step = replicas, 2 * step
            if _of(candidate.asked.server, replicas + 1).gpus > most:
                return replicas, None
            replicas += step // 2
            while _of(candidate.asked.server, replicas).gpus > most:
                replicas -= 1
        step = 1
        while replicas - fails > 1:
            lower = max(fails + 1, replicas - step) if not fails else (fails + replicas) // 2
            if keeps(lower):
                replicas, step = lower, 2 * step
            else:
                fails = lower
        return replicas, found[replicas]

    def _interval(self, candidate: Candidate, replicas: int, each: int) -> Row:
        """Return how few and how many GPUs it may be, by the intervals of the prices.

        Every price is taken as off alike, by as much as the decode rate of the scenario's own
        workload is at its 5th and 95th percentile.
        """
        (row,) = self.simulator.rows([candidate.asked.point])
        middle, found = row.get("decode_tokens_per_s"), []
        for key in ("decode_tokens_per_s_p95", "decode_tokens_per_s_p5"):
            end = row.get(key)
            if not isinstance(middle, float) or not isinstance(end, float):
                return {"gpus_low": None, "gpus_high": None}
            scaled = partial(Scaled, millionths=round(middle / end * 1e6))
            count, served = self._fewest(candidate, replicas, scaled)
            found.append(count * each if served else None)
        return {"gpus_low": found[0], "gpus_high": found[1]}

    def _bound_by(self, candidate: Candidate, rate: float) -> str:
        """Return which limit fewest requests keep at a little more than the rate of a replica."""
        faster = self.sample.faster(rate * 1.1 / self.sample.rate())
        single = replace(candidate.deployment, server=_of(candidate.asked.server, 1))
        served = serve(single, faster, sampled=False)
        slo = candidate.asked.slo
        shares = {
            key: _share(served, slo.model_copy(update=dict.fromkeys(_LIMITS) | {key: limit}))
            for key in _LIMITS
            if (limit := getattr(slo, key)) is not None
        }
        return min(shares, key=lambda key: shares[key]).removesuffix("_s").upper()


_LIMITS = ("ttft_s", "tpot_s", "itl_s", "e2e_s")


def _cost(row: Row) -> tuple[bool, float, float]:
    """Return what rows are sorted by: what it costs, and of equals who carries more."""
    cost = row["cost_per_million_tokens"] or row["gpus"] or 0.0
    return row["status"] != "ok", float(cost), -float(row["rate_per_gpu"] or 0.0)


def _of(server: Server, replicas: int) -> Server:
    """Return the server with so many replicas, of each kind where there are two."""
    apart = {"prefill_replicas": replicas} if server.policy == "disaggregated" else {}
    return server.model_copy(update={"replicas": replicas, **apart})


def _share(served: Served, slo: Slo) -> float:
    """Return the share that keeps the promise; what a deployment has no room for does not."""
    lost = served.bad[NO_ROOM]
    if not served.records:
        return 0.0
    return kept_share(served, slo) * len(served.records) / (len(served.records) + lost)


def _speeds(served: Served, gpus: int) -> Row:
    """Return tokens a second a GPU while requests arrive, and a user."""
    records = served.records
    span_s = (max(r.finish_ps for r in records) - records[0].arrival_ps) / PS_PER_S
    made = sum(record.request.output_tokens for record in records)
    later = [r for r in records if r.request.output_tokens > 1]
    waits = [(r.finish_ps - r.first_ps) / (r.request.output_tokens - 1) for r in later]
    user = len(waits) * PS_PER_S / sum(waits) if waits else None
    return {"tokens_per_s_per_gpu": made / span_s / gpus, "tokens_per_s_per_user": user}
