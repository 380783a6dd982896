"""The main stream's ops of a decode step, one function each, named as in `essim.step.ops`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from essim.methods.routing import Routing
from essim.methods.selectors import Selector
from essim.step.ops import MAIN_STREAM, Op, decode_step
from measure.decode.cpu.inline_routing import InlineRouting
from measure.decode.cpu.pool_routing import PoolRouting
from measure.decode.shared.kv_cache import KVCache
from measure.decode.shared.loop import RouteInput
from measure.decode.shared.weights import Weights
from measure.kernels.flow import cpu as flow
from measure.kernels.numbers import from_bf16


@dataclass(frozen=True)
class StepOp:
    """One op as the main stream runs it."""

    name: str
    kind: str
    run: Callable[[], None]


class StepOps:
    """What flows from op to op, and what a step leaves behind.

    Attributes
    ----------
    sampled, logits
        Newest token [b]; logits it came from [b, vocab].
    pages
        Pages that each routed layer's attention used.
    captured
        What each routed layer's routing was fed, if asked for.
    """

    def __init__(
        self,
        weights: Weights,
        cache: KVCache,
        pool: PoolRouting | None,
        inline: InlineRouting,
        routing: Routing,
        *,
        capture: bool,
    ) -> None:
        self.weights, self.cache, self.pool, self.inline = weights, cache, pool, inline
        self.routing = routing
        batch = len(cache.keys(0))
        self.sampled = torch.zeros(batch, dtype=torch.int64)
        self.logits = torch.zeros(batch, weights.model.vocab)
        self.pages: dict[int, Tensor] = {}
        self.captured: dict[int, RouteInput] | None = {} if capture else None
        self._anchors: dict[int, Tensor] = {}
        self._carried: dict[str, int] = {}  # layers whose new key a publish takes along
        self._residual = self._x = self._query = self._latent = self.logits
        self._added: Tensor | None = None

    def program(self, selector: Selector) -> list[StepOp]:
        """Return what the main stream does for each op of the simulator's step, in its order.

        Ops of other streams are the pool's, or nothing at all within one memory.
        """
        found = []
        ops = decode_step(self.weights.model, selector, self.routing)
        keys = (op for op in ops if op.kind == "key_d2h")
        self._carried = {op.waits[0]: op.layer or 0 for op in keys}
        for op in ops:
            run = self._runner(op)
            if run is not None:
                found.append(StepOp(op.name, op.kind, run))
        return found

    def _runner(self, op: Op) -> Callable[[], None] | None:
        stage, layer = op.stage, op.layer or 0
        if op.stream != MAIN_STREAM:
            return None
        own, norms = self.weights.layers[layer], {"norm_final": self.weights.norm_final}
        norms |= {"norm1": own.norm1, "norm2": own.norm2}
        if stage in norms:
            return lambda: self._norm(norms[stage])
        gemms = {"qkv": own.qkv, "gate_up": own.gate_up}
        if stage in gemms:
            return lambda: self._gemm(gemms[stage])
        back = {"o": own.o, "down": own.down}
        if stage in back:
            return lambda: self._gemm_back(back[stage])
        plain = {"embed": self._embed, "act": self._act, "head": self._head, "host": self._host}
        if stage in plain:
            return plain[stage]
        named = {
            "rope": self._rope,
            "route": self._route,
            "proxy_down": self._proxy_down,
            "publish": self._publish,
            "publish_key": self._post_key,
            "await": self._await,
            "attn": self._attend_pages if op.kind == "attn_sparse" else self._attend,
        }[stage]
        return lambda: named(layer)

    def _stream(self) -> Tensor:
        """The residual stream, with what the last block has added."""
        if self._added is not None:
            self._residual.add_(self._added)
            self._added = None
        return self._residual

    def _embed(self) -> None:
        self._residual, self._added = self.weights.embed[self.sampled], None

    def _norm(self, gain: Tensor) -> None:
        self._x = flow.rms_norm(self._stream(), gain)

    def _gemm(self, weight: Tensor) -> None:
        self._x = flow.gemm(self._x, weight)

    def _gemm_back(self, weight: Tensor) -> None:
        self._added = flow.gemm(self._x, weight)

    def _act(self) -> None:
        self._x = flow.silu_mul(self._x)

    def _rope(self, layer: int) -> None:
        self._query = self.cache.append(layer, self._x)

    def _attend(self, layer: int) -> None:
        self._x = flow.attend(self._query, *self.cache.layers[layer], self.cache.tokens)

    def _attend_pages(self, layer: int) -> None:
        keys, values = self.cache.layers[layer]
        self._x = flow.attend_pages(
            self._query,
            keys,
            values,
            self.pages[layer],
            self.inline.settings.page_tokens,
            self.cache.tokens,
        )

    def _head(self) -> None:
        self.logits = flow.gemm(self._x, self.weights.head)
        self.sampled = self.logits.argmax(-1)

    def _host(self) -> None:
        """Nothing: there is no scheduler and no tokenizer."""

    def _route(self, layer: int) -> None:
        self._capture(layer, None, self._query)
        newest = self.cache.newest(layer)
        self.pages[layer] = self.inline.pages(layer, self._query, newest, self.cache.tokens)

    def _proxy_down(self, layer: int) -> None:
        anchor, gain = self._stream(), self.weights.layers[layer].norm1
        down, _ = self.weights.proxy(layer, self.routing.projection_rank or 0)
        self._latent = flow.gemm(flow.rms_norm(anchor, gain), down).bfloat16()
        if self.captured is not None:
            self._anchors[layer] = anchor.clone()

    def _publish(self, layer: int) -> None:
        assert self.pool is not None
        tokens, evicted = self.cache.tokens, self.cache.evicted_tokens
        key = self._carried.get(f"publish.{layer}")
        if self.routing.early:
            if key is not None:  # first, as on a GPU
                self._post_key(key)
            self.pool.publish(layer, "latent", self._latent, tokens - 1 + evicted, tokens)
        else:
            query = self._query.flatten(1)
            self._capture(layer, None, self._query.bfloat16().float())
            self.pool.publish(layer, "query", query, tokens - 1 + evicted, tokens)
            self._post_key(layer)

    def _post_key(self, layer: int) -> None:
        assert self.pool is not None
        self.pool.post_key(layer, self.cache.newest(layer), self.cache.tokens - 1)

    def _await(self, layer: int) -> None:
        assert self.pool is not None
        own = self.inline.settings
        count = min(own.top, (self.cache.tokens - 1) // own.page_tokens)
        self.pages[layer] = self.pool.pages(layer, count)
        if self.routing.early and self.captured is not None:
            query = torch.from_numpy(from_bf16(self.pool.queries[layer])).float()
            self._capture(layer, self._anchors[layer], query)

    def _capture(self, layer: int, anchor: Tensor | None, query: Tensor) -> None:
        if self.captured is not None:
            self.captured[layer] = RouteInput(anchor, query)
