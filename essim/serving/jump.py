"""The fast engine: between events a batch stays as it is, so many steps are one sum.

Events are arrivals that could be admitted, ends of sequences and of chunks, kinks of the price, and
ticks for which the blocks do not suffice.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count

import numpy as np

from essim.serving.load import Fleet, Load, Outcome, Prices, Record, Request, Times
from essim.serving.replica import Job, Replica

_NEVER = 1 << 120


class _Run:
    def __init__(self, load: Load, fleet: Fleet, prices: Prices, *, sampled: bool) -> None:
        self.load, self.fleet, self.out = load, fleet, Outcome()
        samples = self.out.samples if sampled else None
        self.replicas = [Replica(fleet, prices, i, samples) for i in range(fleet.replicas)]
        self.jobs: list[Job] = []
        self.order = count()
        self.times: dict[int, Times] = {}
        # Of a closed loop: when users send their next request.
        self.users = [(0, next(self.order)) for _ in range(load.users)]

    def next_arrival(self) -> int:
        if len(self.jobs) == len(self.load.requests):
            return _NEVER
        if self.load.users:
            return self.users[0][0] if self.users else _NEVER
        return self.load.requests[len(self.jobs)].arrival_ps

    def arrives(self, now: int) -> Replica:
        number = len(self.jobs)
        if self.load.users:
            heappop(self.users)
        request: Request = self.load.requests[number]
        place = number % len(self.replicas)
        if self.fleet.balancer == "least_tokens":
            place = min(range(len(self.replicas)), key=lambda i: self.replicas[i].tokens(now))
        record = Record(request, place, now)
        kept = self.fleet.limits.pool.kept(request.input_tokens)
        job = Job(number, request.input_tokens, request.output_tokens, record, kept)
        if self.load.prefilled:
            job.ready, job.made, job.firsts_ps, record.first_ps = True, 1, [now], now
        self.jobs.append(job)
        self.out.records.append(record)
        self.replicas[place].submit(job, now)
        return self.replicas[place]

    def go(self) -> None:
        """Take events in their order: arrivals, ends of steps, decisions."""
        ends = [_NEVER] * len(self.replicas)
        undecided: set[int] = set()
        now = 0
        while True:
            arrival, end = self.next_arrival(), min(ends)
            if undecided and now < arrival and now < end:
                for index in sorted(undecided):
                    replica = self.replicas[index]
                    replica.decide(now)
                    ends[index] = _end(replica)
                undecided.clear()
                continue
            now = min(arrival, end)
            if now == _NEVER:
                return
            if arrival <= end:
                replica = self.arrives(now)
                ends[replica.index] = _end(replica)
                if replica.under_way is None:
                    undecided.add(replica.index)
                continue
            index = ends.index(end)
            for _ in self.replicas[index].finish_steps():
                if self.load.users:
                    heappush(self.users, (now + self.load.think_ps, next(self.order)))
            ends[index] = _NEVER
            undecided.add(index)

    def token_ps(self, number: int) -> Times:
        """Return when each token of a request came."""
        job = self.jobs[number]
        times = self.tick_times(job.record.replica)
        parts = [(first, np.array([first], dtype=np.int64)) for first in job.firsts_ps]
        parts += [(int(times[i]), times[i:j]) for i, j in job.spans]
        return np.concatenate([part for _, part in sorted(parts, key=lambda part: part[0])])

    def tick_times(self, index: int) -> Times:
        """Return when each tick of a replica ended, computed once."""
        if index not in self.times:
            replica = self.replicas[index]
            rows = np.array(replica.ticks, dtype=np.int64).reshape(-1, 4)
            counts = np.diff(np.append(rows[:, 0], replica.tick))
            start, first, growth = (np.repeat(rows[:, i], counts) for i in (1, 2, 3))
            steps = np.arange(1, replica.tick + 1) - np.repeat(rows[:, 0], counts)
            self.times[index] = start + steps * first + growth * (steps * (steps - 1) // 2)
        return self.times[index]


def _end(replica: Replica) -> int:
    steps = replica.under_way
    return _NEVER if steps is None else steps.end_ps


def simulate(load: Load, fleet: Fleet, prices: Prices, *, sampled: bool = True) -> Outcome:
    """Serve a load to its end, event by event; what `des.simulate` returns."""
    run = _Run(load, fleet, prices, sampled=sampled)
    run.go()
    run.out.token_ps = run.token_ps
    run.out.busy_ps = [replica.busy_ps for replica in run.replicas]
    run.out.steps = [replica.steps for replica in run.replicas]
    run.out.end_ps = max((record.finish_ps for record in run.out.records), default=0)
    return run.out
