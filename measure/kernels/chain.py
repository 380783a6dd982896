"""A whole decode step in one CUDA graph, built of the measured kernels.

It shows whether prices add up: a step against the sum of what each op adds to it, and what a router
costs on the main stream or, beside it, on a second stream. Weights and caches are distinct in every
layer, so cold as in a real step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch

from measure.harness.gpu import streams
from measure.kernels.attention.launch import (
    Attention,
    PagedCache,
    dense_attention,
    random_cache,
    sparse_attention,
)
from measure.kernels.cpu_router.abi import RouterShape
from measure.kernels.flow import gpu as flow
from measure.kernels.flow import projection
from measure.kernels.gpu_router.fused import router as router_fused
from measure.kernels.gpu_router.stepwise import router as router_stepwise
from measure.kernels.handover.mailbox import Mailbox
from measure.kernels.numbers import rope_table

Step = tuple[str, Callable[[], object]]
Router = router_fused.FusedRouter | router_stepwise.StepwiseRouter


@dataclass(frozen=True)
class Shape:
    """Llama-3.1-8B by default."""

    layers: int = 32
    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 8
    dim: int = 128
    ffn: int = 14336
    vocab: int = 128256
    rank: int = 128

    @property
    def qkv(self) -> int:
        """Rows of the QKV weight."""
        return (self.heads + 2 * self.kv_heads) * self.dim


def weights(*shape: int) -> torch.Tensor:
    """Random BF16 of a size that keeps activations near one."""
    return torch.empty(shape, dtype=torch.bfloat16).normal_(0, shape[-1] ** -0.5)


@dataclass
class Layer:
    """Weights and state of one layer."""

    qkv: torch.Tensor
    o: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    gains: torch.Tensor
    proxy_down: torch.Tensor
    proxy_up: torch.Tensor
    cache: PagedCache


@dataclass
class Buffers:
    """Activations of one step, shared by all layers."""

    residual: torch.Tensor
    normed: torch.Tensor
    qkv: torch.Tensor
    queries: torch.Tensor
    o: torch.Tensor
    gate_up: torch.Tensor
    act: torch.Tensor
    down: torch.Tensor
    latents: torch.Tensor
    keys: torch.Tensor
    proxy: torch.Tensor
    logits: torch.Tensor
    tokens: torch.Tensor


@dataclass
class Chain:
    """A decode step.

    Attributes
    ----------
    routing
        ``none``, ``inline`` (after RoPE), ``side`` (a second stream: proxy query and router of the
        next layer, forked after o_proj; its attention waits for the pages) or ``handover``
        (publish after o_proj, await before attention, answered in advance).
    kernel
        ``fused`` or ``stepwise``.
    top_pages
        Pages that a router chooses and attention reads.
    """

    shape: Shape
    batch: int
    tokens: int
    kernel: str = "fused"
    routing: str = "none"
    top_pages: int = 32
    layers: list[Layer] = field(default_factory=list)

    def __post_init__(self) -> None:
        s = self.shape
        self.cache = random_cache(
            self.batch, self.tokens, kv_heads=s.kv_heads, dim=s.dim, block_tokens=4
        )
        self.layers = [self._layer() for _ in range(s.layers)]
        self.embedding, self.head = weights(s.vocab, s.hidden), weights(s.vocab, s.hidden)
        self.cos_sin = torch.as_tensor(rope_table(self.tokens + 1, s.dim)).cuda()
        self.buffers = self._buffers()
        self.routers = {
            "fused": self._routers(router_fused.random_router),
            "stepwise": self._routers(router_stepwise.random_router),
        }
        self.side, self.chosen = streams()[1], torch.cuda.Event()
        context = torch.full((self.batch,), self.tokens, dtype=torch.int32)
        sizes = self._router_shape()
        self.mailbox = Mailbox(sizes, 1, context, torch.zeros(1, dtype=torch.int32))
        self.mailbox.answer_ahead()
        self.answer = torch.zeros(self.batch, s.kv_heads, self.top_pages, dtype=torch.int32)

    def _router_shape(self) -> RouterShape:
        s = self.shape
        return RouterShape(
            layers=s.layers,
            batch=self.batch,
            heads=s.heads,
            kv_heads=s.kv_heads,
            head_dim=s.dim,
            page_tokens=4,
            capacity_tokens=self.tokens,
            top_pages=self.top_pages,
            channels=32,
            rank=s.rank,
        )

    def _layer(self) -> Layer:
        s, cache = self.shape, self.cache
        own = dataclasses.replace(
            cache, keys=torch.randn_like(cache.keys), values=torch.randn_like(cache.values)
        )
        return Layer(
            weights(s.qkv, s.hidden),
            weights(s.hidden, s.heads * s.dim),
            weights(2 * s.ffn, s.hidden),
            weights(s.hidden, s.ffn),
            torch.ones(2, s.hidden, dtype=torch.bfloat16),
            weights(s.rank, s.hidden),
            weights(s.heads * s.dim, s.rank),
            own,
        )

    def _routers(self, make: Callable[..., Router]) -> list[Router]:
        """A router a layer, each run once so that its indices are a selection."""
        first = make(self.batch, self.tokens, top=self.top_pages)
        made = [make(self.batch, self.tokens, like=first) for _ in self.layers]
        for router in made:
            router.indices = torch.full_like(router.indices, -1)
            router.retarget(self.buffers.queries)
            router()
        return made

    def _buffers(self) -> Buffers:
        s, rows = self.shape, self.batch
        group = s.heads // s.kv_heads
        wide = {
            "residual": s.hidden,
            "normed": s.hidden,
            "qkv": s.qkv,
            "o": s.hidden,
            "gate_up": 2 * s.ffn,
            "act": s.ffn,
            "down": s.hidden,
            "latents": s.rank,
            "keys": s.kv_heads * s.dim,
            "logits": s.vocab,
        }
        made = {name: torch.randn(rows, width).bfloat16() for name, width in wide.items()}
        query = torch.randn(rows, s.kv_heads, group, s.dim).bfloat16()
        return Buffers(
            **made, queries=query, proxy=query.clone(), tokens=torch.zeros(rows, dtype=torch.int32)
        )

    def _route(self, layer: int, queries: torch.Tensor) -> Router:
        router = self.routers[self.kernel][layer]
        router.retarget(queries)
        return router

    def _fork(self, layer: int) -> None:
        """On the second stream: proxy query, router and summaries of ``layer``."""
        b, own = self.buffers, self.layers[layer]
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            projection.project_down(b.residual, own.proxy_down, b.latents)
            projection.project_up(b.latents, own.proxy_up, self.cos_sin, own.cache.context, b.proxy)
            router = self._route(layer, b.proxy)
            router.scan()
            self.chosen.record()
            router.update()  # which nothing waits for until the step ends

    def _before_attention(self, layer: int) -> Iterator[Step]:
        if layer == 0:
            return
        if self.routing == "inline":
            yield "route", self._route(layer, self.buffers.queries)
        elif self.routing == "side":
            yield "join", lambda: torch.cuda.current_stream().wait_event(self.chosen)
        elif self.routing == "handover":
            yield "await", lambda: self.mailbox.take(self.answer)

    def _after_o(self, layer: int) -> Iterator[Step]:
        if layer + 1 == self.shape.layers:
            return
        if self.routing == "side":
            yield "fork", lambda: self._fork(layer + 1)
        elif self.routing == "handover":
            b = self.buffers
            yield (
                "publish",
                lambda: self.mailbox.publish((layer + 1, "latent", b.latents), (layer, b.keys)),
            )

    def _attention(self, layer: int) -> tuple[str, Attention]:
        own = self.layers[layer]
        queries = self.buffers.queries
        if layer == 0:
            return "attn_dense", dense_attention(queries, own.cache, self.tokens)
        indices = self.routers[self.kernel][layer].indices
        return "attn_sparse", sparse_attention(queries, own.cache, indices)

    def steps(self) -> Iterator[Step]:
        """The ops of a step in order: name and launch."""
        b = self.buffers
        yield "embed", partial(flow.embed, b.tokens, self.embedding, b.residual)
        for i, own in enumerate(self.layers):
            first, second = own.gains
            added, normed = b.down if i else None, b.normed
            yield "norm", partial(flow.rms_norm, b.residual, first, normed, added)
            yield "gemm_qkv", partial(flow.gemm, normed, own.qkv, b.qkv)
            yield "rope", partial(flow.rope_append, b.qkv, self.cos_sin, b.queries, own.cache)
            yield from self._before_attention(i)
            name, attention = self._attention(i)
            yield name, attention
            yield "gemm_o", partial(flow.gemm, attention.result.view(self.batch, -1), own.o, b.o)
            yield "norm", partial(flow.rms_norm, b.residual, second, normed, b.o)
            yield from self._after_o(i)
            yield "gemm_gate_up", partial(flow.gemm, normed, own.gate_up, b.gate_up)
            yield "act", partial(flow.silu_mul, b.gate_up, b.act)
            yield "gemm_down", partial(flow.gemm, b.act, own.down, b.down)
        if self.routing == "side":
            yield "join", lambda: torch.cuda.current_stream().wait_stream(self.side)
        last = torch.ones(self.shape.hidden, dtype=torch.bfloat16)
        yield "norm", partial(flow.rms_norm, b.residual, last, b.normed, b.down)
        yield "head", partial(flow.gemm, b.normed, self.head, b.logits)
        yield "sample", partial(flow.sample_greedy, b.logits, b.tokens)

    def launches(self, without: Collection[str] = ()) -> list[Callable[[], object]]:
        """Launches of a step, without some ops."""
        return [launch for name, launch in self.steps() if name not in without]

    def counts(self) -> dict[str, int]:
        """How often each op occurs."""
        names = [name for name, _ in self.steps()]
        return {name: names.count(name) for name in dict.fromkeys(names)}
