"""A decode step as launches, in the order of `essim.step.ops.decode_step`, for one CUDA graph.

One thing is in another place: a norm adds the last block's output to the residual stream, so what
needs an anchor (proxy, publish, fork) comes right after that norm instead of right before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from essim.methods.routing import Routing
from essim.methods.selectors import Selector
from essim.step.ops import Op, decode_step
from measure.decode.gpu.cache import PagedKVCache
from measure.decode.gpu.kernels import rope_append
from measure.decode.gpu.routing import GpuRouters, PoolRouting, SideRouting
from measure.decode.shared.loop import RouteInput
from measure.decode.shared.weights import Weights
from measure.kernels.attention.launch import Attention, dense_attention, sparse_attention
from measure.kernels.flow import gpu as flow
from measure.kernels.flow import projection
from measure.kernels.handover.mailbox import advance

Launch = Callable[[], object]
Chooser = GpuRouters | SideRouting | PoolRouting


@dataclass(frozen=True)
class StepOp:
    """One op: name and kind as in `essim.step.ops`, the stream it is seen on, its launches."""

    name: str
    kind: str
    stream: str
    launch: Launch
    layer: int | None = None


class Buffers:
    """Activations of a step, shared by all layers, and the new keys of each."""

    def __init__(self, weights: Weights, batch: int, rank: int) -> None:
        m = weights.model
        group = m.heads // m.kv_heads
        widths = {
            "residual": m.hidden,
            "normed": m.hidden,
            "qkv": m.gemm_shape("qkv")[0],
            "o": m.hidden,
            "gate_up": 2 * m.ffn,
            "act": m.ffn,
            "down": m.hidden,
            "latents": rank,
            "logits": m.vocab,
        }
        made = {n: torch.zeros(batch, w, dtype=torch.bfloat16) for n, w in widths.items()}
        self.residual, self.normed, self.qkv = made["residual"], made["normed"], made["qkv"]
        self.o, self.gate_up, self.act, self.down = (
            made[name] for name in ("o", "gate_up", "act", "down")
        )
        self.latents, self.logits = made["latents"], made["logits"]
        heads = (batch, m.kv_heads, group, m.head_dim)
        self.queries, self.proxy = (torch.zeros(heads, dtype=torch.bfloat16) for _ in range(2))
        self.tokens = torch.zeros(batch, dtype=torch.int32)
        keys = (batch, m.kv_heads, m.head_dim)
        self.fresh = [torch.zeros(keys, dtype=torch.bfloat16) for _ in range(m.layers)]


class StepProgram:
    """Builds the list of ops of a step.

    Attributes
    ----------
    captured
        Copies of what routing of each layer was fed, by layer, if asked for: ``anchor`` and
        ``latent`` of an early query, ``query`` else.
    """

    def __init__(
        self,
        weights: Weights,
        cache: PagedKVCache,
        buffers: Buffers,
        routing: Routing,
        chooser: Chooser | None,
        folded: dict[int, Tensor],
        *,
        page_tokens: int,
        capture: bool,
    ) -> None:
        self.weights, self.cache, self.b, self.routing = weights, cache, buffers, routing
        self.chooser, self.folded, self.page_tokens = chooser, folded, page_tokens
        self.captured: dict[int, dict[str, Tensor]] = {}
        self._capture = capture
        self._added: Tensor | None = None  # what the next norm adds to the residual stream
        self._first_routed = 0
        self._waiting: list[Op] = []  # for that norm
        self._forked: SideRouting | None = None  # reads the residual stream until released
        self._keys: list[int] = []  # layers whose new keys the pool does not have yet

    def ops(self, selector: Selector) -> list[StepOp]:
        """Return the step's ops."""
        self._first_routed = selector.dense_layers()
        made: list[StepOp] = []
        for op in decode_step(self.weights.model, selector, self.routing):
            stage = op.stage
            if stage in ("proxy_down", "publish", "proxy") and self._added is not None:
                self._waiting.append(op)
                continue
            made += self._made(op)
            if stage.startswith("norm"):
                waiting, self._waiting = self._waiting, []
                for held in waiting:
                    made += self._made(held)
        return made

    def _made(self, op: Op) -> list[StepOp]:
        stage, layer = op.stage, op.layer or 0
        build = getattr(self, f"_{stage}", None)
        on_main = op.stream == "gpu" or stage == "proxy"
        if build is None or not on_main:
            return []
        launch = build(layer)
        return (
            []
            if launch is None
            else [StepOp(op.name, op.kind, op.stream or "gpu", launch, op.layer)]
        )

    def _embed(self, layer: int) -> Launch:
        context, b = self.cache.context, self.b

        def launch() -> None:
            advance(context)
            flow.embed(b.tokens, self.weights.embed, b.residual)

        return launch

    def _norm(self, gain: Tensor) -> Launch:
        added, self._added = self._added, None
        norm = partial(flow.rms_norm, self.b.residual, gain, self.b.normed, added)
        side, self._forked = self._forked, None
        if side is None:
            return norm

        def released() -> None:
            side.release()
            norm()

        return released

    def _norm1(self, layer: int) -> Launch:
        return self._norm(self.weights.layers[layer].norm1)

    def _norm2(self, layer: int) -> Launch:
        return self._norm(self.weights.layers[layer].norm2)

    def _norm_final(self, layer: int) -> Launch:
        return self._norm(self.weights.norm_final)

    def _qkv(self, layer: int) -> Launch:
        return partial(flow.gemm, self.b.normed, self.weights.layers[layer].qkv, self.b.qkv)

    def _rope(self, layer: int) -> Launch:
        b, cache = self.b, self.cache
        if layer >= self._first_routed and isinstance(self.chooser, PoolRouting):
            self._keys.append(layer)
        fresh = b.fresh[layer]
        return partial(rope_append, b.qkv, cache.cos_sin, b.queries, cache.layers[layer], fresh)

    def _attn(self, layer: int) -> Launch:
        cache, queries = self.cache.layers[layer], self.b.queries
        attention: Attention
        if layer < self._first_routed or self.chooser is None:
            attention = dense_attention(queries, cache, self.cache.capacity_tokens)
            launch: Launch = attention
        else:
            indices = self._indices(layer)
            attention = sparse_attention(queries, cache, indices, self.page_tokens)
            launch = attention
            if isinstance(self.chooser, SideRouting):
                side = self.chooser

                def joined() -> None:
                    side.join()
                    attention()

                launch = joined
        self._attended = attention.result.view(len(queries), -1)
        return launch

    def _indices(self, layer: int) -> Tensor:
        routers = self.chooser.routers if isinstance(self.chooser, SideRouting) else self.chooser
        assert routers is not None
        return routers.indices(layer)

    def _o(self, layer: int) -> Launch:
        self._added = self.b.o
        return partial(flow.gemm, self._attended, self.weights.layers[layer].o, self.b.o)

    def _gate_up(self, layer: int) -> Launch:
        return partial(flow.gemm, self.b.normed, self.weights.layers[layer].gate_up, self.b.gate_up)

    def _act(self, layer: int) -> Launch:
        return partial(flow.silu_mul, self.b.gate_up, self.b.act)

    def _down(self, layer: int) -> Launch:
        self._added = self.b.down
        return partial(flow.gemm, self.b.act, self.weights.layers[layer].down, self.b.down)

    def _head(self, layer: int) -> Launch:
        b = self.b

        def launch() -> None:
            flow.gemm(b.normed, self.weights.head, b.logits)
            flow.sample_greedy(b.logits, b.tokens)

        return launch

    def _host(self, layer: int) -> Launch | None:
        """What is left at the end: keys that no publish took along."""
        last = self.weights.model.layers - 1
        if isinstance(self.chooser, SideRouting):
            return partial(self.chooser.finish, last)
        if isinstance(self.chooser, PoolRouting) and self._keys:
            pool, keys, self._keys = self.chooser, self._keys, []
            return partial(pool.post_keys, keys)
        return None

    def _route(self, layer: int) -> Launch:
        assert isinstance(self.chooser, GpuRouters)
        return self._seen(layer, partial(self.chooser.route, layer), query=self.b.queries)

    def _proxy(self, layer: int) -> Launch:
        assert isinstance(self.chooser, SideRouting)
        fork = partial(self.chooser.fork, layer, self.b.residual)
        self._forked = self.chooser
        return self._seen(layer, fork, anchor=self.b.residual)

    def _proxy_down(self, layer: int) -> Launch:
        down = partial(projection.project_down, self.b.residual, self.folded[layer], self.b.latents)
        return self._seen(layer, down, anchor=self.b.residual)

    def _publish(self, layer: int) -> Launch:
        pool = self.chooser
        assert isinstance(pool, PoolRouting)
        key = self._keys.pop(0) if self._keys else None
        if self.routing.early:
            publish = partial(pool.publish, layer, "latent", self.b.latents, key)
            return self._seen(layer, publish, latent=self.b.latents)
        queries = self.b.queries.view(len(self.b.queries), -1)
        publish = partial(pool.publish, layer, "query", queries, key)
        return self._seen(layer, publish, query=self.b.queries)

    def _await(self, layer: int) -> Launch:
        assert isinstance(self.chooser, PoolRouting)
        return partial(self.chooser.take, layer)

    def _seen(self, layer: int, launch: Launch, **fed: Tensor) -> Launch:
        """Return the launch, and before it a copy of what routing was fed, if asked for."""
        if not self._capture:
            return launch
        copies = self.captured.setdefault(layer, {})
        copies |= {name: torch.empty_like(tensor) for name, tensor in fed.items()}

        def kept() -> None:
            for name, tensor in fed.items():
                copies[name].copy_(tensor)
            launch()

        return kept

    def route_inputs(self) -> dict[int, RouteInput]:
        """Return what routing of each layer was fed in the last step; see `captured`."""
        found = {}
        for layer, fed in self.captured.items():
            query = fed.get("query")
            if isinstance(self.chooser, SideRouting):
                query = self.chooser.queries[layer]
            query = None if query is None else query.flatten(1, 2)
            found[layer] = RouteInput(fed.get("anchor"), query, fed.get("latent"))
        return found
