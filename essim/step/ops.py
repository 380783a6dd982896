"""A decode step, and a prefill, as a list of ops: which stream each runs on and what it waits for.

Routing on or off the critical path is nothing but which op the router waits for. Ops know no
seconds: an op's `kind` says what is priced, and the engines get durations beside the list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from essim.errors import InputError, PricingError
from essim.methods.routing import PLACEMENTS, Anchor, Routing
from essim.methods.selectors import Selector
from essim.model.shape import ATTENDS, ModelShape

MAIN_STREAM = "gpu"
STREAMS = tuple(dict.fromkeys((*(place.stream for place in PLACEMENTS.values()), "d2h", "h2d")))


@dataclass(frozen=True)
class Op:
    """One op of a step.

    Attributes
    ----------
    stage
        What it does in its layer, or in its step.
    kind
        What is priced: the name of a row of the cost model.
    stream
        First in, first out in list order; None is a pure delay.
    layer
        The layer it is of, or routes for; None is none.
    waits
        Names of earlier ops of the list that must end before this one starts.
    waits_previous
        Names of ops (anywhere in the list) whose run in the previous step must have ended.
    """

    stage: str
    kind: str
    stream: str | None
    layer: int | None = None
    waits: tuple[str, ...] = ()
    waits_previous: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Unique in its list, such as ``route.7``."""
        return self.stage if self.layer is None else f"{self.stage}.{self.layer}"

    def __hash__(self) -> int:  # a list of ops is looked up often; names are nearly unique
        return hash((self.stage, self.layer))


@dataclass
class Builder:
    """Collects ops; every op of the main stream follows the one before it.

    Attributes
    ----------
    keys
        Layers whose new key no publish has taken to the CPU yet.
    """

    ops: list[Op] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)

    def add(
        self,
        stage: str,
        kind: str,
        layer: int | None = None,
        stream: str | None = MAIN_STREAM,
        waits: Sequence[str] = (),
        previous: Sequence[str] = (),
    ) -> str:
        """Add an op and return its name."""
        self.ops.append(Op(stage, kind, stream, layer, tuple(waits), tuple(previous)))
        return self.ops[-1].name


def decode_step(model: ModelShape, selector: Selector, routing: Routing) -> tuple[Op, ...]:
    """Return the ops of one decode step.

    The order of one layer is: norm1, QKV, RoPE + KV append, [routing], gather + attention, o_proj,
    residual + norm2, gate_up, SiLU*mul, down (EarlySelectKV, deployment section; TensorRT-LLM's
    RocketKV backend for the place of GPU routing). The first `selector.dense_layers()` layers are
    not routed, nor are those with a sliding window.

    Raises
    ------
    InputError
        If the model has layers without attention, or several ranks: these have no price yet.
    PricingError
        If its weights are below 8 bits, or its layers of several sizes: likewise.
    """
    _check_timed(model)
    build = Builder()
    anchors: list[Anchor | None] = [None] * (model.layers + 1)
    if selector.query_conditioned:
        first = selector.dense_layers()
        anchors[first:-1] = [None, *routing.anchors(model.layers)][first:]
        full = model.full_layers()
        anchors = [anchor if i in full else None for i, anchor in enumerate(anchors)]
    build.add("embed", "embed")
    for layer in range(model.layers):
        _layer(build, model, layer, anchors[layer], anchors[layer + 1], routing, selector)
    build.add("norm_final", "norm")
    build.add("head", "head")
    for layer in build.keys:
        published = build.add("publish_key", "publish", layer)
        _update(build, layer, published, routing.placement.stream)
    build.add("host", "host")
    return tuple(build.ops)


def _check_timed(model: ModelShape) -> None:
    """Refuse by name what bytes are known of, but no time."""
    if model.tp > 1:
        raise InputError(
            f"a step on {model.tp} ranks cannot be timed: an all-reduce has no price",
            "Set it to 1 to simulate; the bytes of a rank are known",
            key="model.tp",
        )
    hint = "The bytes are known: see essim memory"
    if model.quantised:
        step = f"model.weight_dtype: a step with {model.weight_dtype} weights"
        raise PricingError(f"{step} cannot be timed: their kernels have no price here", hint)
    if model.other_layers:
        step = "model.other_layers: a step with layers of several sizes"
        raise PricingError(f"{step} cannot be timed", hint)
    for layer in range(model.layers):
        if model.mixer(layer) not in ATTENDS:
            raise InputError(
                f"layer {layer} is {model.mixer(layer)!r}: without attention it cannot be timed",
                "Only its bytes are known",
                key="model.mixers",
            )


def _layer(
    build: Builder,
    model: ModelShape,
    layer: int,
    own: Anchor | None,
    following: Anchor | None,
    routing: Routing,
    selector: Selector,
) -> None:
    """Add one layer: `own` is its anchor (None: not routed), `following` the next layer's."""
    place, route = routing.placement, ROUTES[routing.where]
    if following == "in":
        route(build, layer + 1, routing)
    _before_attention(build, model, layer)
    if model.mla:
        build.add("absorb_q", "mla_absorb_q", layer)
    if own == "target":
        route(build, layer, routing)
    elif own is not None and place.hands_over:
        build.keys.append(layer)
    waits: list[str] = []
    if own is not None and place.hands_over:
        build.add("await", "await", layer, waits=[f"index_h2d.{layer}"])
    elif own is not None and place.stream != MAIN_STREAM:
        waits = [f"route.{layer}"]
    if own is not None and selector.has("fetched_bytes"):
        waits.append(build.add("fetch", "kv_fetch", layer, "h2d", waits=[f"route.{layer}"]))
    build.add("attn", _attention(model, layer, selector), layer, waits=waits)
    if layer >= selector.dense_layers() and selector.has("after_work"):
        build.add("after", "select_after", layer)
    if model.mla:
        build.add("absorb_v", "mla_absorb_v", layer)
    build.add("o", "gemm_o", layer)
    if following == "mid":
        route(build, layer + 1, routing)
    _mlp(build, model, layer)


def _before_attention(build: Builder, model: ModelShape, layer: int) -> None:
    build.add("norm1", "norm", layer)
    build.add("qkv", "gemm_qkv", layer)
    if model.mla and model.mla.q_rank:
        build.add("q_b", "gemm_q_b", layer)
    build.add("rope", "rope", layer)


def _attention(model: ModelShape, layer: int, selector: Selector) -> str:
    if model.mla:
        return "attn_mla"
    if model.mixer(layer) == "sliding":
        return "attn_window"
    if layer < selector.dense_layers() or not selector.selects:
        return "attn_dense"
    return "attn_sparse" if selector.query_conditioned else "attn_kept"


def _prefill_attention(model: ModelShape, layer: int, selector: Selector) -> str:
    if model.mixer(layer) == "sliding":
        return "attn_prefill_window"
    if model.mla:
        return "attn_prefill_mla"
    return "attn_prefill_sparse" if selector.has("prefill_density") else "attn_prefill"


def _mlp(build: Builder, model: ModelShape, layer: int) -> None:
    if model.mlp(layer) == "none":
        return
    build.add("norm2", "norm", layer)
    gate_up, act, down = "gemm_gate_up", "act", "gemm_down"
    if model.mlp(layer) == "moe":
        build.add("router", "moe_router", layer)
        gate_up, act, down = "moe_gate_up", "moe_act", "moe_down"
    build.add("gate_up", gate_up, layer)
    build.add("act", act, layer)
    build.add("down", down, layer)


def _route_inline(build: Builder, layer: int, routing: Routing) -> None:
    build.add("route", f"gpu_route_{routing.kernel}", layer)


def _route_beside(build: Builder, layer: int, routing: Routing) -> None:
    # What the co-running router costs the main stream, in max-plus terms, is the slowdown.
    anchor, side = build.ops[-1].name, routing.placement.stream
    build.add("slowdown", "gpu_side_slowdown", layer)
    build.add("proxy", "gpu_proxy", layer, side, waits=[anchor])
    build.add("route", f"gpu_route_{routing.kernel}", layer, side)


def _route_on_cpu(build: Builder, layer: int, routing: Routing) -> None:
    """Anchor to the CPU, route there, indices back; summaries are those of the step before."""
    stream = routing.placement.stream
    down_first = routing.projection_rank is not None and routing.down_projection == "gpu"
    if routing.early and down_first:
        build.add("proxy_down", "proxy_down", layer)
    published = build.add("publish", "publish", layer)
    if routing.early and build.keys:
        _update(build, build.keys.pop(0), published, stream)
    arrived = build.add("anchor_d2h", "anchor_d2h", layer, None, waits=[published])
    update = [f"update.{layer}"]
    routed = build.add("route", "cpu_route", layer, stream, waits=[arrived], previous=update)
    build.add("index_h2d", "index_h2d", layer, None, waits=[routed])
    if not routing.early:
        _update(build, layer, published, stream)


def _update(build: Builder, layer: int, published: str, stream: str) -> None:
    """The layer's new key to the CPU with what is published, and its page summary updated there."""
    arrived = build.add("key_d2h", "key_d2h", layer, None, waits=[published])
    build.add("update", "cpu_update", layer, stream, waits=[arrived])


ROUTES: dict[str, Callable[[Builder, int, Routing], None]] = {
    "gpu": _route_inline,
    "gpu_side": _route_beside,
    "cpu": _route_on_cpu,
}
"""What each placement adds to route a layer, from the anchor that the main stream has just made."""


def prefill_step(
    model: ModelShape, selector: Selector, routing: Routing, prompt_tokens: int
) -> tuple[Op, ...]:
    """Return the ops of one sequence's prefill: dense, then what its selector needs of it.

    That is stage 1 where a part of the prompt is evicted, and page summaries where there are any.
    Where routing runs on the CPU, each layer's summaries are copied there on the `d2h` stream
    while later layers run; the first decode step needs all of them, so the last op waits. It
    refuses what `decode_step` refuses.
    """
    _check_timed(model)
    build = Builder()
    build.add("embed", "embed")
    copies: list[str] = []
    summarised = selector.summary_bytes_per_token_layer(model) > 0
    for layer in range(model.layers):
        _before_attention(build, model, layer)
        if model.mla:
            build.add("kv_b", "gemm_kv_b", layer)
        sliding = model.mixer(layer) == "sliding"
        if selector.has("prefill_work") and not sliding:
            build.add("select", "prefill_select", layer)
        build.add("attn", _prefill_attention(model, layer, selector), layer)
        build.add("o", "gemm_o", layer)
        _mlp(build, model, layer)
        if sliding:
            continue
        if selector.evicts(prompt_tokens):
            build.add("stage1", "stage1_select", layer)
        if layer < selector.dense_layers() or not summarised:
            continue
        summary = build.add("summary", "summary_build", layer)
        if routing.placement.hands_over:
            copies.append(build.add("copy", "summary_d2h", layer, "d2h", waits=[summary]))
    build.add("norm_final", "norm")
    build.add("head", "head", waits=copies[-1:])
    return tuple(build.ops)
