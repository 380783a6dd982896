"""A replica of the fast engine: what `des` counts anew each step is kept up to date here.

A *tick* is a step that decodes: every decoding sequence grows by one token a tick, so what differs
between sequences, their offset (cached tokens less ticks), stays.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush

from essim.serving.load import Chunk, Fleet, Prices, Record, Sample


@dataclass(slots=True, eq=False)
class Job:
    """A request at a replica; `kept` of its prompt stays, `spans` are ticks that made tokens."""

    number: int
    prompt: int
    output: int
    record: Record
    kept: int
    made: int = 0
    past: int = 0
    ready: bool = False
    offset: int = 0
    joined: int = 0
    last_tick: int = -1
    held: tuple[int, int] = (0, 0)
    firsts_ps: list[int] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class Steps:
    """Steps under way: `count` of them, the first `first_ps` long, each next `growth_ps` more."""

    start_ps: int
    count: int
    first_ps: int
    growth_ps: int
    decodes: bool
    chunks: list[tuple[Job, int]]
    end_ps: int = 0

    def __post_init__(self) -> None:
        self.end_ps = self.after(self.count)

    def after(self, steps: int) -> int:
        """Return when so many of them have ended."""
        return self.start_ps + steps * self.first_ps + self.growth_ps * (steps * (steps - 1) // 2)


class Replica:
    """One replica: its queue, what it prefills and decodes, and the steps under way."""

    def __init__(self, fleet: Fleet, prices: Prices, index: int, samples: list[Sample] | None):
        self.limits, self.pool, self.prices = fleet.limits, fleet.limits.pool, prices
        self.index, self.samples = index, samples
        self.queue: deque[Job] = deque()
        self.prefilling: list[Job] = []
        self.decoding: dict[int, Job] = {}
        self.tick = self.offsets = self.used = self.held_gpu = self.held_host = 0
        # Decoding sequences by where in its last block each is, seen from tick 0.
        self.phases = [0] * self.pool.block_tokens
        self.ends: list[tuple[int, int]] = []
        self.longest: list[tuple[int, int]] = []
        self.under_way: Steps | None = None
        self.sample = Sample(0, index, 0, 0, 0, 0, 0)
        self.waiting_tokens = 0
        self.busy_ps = self.steps = 0
        self.ticks: list[tuple[int, int, int, int]] = []

    def submit(self, job: Job, now: int) -> None:
        """Queue a request; a step that it could follow ends the steps under way."""
        if not self.queue and self.under_way is not None:
            self._cut(now)
        self.queue.append(job)
        self.waiting_tokens += job.prompt + job.made

    def tokens(self, now: int) -> int:
        """Return what the balancer compares, as of the last step that ended before `now`."""
        tick, steps = self.tick, self.under_way
        if steps is not None and steps.decodes:
            tick += bisect_left(range(1, steps.count + 1), now, key=steps.after)
        return self.waiting_tokens + self.offsets + len(self.decoding) * tick

    def _cut(self, now: int) -> None:
        """Let the steps under way end with the first that ends at `now` or later."""
        steps = self.under_way
        assert steps is not None
        if steps.count > 1:
            done = bisect_left(range(1, steps.count + 1), now, key=steps.after)
            if done + 1 < steps.count:
                steps.count = done + 1
                steps.end_ps = steps.after(steps.count)

    def finish_steps(self) -> list[Job]:
        """Note what the steps under way made and return the requests that ended with them."""
        steps, ended = self.under_way, []
        assert steps is not None
        now = steps.end_ps
        self.under_way = None
        self.busy_ps += now - steps.start_ps
        self.steps += steps.count
        self.sample.steps = steps.count
        if steps.decodes:
            self.ticks.append((self.tick, steps.start_ps, steps.first_ps, steps.growth_ps))
            self.used += self._wanted(steps.count)
            self.tick += steps.count
        for job, size in steps.chunks:
            job.past += size
            if job.past == job.prompt + job.made:
                self._prefilled(job, now)
                if job.made == job.output:
                    ended.append(job)
        while self.ends and self.ends[0][0] <= self.tick:
            tick, number = heappop(self.ends)
            found = self.decoding.get(number)
            if found is not None and found.last_tick == tick:
                self._leave(found)
                ended.append(found)
        if len(ended) > 1:
            ended.sort(key=lambda job: job.number)
        for job in ended:
            job.record.finish_ps = now
        return ended

    def _prefilled(self, job: Job, now: int) -> None:
        self.prefilling.remove(job)
        self.held_gpu -= job.held[0]
        self.held_host -= job.held[1]
        self.waiting_tokens -= job.prompt + job.made
        job.made += 1
        job.firsts_ps.append(now)
        if job.record.first_ps < 0:
            job.record.first_ps = now
        if job.made < job.output:
            self._join(job)

    def _join(self, job: Job) -> None:
        """Let a sequence decode from the next tick on."""
        cached = job.kept + job.made - 1
        job.offset, job.joined = cached - self.tick, self.tick
        job.last_tick = self.tick + job.output - job.made
        self.decoding[job.number] = job
        self.offsets += job.offset
        self.used += self.pool.blocks(cached)
        self.phases[job.offset % self.pool.block_tokens] += 1
        heappush(self.ends, (job.last_tick, job.number))
        heappush(self.longest, (-job.offset, job.number))

    def _leave(self, job: Job) -> None:
        del self.decoding[job.number]
        cached = job.offset + self.tick
        job.made += self.tick - job.joined
        if self.tick > job.joined:
            job.spans.append((job.joined, self.tick))
        self.offsets -= job.offset
        self.used -= self.pool.blocks(cached)
        self.phases[job.offset % self.pool.block_tokens] -= 1

    def _wanted(self, ticks: int) -> int:
        """Return the blocks that so many ticks take."""
        size = self.pool.block_tokens
        start = -self.tick % size
        if ticks == 1:
            return self.phases[start]
        whole, rest = divmod(ticks, size)
        taken = whole * len(self.decoding)
        for i in range(rest):
            taken += self.phases[(start - i) % size]
        return taken

    def _free(self) -> int:
        """Return blocks that the decoding sequences may take together."""
        pool = self.pool
        return min(pool.gpu_blocks - self.held_gpu, pool.host_blocks - self.held_host) - self.used

    def decide(self, now: int) -> None:
        """Preempt, admit, and start the next steps, if there is anything to do."""
        wanted = self._make_room()
        if self.queue:
            self._admit(wanted, now)
        if self.samples is not None:
            sizes = len(self.queue), len(self.decoding), len(self.prefilling)
            self.sample = Sample(now, self.index, *sizes, self.used, self.held_gpu)
            self.samples.append(self.sample)
        if self.prefilling:
            self._start_chunks(now)
        if self.under_way is None and self.decoding:
            self._start_decoding(now)

    def _make_room(self) -> int:
        """Preempt the latest arrivals until the next tick has its blocks; return how many."""
        wanted = self.phases[-self.tick % self.pool.block_tokens]
        while wanted > self._free():
            job = max((*self.prefilling, *self.decoding.values()), key=lambda job: job.number)
            if job.number in self.decoding:
                self._leave(job)
                self.waiting_tokens += job.prompt + job.made
            else:
                self.prefilling.remove(job)
                self.held_gpu -= job.held[0]
                self.held_host -= job.held[1]
            job.past, job.ready = 0, False
            job.record.preemptions += 1
            self.queue.appendleft(job)
            wanted = self.phases[-self.tick % self.pool.block_tokens]
        return wanted

    def _admit(self, wanted: int, now: int) -> None:
        pool, limits = self.pool, self.limits
        while self.queue:
            job = self.queue[0]
            taken = self.used + wanted
            if len(self.prefilling) + len(self.decoding) >= limits.max_batch:
                return
            if not job.ready and len(self.prefilling) >= limits.max_prefills:
                return
            cached = job.kept + job.made - job.ready
            kept = pool.blocks(cached)
            needed = kept if job.ready else pool.prefill_blocks(job.prompt, job.made)
            grows = job.ready and cached % pool.block_tokens == 0
            if needed + grows > pool.gpu_blocks - self.held_gpu - taken:
                return
            if kept + grows > pool.host_blocks - self.held_host - taken:
                return
            self.queue.popleft()
            if job.record.admitted_ps < 0:
                job.record.admitted_ps = now
            if job.ready:
                self.waiting_tokens -= job.prompt + job.made
                self._join(job)
                wanted += grows
            else:
                job.held = needed, kept
                self.held_gpu += needed
                self.held_host += kept
                self.prefilling.append(job)

    def _contexts(self) -> tuple[int, int, int]:
        """Return batch, mean and longest context of the next tick."""
        batch = len(self.decoding)
        while True:
            offset, number = self.longest[0]
            job = self.decoding.get(number)
            if job is not None and job.offset == -offset:
                return batch, self.offsets // batch + self.tick + 1, self.tick + 1 - offset
            heappop(self.longest)

    def _start_chunks(self, now: int) -> None:
        decodes = bool(self.decoding) and not self.limits.prefill_first
        budget = self.limits.token_budget - (len(self.decoding) if decodes else 0)
        chunks: list[Chunk] = []
        parts = []
        for job in self.prefilling:
            left = job.prompt + job.made - job.past
            size = min(left, budget)
            if size <= 0:
                break
            budget -= size
            parts.append((job, size))
            chunks.append((size, job.past, job.prompt if size == left else 0))
        if parts:
            contexts = self._contexts() if decodes else (0, 0, 0)
            length_ps = self.prices.chunk_step(*contexts, chunks)
            self.under_way = Steps(now, 1, length_ps, 0, decodes, parts)
            self._note(*contexts, sum(size for _, size in parts))

    def _start_decoding(self, now: int) -> None:
        batch, mean, longest = self._contexts()
        first_ps, growth_ps, steps = self.prices.decode_line(batch, mean, longest)
        while self.ends[0][1] not in self.decoding or (
            self.decoding[self.ends[0][1]].last_tick != self.ends[0][0]
        ):
            heappop(self.ends)
        steps = min(steps, self.ends[0][0] - self.tick)
        free, size = self._free(), self.pool.block_tokens
        if (steps // size + 1) * batch > free:
            steps = bisect_right(range(1, steps + 1), free, key=self._wanted)
        self.under_way = Steps(now, steps, first_ps, growth_ps, True, [])
        self._note(batch, mean, longest, 0)

    def _note(self, batch: int, mean: int, longest: int, chunk_tokens: int) -> None:
        sample = self.sample
        sample.batch, sample.mean, sample.longest = batch, mean, longest
        sample.chunk_tokens = chunk_tokens
