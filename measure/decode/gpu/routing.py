"""Routing of a decode run on a GPU: its own routers, inline or beside, or the CPU router's pool.

A mode's routing has the launches of ops that `essim.step.ops.decode_step` adds to the main flow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from essim.methods.routing import Routing
from measure.decode.gpu.cache import BLOCK_PAGES, PagedKVCache, paged, planes
from measure.decode.shared.weights import Weights
from measure.harness.gpu import streams
from measure.kernels.cpu_router.abi import Kind, Pages, RouterShape
from measure.kernels.flow import projection
from measure.kernels.gpu_router.fused.router import FusedRouter
from measure.kernels.gpu_router.stepwise.router import StepwiseRouter
from measure.kernels.handover.mailbox import GpuMailbox


class GpuRouters:
    """A router a routed layer, stepwise or fused.

    Parameters
    ----------
    queries
        BF16 [batch, kv_heads, group, head_dim]: the layer's own, or the proxy's.
    fresh
        New keys of each layer [batch, kv_heads, head_dim].
    inline
        Whether a route takes in the layer's new key; else `update` does.
    """

    def __init__(
        self,
        kernel: str,
        cache: PagedKVCache,
        queries: Tensor,
        fresh: list[Tensor],
        pages: Pages,
        *,
        inline: bool,
    ) -> None:
        self.kernel, self.cache, self.pages, self._fresh = kernel, cache, pages, fresh
        self._queries, self._inline = queries, inline
        count = -(-cache.capacity_tokens // pages.page_tokens)
        blocks = -(-count // BLOCK_PAGES)
        batch = len(cache.context)
        self._table = torch.randperm(batch * blocks).reshape(batch, blocks).int()
        self.routers: dict[int, FusedRouter | StepwiseRouter] = {}

    def fill(self, layer: int, keys: Tensor) -> None:
        """Build a layer's summaries from keys [b, G, tokens, D].

        Into the same memory where the layer has a router, so that a graph stays valid.
        """
        capacity, page = self.cache.capacity_tokens, self.pages.page_tokens
        codes = planes(keys, capacity, page)
        if self.kernel == "stepwise":
            codes = paged(codes, self._table)
        router = self.routers.get(layer)
        if router is None:
            self.routers[layer] = self._made(layer, codes)
        elif isinstance(router, FusedRouter):
            router.summaries.copy_(codes)
        else:
            router.pool.copy_(codes)

    def _made(self, layer: int, codes: Tensor) -> FusedRouter | StepwiseRouter:
        pages, context = self.pages, self.cache.context
        queries, fresh = self._queries, self._fresh[layer]
        most = -(-self.cache.capacity_tokens // pages.page_tokens)
        if self.kernel == "stepwise":
            table, page = self._table, pages.page_tokens
            return StepwiseRouter(
                queries, fresh, codes, table, context, page, most, pages.top, pages.channels
            )
        shape = (*queries.shape[:2], pages.top)
        indices = torch.full(shape, -1, dtype=torch.int32)
        return FusedRouter(
            queries, fresh, codes, context, indices, pages.page_tokens, pages.channels, most
        )

    def indices(self, layer: int) -> Tensor:
        """Pages of a layer, int32 [batch, kv_heads, top]."""
        return self.routers[layer].indices

    def route(self, layer: int) -> None:
        """Launch: take in the layer's new key where that is inline, then choose its pages."""
        router = self.routers[layer]
        if self._inline:
            router()
        else:
            router.scan()

    def update(self, layer: int) -> None:
        """Launch: take in a layer's new key alone."""
        self.routers[layer].update()


@dataclass(frozen=True)
class Factors:
    """Low-rank factors of a layer's query: down [rank, hidden] with the norm's gain, up."""

    down: Tensor
    up: Tensor


class SideRouting:
    """Early routing on a second stream: forked after the anchor, awaited before attention.

    Attributes
    ----------
    queries
        Copies of each layer's proxy query, if kept.
    """

    def __init__(
        self,
        routers: GpuRouters,
        factors: dict[int, Factors],
        latents: Tensor,
        proxy: Tensor,
        *,
        keep: bool,
    ) -> None:
        self.routers, self.factors = routers, factors
        self.latents, self.proxy = latents, proxy
        self.queries = {layer: torch.empty_like(proxy) for layer in factors} if keep else {}
        self.stream = streams()[1]
        self._read, self._chosen = torch.cuda.Event(), torch.cuda.Event()

    def fork(self, layer: int, anchor: Tensor) -> None:
        """Launch for a target layer: proxy query, scan; then the key of the layer before."""
        self.stream.wait_stream(torch.cuda.current_stream())
        cache, own = self.routers.cache, self.factors[layer]
        with torch.cuda.stream(self.stream):
            projection.project_down(anchor, own.down, self.latents)
            self._read.record()
            projection.project_up(self.latents, own.up, cache.cos_sin, cache.context, self.proxy)
            if self.queries:
                self.queries[layer].copy_(self.proxy)
            self.routers.route(layer)
            self._chosen.record()
            if layer - 1 in self.routers.routers:
                self.routers.update(layer - 1)

    def release(self) -> None:
        """Launch: the main stream waits until the anchor has been read, and may change it."""
        torch.cuda.current_stream().wait_event(self._read)

    def join(self) -> None:
        """Launch: the main stream waits for the pages."""
        torch.cuda.current_stream().wait_event(self._chosen)

    def finish(self, last: int) -> None:
        """Launch: the main stream waits for all that runs beside, and takes the last key in."""
        torch.cuda.current_stream().wait_stream(self.stream)
        self.routers.update(last)


class PoolRouting:
    """The CPU router's pool behind its mailbox; one route may be outstanding."""

    def __init__(
        self, routing: Routing, mailbox: GpuMailbox, fresh: list[Tensor], top: int
    ) -> None:
        self.routing, self.mailbox, self._fresh = routing, mailbox, fresh
        batch, kv_heads, _ = fresh[0].shape
        shape = (batch, kv_heads, top)
        self._indices = [torch.full(shape, -1, dtype=torch.int32) for _ in fresh]
        self._asked: int | None = None

    def indices(self, layer: int) -> Tensor:
        """Pages of a layer, int32 [batch, kv_heads, top]."""
        return self._indices[layer]

    def publish(self, layer: int, kind: Kind, values: Tensor, key_layer: int | None) -> None:
        """Launch: ask for a layer's pages and hand a layer's new key over.

        An earlier route's answer is taken first.
        """
        self.settle()
        update = None if key_layer is None else (key_layer, self._fresh[key_layer])
        self.mailbox.publish((layer, kind, values), update, update_first=self.routing.early)
        self._asked = layer

    def post_keys(self, layers: list[int]) -> None:
        """Launch: hand new keys over by themselves, each into a free slot."""
        for number, layer in enumerate(layers):
            if number:  # a publish takes one slot, and the last take left one
                self.mailbox.take(None)
            self.mailbox.publish(None, (layer, self._fresh[layer]))

    def take(self, layer: int) -> None:
        """Launch: wait for a layer's pages, if they have not been taken."""
        if self._asked == layer:
            self.settle()

    def settle(self) -> None:
        """Launch: take the outstanding answer, if there is one."""
        if self._asked is not None:
            self.mailbox.take(self._indices[self._asked])
            self.forget()

    def forget(self) -> None:
        """Nothing is outstanding any more."""
        self._asked = None


def make_mailbox(
    weights: Weights,
    cache: PagedKVCache,
    pages: Pages,
    threads: int,
    rank: int,
    *,
    pin: bool = True,
    noise: int | None = None,
) -> GpuMailbox:
    """Return a pool that any ``cpu-`` mode may use, with the factors of every layer.

    With `noise`, a seed, its summaries are random codes; else they are to be built.
    """
    m = weights.model
    shape = RouterShape.of(m, len(cache.context), cache.capacity_tokens, pages, rank)
    mailbox = GpuMailbox(shape, threads, cache.context, cache.evicted, pin=pin)
    if noise is not None:
        mailbox.router.randomize(noise)
    mailbox.router.set_rope(np.stack([part.cpu().numpy() for part in cache.rope], axis=1))
    for layer in range(1, m.layers):
        up = weights.proxy(layer, rank)[1]
        mailbox.router.set_up(layer, up.cpu().view(torch.uint16).numpy())
    return mailbox
