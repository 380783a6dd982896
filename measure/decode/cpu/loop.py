"""A decode run on a machine without a GPU: torch on one core, the C++ router on the others.

The loop runs the very op list that the simulator prices (`essim.step.ops.decode_step`): every op
of the main stream is one function of `measure.kernels.flow.cpu`, in that order.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from torch import Tensor

from essim.errors import InputError
from essim.step.ops import MAIN_STREAM
from measure.decode.cpu.inline_routing import InlineRouting
from measure.decode.cpu.ops import StepOps
from measure.decode.cpu.pool_routing import PoolRouting, codes
from measure.decode.shared.kv_cache import THETA, KVCache
from measure.decode.shared.loop import (
    DecodeRun,
    Event,
    RouteInput,
    Settings,
    traced,
)
from measure.decode.shared.weights import Weights
from measure.kernels.cpu_router.abi import RouterShape
from measure.kernels.cpu_router.router import Router
from measure.kernels.numbers import rope_table

# With the 0.1 s that it takes to name stalled workers, a dead router ends a run within a second.
_TIMEOUT_S = 0.6


class CpuDecode(DecodeRun):
    """A batch of sequences of equal length that decode together.

    With ``settings.trace`` it keeps `events`: (name, start_s, end_s, stream) of the last step's
    ops. `weights`, to share between runs, are made from model and seed where None.
    """

    weights: Weights
    cache: KVCache

    def __init__(self, settings: Settings, weights: Weights | None = None) -> None:
        super().__init__(settings, gpu=False)
        s = settings
        self.router: Router | None = None
        self._before: tuple[set[int], int] | None = None
        self.weights = weights or Weights.random(s.model, s.seed)
        self.cache = KVCache(s.model, s.batch, s.capacity_tokens)
        self.inline = InlineRouting(s.capacity_tokens, self.pages)
        self.pool: PoolRouting | None = None
        if self.routing.where == "cpu":
            self.router = self._make_router()
            self.pool = PoolRouting(self.router, keep_queries=s.capture and self.routing.early)
        self._ops = StepOps(
            self.weights, self.cache, self.pool, self.inline, self.routing, capture=s.capture
        )
        self._program = self._ops.program(self.selector)
        self.events: list[Event] | None = [] if s.trace else None
        self._settle(s.pin)

    def _make_router(self) -> Router:
        s, m, early = self.settings, self.model, self.routing.early
        rank = s.rank if early else 0
        shape = RouterShape.of(m, s.batch, s.capacity_tokens, self.pages, rank)
        router = Router(shape, s.threads, pin=s.pin, timeout_s=_TIMEOUT_S)
        router.set_rope(rope_table(m.max_context_tokens, m.head_dim, THETA))
        for layer in range(1, m.layers) if early else ():
            router.set_up(layer, codes(self.weights.proxy(layer, rank)[1]))
        return router

    def _settle(self, pin: bool) -> None:
        """Keep torch to one core: the first, which the pool leaves free."""
        cpus = os.sched_getaffinity(0)
        self._before = cpus, torch.get_num_threads()
        torch.set_num_threads(1)
        if pin and len(cpus) > self.routing.cpu_threads:
            os.sched_setaffinity(0, {min(cpus)})

    def close(self) -> None:
        """Stop the router and give the cores back."""
        if self.router is not None:
            self.router.close()
            self.router = self.pool = None
        if self._before is not None:
            os.sched_setaffinity(0, self._before[0])
            torch.set_num_threads(self._before[1])
            self._before = None

    def _sample(self, logits: Tensor) -> None:
        self._ops.logits, self._ops.sampled = logits, logits.argmax(-1)

    def set_position(self, tokens: int, evicted_tokens: int = 0) -> None:
        """Fill the cache with seeded noise up to `tokens`, as if `evicted_tokens` more had been.

        The next step takes in a random token, in cache slot `tokens` and at RoPE position
        ``evicted_tokens + tokens``.
        """
        self.cache.place(tokens, evicted_tokens)
        generator = torch.Generator().manual_seed(self.settings.seed)
        self.cache.fill_noise(generator)
        self.summarise()
        vocab = self.model.vocab
        self._ops.sampled = torch.randint(0, vocab, (self.batch,), generator=generator)

    def summarise(self) -> None:
        """Build the page summaries of every routed layer from its cache."""
        if self.pool is not None:
            self.pool.drain()
        for layer in self.routed_layers:
            (self.pool or self.inline).fill(layer, self.cache.keys(layer))

    def step(self) -> float:
        """Decode one token a sequence; return seconds.

        Raises
        ------
        AbsentError
            If a worker of the router stands still or is gone, within a second.
        """
        start = time.perf_counter()
        self.cache.place(self.tokens, self.cache.evicted_tokens)
        self.cache.tokens += 1
        if self.events is None:
            for op in self._program:
                op.run()
        else:
            self.events = self._traced(start)
        return time.perf_counter() - start

    def steps(self, count: int) -> list[float]:
        """Decode so many tokens a sequence; return seconds of each step."""
        return [self.step() for _ in range(count)]

    def _traced(self, origin_s: float) -> list[Event]:
        events: list[Event] = []
        if self.pool is not None:
            self.pool.routes.clear()
        for op in self._program:
            start = time.perf_counter() - origin_s
            op.run()
            events.append((op.name, start, time.perf_counter() - origin_s, MAIN_STREAM))
            if self.pool is not None:
                self.pool.look()
        for layer, posted, answered in self.pool.routes if self.pool is not None else ():
            events.append((f"route.{layer}", posted - origin_s, answered - origin_s, "cpu"))
        return events

    def chrome_trace(self) -> dict[str, Any]:
        """Return the last traced step in the simulator's Chrome trace format."""
        kinds = {op.name: op.kind for op in self._program}
        return traced(self.events or (), kinds)

    @property
    def sampled(self) -> Tensor:
        """The newest token of each sequence [b], which the next step takes in."""
        return self._ops.sampled

    @property
    def logits(self) -> Tensor:
        """Logits of the last step or prefill [b, vocab]."""
        return self._ops.logits

    @property
    def captured(self) -> dict[int, RouteInput]:
        """What each routed layer's routing was fed in the last step; needs ``capture``."""
        if self._ops.captured is None:
            raise InputError("nothing was captured", "Make the loop with capture=True")
        return self._ops.captured

    def selected(self, layer: int) -> Tensor:
        """Pages that a layer's attention used in the last step [b, G, k], besides the tail page."""
        if layer not in self._ops.pages:
            raise InputError(f"layer {layer} chose no pages")
        return self._ops.pages[layer]
