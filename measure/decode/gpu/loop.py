"""A decode run on an NVIDIA GPU: a step is one CUDA graph of the measured kernels."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from essim.errors import InputError
from measure.decode.gpu.cache import PagedKVCache, block_tokens
from measure.decode.gpu.ops import Buffers, Chooser, StepProgram
from measure.decode.gpu.routing import (
    Factors,
    GpuRouters,
    PoolRouting,
    SideRouting,
    make_mailbox,
)
from measure.decode.shared.loop import DecodeRun, RouteInput, Settings, traced
from measure.decode.shared.weights import Weights
from measure.harness.gpu import capture as captured_graph
from measure.kernels.handover.mailbox import GpuMailbox, stamp


class GpuDecode(DecodeRun):
    """A batch of sequences of equal length that decode together on a GPU.

    With ``settings.trace`` the graph also writes the GPU's clock after each op (`chrome_trace`).
    Weights, cache and mailbox, to share between runs of one batch and capacity, are made where
    None.
    """

    weights: Weights
    cache: PagedKVCache

    def __init__(
        self,
        settings: Settings,
        *,
        weights: Weights | None = None,
        cache: PagedKVCache | None = None,
        mailbox: GpuMailbox | None = None,
    ) -> None:
        super().__init__(settings, gpu=True)
        s = settings
        self.weights = weights or Weights.random(s.model, s.seed, "cuda", torch.bfloat16)
        self.cache = cache or PagedKVCache(
            s.model, s.batch, s.capacity_tokens, block_tokens(s.mode)
        )
        self.buffers = Buffers(self.weights, s.batch, s.rank)
        self._own_mailbox = mailbox is None
        self.mailbox = mailbox
        factors = self._factors()
        self._chooser = self._router(factors)
        self._program = StepProgram(
            self.weights,
            self.cache,
            self.buffers,
            self.routing,
            self._chooser,
            {layer: own.down for layer, own in factors.items()},
            page_tokens=self.pages.page_tokens,
            capture=s.capture,
        )
        self._ops = self._program.ops(self.selector)
        self._times_ns = torch.zeros(len(self._ops) + 1, dtype=torch.int64) if s.trace else None
        self._graph = self._captured_graph()

    def _captured_graph(self) -> torch.cuda.CUDAGraph:
        """Return the graph of a step, which is run once at any place of the cache."""
        self.cache.place(min(64, self.cache.capacity_tokens - 1), 0)
        try:
            graph = captured_graph([self._launch])
            self._check()
        except BaseException:
            self.close()  # or the pool would spin on
            raise
        return graph

    def _factors(self) -> dict[int, Factors]:
        """Return each routed layer's low-rank factors, for early routing."""
        found: dict[int, Factors] = {}
        rank = self.routing.projection_rank or 0
        for layer in range(1, self.model.layers) if self.routing.early else ():
            down, up = self.weights.proxy(layer, rank)
            folded = (down.float() * self.weights.layers[layer].norm1.float()).bfloat16()
            found[layer] = Factors(folded.contiguous(), up.T.contiguous())
        return found

    def _router(self, factors: dict[int, Factors]) -> Chooser | None:
        if not self.selector.query_conditioned:
            return None
        s, b, where = self.settings, self.buffers, self.routing.where
        if where == "cpu":
            self.mailbox = self.mailbox or make_mailbox(
                self.weights, self.cache, self.pages, s.threads, s.rank, pin=s.pin
            )
            return PoolRouting(self.routing, self.mailbox, b.fresh, self.pages.top)
        queries = b.proxy if where == "gpu_side" else b.queries
        routers = GpuRouters(
            self.routing.kernel, self.cache, queries, b.fresh, self.pages, inline=where == "gpu"
        )
        for layer in self.routed_layers:
            routers.fill(layer, self.cache.keys(layer))
        if where == "gpu":
            return routers
        return SideRouting(routers, factors, b.latents, b.proxy, keep=s.capture)

    def _launch(self) -> None:
        """Launch a step, with the GPU's clock after each op if traced."""
        if self._times_ns is not None:
            stamp(self._times_ns, 0)
        for number, op in enumerate(self._ops, 1):
            op.launch()
            if self._times_ns is not None:
                stamp(self._times_ns, number)

    def close(self) -> None:
        """Stop the router's pool, if this run made it."""
        torch.cuda.synchronize()
        if self.mailbox is not None and self._own_mailbox:
            self.mailbox.router.close()
        self.mailbox = None

    def _sample(self, logits: Tensor) -> None:
        self.buffers.logits.copy_(logits)
        self.buffers.tokens.copy_(self.logits.argmax(-1))
        torch.cuda.synchronize()

    def set_position(self, tokens: int, evicted_tokens: int = 0, *, noise: bool = True) -> None:
        """Fill the cache with seeded noise up to `tokens`, as if `evicted_tokens` more had been.

        Without `noise` cache and summaries stay as they are, which times a step as well.
        """
        generator = torch.Generator("cuda").manual_seed(self.settings.seed)
        self.cache.place(tokens, evicted_tokens)
        if noise:
            self.cache.fill_noise(generator)
            self.summarise()
        vocab, tokens_in = self.model.vocab, self.buffers.tokens
        tokens_in.copy_(torch.randint(0, vocab, tokens_in.shape, generator=generator))

    def summarise(self) -> None:
        """Build the page summaries of every routed layer from its cache."""
        for layer in self.routed_layers:
            keys = self.cache.keys(layer)
            if self.mailbox is None:
                chooser = self._chooser
                routers = chooser.routers if isinstance(chooser, SideRouting) else chooser
                assert isinstance(routers, GpuRouters)
                routers.fill(layer, keys)
                continue
            for sequence, own in enumerate(keys):
                bits = own.transpose(0, 1).contiguous().cpu().view(torch.uint16).numpy()
                self.mailbox.router.build(layer, sequence, bits)

    def step(self) -> float:
        """Decode one token a sequence; return seconds.

        Raises
        ------
        AbsentError
            If a worker of the router stands still or is gone, within a second.
        """
        return self.steps(1)[0]

    def steps(self, count: int) -> list[float]:
        """Decode tokens without looking in between; return seconds of each step."""
        if self.tokens + count > self.cache.capacity_tokens:
            raise InputError(
                f"{count} steps from {self.tokens} tokens",
                f"The cache has {self.cache.capacity_tokens} slots",
            )
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        events[0].record()
        for event in events[1:]:
            self._graph.replay()
            event.record()
        torch.cuda.synchronize()
        self.cache.tokens += count
        self._check()
        return [a.elapsed_time(b) * 1e-3 for a, b in itertools.pairwise(events)]

    def _check(self) -> None:
        torch.cuda.synchronize()
        if self.mailbox is not None:
            self.mailbox.check()

    def chrome_trace(self) -> dict[str, Any]:
        """Return the last step in the simulator's Chrome trace format; needs ``trace``.

        What the pool does is seen from the GPU: a route begins when it was published and ends when
        its pages were taken.
        """
        if self._times_ns is None:
            raise InputError("nothing was traced", "Make the run with trace=True")
        at = (self._times_ns - self._times_ns[0]).double().mul(1e-9).tolist()
        events = [
            (op.name, start, end, "gpu")
            for op, start, end in zip(self._ops, at, at[1:], strict=False)
        ]
        ends = {name: end for name, _, end, _ in events}
        for op in self._ops:
            start = ends.get(f"publish.{op.layer}")
            if op.kind == "await" and start is not None:
                events.append((f"route.{op.layer}", start, ends[op.name], "cpu"))
        return traced(events, {op.name: op.kind for op in self._ops})

    @property
    def sampled(self) -> Tensor:
        """The newest token of each sequence [b], which the next step takes in."""
        return self.buffers.tokens

    @property
    def logits(self) -> Tensor:
        """Logits of the last step or prefill [b, vocab]."""
        return self.buffers.logits

    @property
    def captured(self) -> dict[int, RouteInput]:
        """What each routed layer's routing was fed in the last step; needs ``capture``."""
        return self._program.route_inputs()

    def selected(self, layer: int) -> Tensor:
        """Pages that a layer's attention used in the last step [b, G, k], besides the tail page."""
        if layer not in self.routed_layers or self._chooser is None:
            raise InputError(f"layer {layer} chose no pages")
        chooser = self._chooser.routers if isinstance(self._chooser, SideRouting) else self._chooser
        count = min(self.pages.top, (self.tokens - 1) // self.pages.page_tokens)
        pages = chooser.indices(layer)
        return pages.sort(dim=-1, descending=True).values[..., :count].flip(-1)
