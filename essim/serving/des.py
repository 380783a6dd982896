"""The reference engine: SimPy, one step after another, everything counted anew in each."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import simpy
from simpy.events import EventPriority

from essim.serving.load import Chunk, Fleet, Limits, Load, Outcome, Prices, Record, Request, Sample

Process = Generator[simpy.Event, Any, None]

# What happens at one time: arrivals, then ends of steps, then decisions.
_ARRIVES, _ENDS, _DECIDES = 0, 10, 100_000


class _After(simpy.Event):
    """An event after a delay, in its turn among those of the same time."""

    def __init__(self, env: simpy.Environment, delay_ps: int, turn: int) -> None:
        super().__init__(env)
        self._ok, self._value = True, None
        env.schedule(self, EventPriority(turn), delay_ps)


@dataclass(eq=False)
class _Job:
    """A request at a replica.

    `made` are its tokens so far, `past` those prefilled; `ready` if that was done elsewhere.
    """

    number: int
    request: Request
    made: int = 0
    past: int = 0
    ready: bool = False
    times_ps: list[int] = field(default_factory=list)

    @property
    def to_prefill(self) -> int:
        return self.request.input_tokens + self.made


class _Replica:
    def __init__(self, run: _Run, index: int) -> None:
        self.run, self.env, self.index = run, run.env, index
        self.limits: Limits = run.fleet.limits
        self.queue: list[_Job] = []
        self.prefilling: list[_Job] = []
        self.decoding: list[_Job] = []
        self.wake = self.env.event()
        self.busy_ps = self.steps = 0

    def submit(self, job: _Job) -> None:
        self.queue.append(job)
        if not self.wake.triggered:
            self.wake.succeed()

    def tokens(self) -> int:
        """Return what the balancer compares: prompts to do and caches of what decodes."""
        waiting = sum(job.to_prefill for job in (*self.queue, *self.prefilling))
        return waiting + sum(map(self.cached, self.decoding))

    def cached(self, job: _Job) -> int:
        """Return tokens in a decoding sequence's cache: the newest is not in it yet."""
        return self.limits.pool.kept(job.request.input_tokens) + job.made - 1

    def serve(self) -> Process:
        """Decide, take the step's time, note what it made; for ever."""
        while True:
            yield _After(self.env, 0, _DECIDES + self.index)
            self.make_room()
            self.admit()
            self.sample()
            if not (self.prefilling or self.decoding):
                self.wake = self.env.event()
                yield self.wake
                continue
            chunks = list(self.chunks())
            decodes = self.decoding if not (chunks and self.limits.prefill_first) else []
            length_ps = self.price(list(decodes), [chunk for _, chunk in chunks])
            yield _After(self.env, length_ps, _ENDS + self.index)
            self.busy_ps += length_ps
            self.steps += 1
            self.finish_step(list(decodes), chunks)

    def used(self) -> int:
        return sum(self.limits.pool.blocks(self.cached(job)) for job in self.decoding)

    def wanted(self) -> int:
        """Return the blocks that decoding sequences need for their next token."""
        return sum(self.cached(job) % self.limits.pool.block_tokens == 0 for job in self.decoding)

    def reserved(self) -> tuple[int, int]:
        """Return the blocks held for prompts being prefilled, on the GPU and on the host."""
        pool = self.limits.pool
        jobs = [(job.request.input_tokens, job.made) for job in self.prefilling]
        gpu = sum(pool.prefill_blocks(prompt, made) for prompt, made in jobs)
        return gpu, sum(pool.blocks(pool.kept(prompt) + made) for prompt, made in jobs)

    def free(self) -> tuple[int, int]:
        """Return free blocks on GPU and host once every decoding sequence has its next token."""
        pool, (gpu, host) = self.limits.pool, self.reserved()
        taken = self.used() + self.wanted()
        return pool.gpu_blocks - gpu - taken, pool.host_blocks - host - taken

    def make_room(self) -> None:
        """Preempt the latest arrivals until all that decode have room for a token."""
        while min(self.free()) < 0:
            job = max((*self.prefilling, *self.decoding), key=lambda job: job.number)
            (self.prefilling if job in self.prefilling else self.decoding).remove(job)
            job.past, job.ready = 0, False
            self.queue.insert(0, job)
            self.run.out.records[job.number].preemptions += 1

    def admit(self) -> None:
        """Admit in order of arrival while batch and blocks allow the next one."""
        while self.queue:
            job, pool = self.queue[0], self.limits.pool
            gpu, host = self.free()
            cached = pool.kept(job.request.input_tokens) + job.made - job.ready
            kept = pool.blocks(cached)
            needed = kept if job.ready else pool.prefill_blocks(job.request.input_tokens, job.made)
            full = len(self.prefilling) + len(self.decoding) >= self.limits.max_batch
            busy = not job.ready and len(self.prefilling) >= self.limits.max_prefills
            # A sequence that decodes at once may need a block for its next token, too.
            grows = job.ready and cached % pool.block_tokens == 0
            if full or busy or needed + grows > gpu or kept + grows > host:
                return
            self.queue.pop(0)
            record = self.run.out.records[job.number]
            if record.admitted_ps < 0:
                record.admitted_ps = int(self.env.now)
            (self.decoding if job.ready else self.prefilling).append(job)

    def chunks(self) -> Iterator[tuple[_Job, Chunk]]:
        """Yield the chunks of this iteration, earlier prompts first."""
        decoding = 0 if self.limits.prefill_first else len(self.decoding)
        budget = self.limits.token_budget - decoding
        for job in self.prefilling:
            size = min(job.to_prefill - job.past, budget)
            if size > 0:
                budget -= size
                last = job.past + size == job.to_prefill
                yield job, (size, job.past, job.request.input_tokens if last else 0)

    def price(self, decodes: list[_Job], chunks: list[Chunk]) -> int:
        contexts = [self.cached(job) + 1 for job in decodes]
        mean = sum(contexts) // len(contexts) if contexts else 0
        longest = max(contexts, default=0)
        sample = self.run.out.samples[-1]
        sample.batch, sample.mean, sample.longest = len(contexts), mean, longest
        sample.chunk_tokens, sample.steps = sum(chunk[0] for chunk in chunks), 1
        if chunks:
            return self.run.prices.chunk_step(len(contexts), mean, longest, chunks)
        return self.run.prices.decode_line(len(contexts), mean, longest)[0]

    def finish_step(self, decodes: list[_Job], chunks: list[tuple[_Job, Chunk]]) -> None:
        for job in decodes:
            self.token(job)
        for job, (size, _, last) in chunks:
            job.past += size
            if last:
                self.prefilling.remove(job)
                self.token(job)
                self.decoding.append(job)
        for job in sorted(self.decoding, key=lambda job: job.number):
            if job.made == job.request.output_tokens:
                self.decoding.remove(job)
                self.run.ended(job)

    def token(self, job: _Job) -> None:
        job.made += 1
        job.times_ps.append(int(self.env.now))

    def sample(self) -> None:
        sizes = len(self.queue), len(self.decoding), len(self.prefilling)
        sample = Sample(int(self.env.now), self.index, *sizes, self.used(), self.reserved()[0])
        self.run.out.samples.append(sample)


class _Run:
    def __init__(self, load: Load, fleet: Fleet, prices: Prices) -> None:
        self.load, self.fleet, self.prices = load, fleet, prices
        self.env, self.out = simpy.Environment(), Outcome()
        self.jobs: list[_Job] = []
        self.replicas = [_Replica(self, i) for i in range(fleet.replicas)]

    def arrives(self) -> None:
        """Send the next request to the replica that the balancer picks."""
        number = len(self.jobs)
        request, now = self.load.requests[number], int(self.env.now)
        place = number % len(self.replicas)
        if self.fleet.balancer == "least_tokens":
            place = min(range(len(self.replicas)), key=lambda i: self.replicas[i].tokens())
        job = _Job(number, request, ready=self.load.prefilled)
        if job.ready:
            job.made, job.times_ps = 1, [now]
        self.jobs.append(job)
        self.out.records.append(Record(request, place, now))
        self.replicas[place].submit(job)

    def traffic(self) -> Process:
        for request in self.load.requests:
            yield _After(self.env, request.arrival_ps - int(self.env.now), _ARRIVES)
            self.arrives()

    def user(self, delay_ps: int) -> Process:
        yield _After(self.env, delay_ps, _ARRIVES)
        if len(self.jobs) < len(self.load.requests):
            self.arrives()

    def ended(self, job: _Job) -> None:
        record = self.out.records[job.number]
        record.first_ps, record.finish_ps = job.times_ps[0], job.times_ps[-1]
        if self.load.users:
            self.env.process(self.user(self.load.think_ps))


def simulate(load: Load, fleet: Fleet, prices: Prices) -> Outcome:
    """Serve a load to its end, step by step."""
    run = _Run(load, fleet, prices)
    for replica in run.replicas:
        run.env.process(replica.serve())
    if load.users:
        for _ in range(load.users):
            run.env.process(run.user(0))
    else:
        run.env.process(run.traffic())
    run.env.run()
    run.out.token_ps = lambda i: np.array(run.jobs[i].times_ps, dtype=np.int64)
    run.out.busy_ps = [replica.busy_ps for replica in run.replicas]
    run.out.steps = [replica.steps for replica in run.replicas]
    run.out.end_ps = max((record.finish_ps for record in run.out.records), default=0)
    return run.out
