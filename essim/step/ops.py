"""A decode step, and a prefill, as a list of ops: which stream each runs on and what it waits for.

Routing on or off the critical path is nothing but which op the router waits for. Ops know no
seconds: an op's `kind` says what is priced, and the engines get durations beside the list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from essim.errors import InputError, PricingError
from essim.methods.routing import Anchor, Routing
from essim.methods.selectors import Selector
from essim.model.shape import ATTENDS, ModelShape

MAIN_STREAM = "gpu"
STREAMS = ("gpu", "gpu_side", "cpu", "d2h", "h2d")


@dataclass(frozen=True)
class Op:
    """One op of a step.

    Attributes
    ----------
    name
        Unique in its list, such as ``route.7``.
    kind
        What is priced: the name of a row of the cost model.
    stream
        First in, first out in list order; None is a pure delay.
    waits
        Names of earlier ops of the list that must end before this one starts.
    waits_previous
        Names of ops (anywhere in the list) whose run in the previous step must have ended.
    """

    name: str
    kind: str
    stream: str | None
    waits: tuple[str, ...] = ()
    waits_previous: tuple[str, ...] = ()


@dataclass
class _Builder:
    """Collects ops; every op of the main stream follows the one before it.

    `keys` are the layers whose new key no publish has taken to the CPU yet.
    """

    ops: list[Op] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)

    def add(
        self,
        name: str,
        kind: str,
        stream: str | None = MAIN_STREAM,
        waits: Sequence[str] = (),
        previous: Sequence[str] = (),
    ) -> str:
        self.ops.append(Op(name, kind, stream, tuple(waits), tuple(previous)))
        return name


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
    build = _Builder()
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
        _update(build, layer, build.add(f"publish_key.{layer}", "publish"))
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
        raise PricingError(
            f"model.weight_dtype: a step with {model.weight_dtype} weights cannot be timed: their "
            "kernels have no price here",
            hint,
        )
    if model.other_layers:
        raise PricingError(
            "model.other_layers: a step with layers of several sizes cannot be timed", hint
        )
    for layer in range(model.layers):
        if model.mixer(layer) not in ATTENDS:
            raise InputError(
                f"layer {layer} is {model.mixer(layer)!r}: without attention it cannot be timed",
                "Only its bytes are known",
                key="model.mixers",
            )


def _layer(
    build: _Builder,
    model: ModelShape,
    layer: int,
    own: Anchor | None,
    following: Anchor | None,
    routing: Routing,
    selector: Selector,
) -> None:
    """Add one layer: `own` is its anchor (None: not routed), `following` the next layer's."""
    if following == "in":
        _route_early(build, layer + 1, routing)
    _before_attention(build, model, layer)
    if model.mla:
        build.add(f"absorb_q.{layer}", "mla_absorb_q")
    if own == "target":
        _route_own(build, layer, routing)
    elif own is not None and routing.where == "cpu":
        build.keys.append(layer)
    waits: list[str] = []
    if own is not None and routing.where == "cpu":
        build.add(f"await.{layer}", "await", waits=[f"index_h2d.{layer}"])
    elif own is not None and routing.where == "gpu_side":
        waits = [f"route.{layer}"]
    build.add(f"attn.{layer}", _attention(model, layer, selector), waits=waits)
    if model.mla:
        build.add(f"absorb_v.{layer}", "mla_absorb_v")
    build.add(f"o.{layer}", "gemm_o")
    if following == "mid":
        _route_early(build, layer + 1, routing)
    _mlp(build, model, layer)


def _before_attention(build: _Builder, model: ModelShape, layer: int) -> None:
    build.add(f"norm1.{layer}", "norm")
    build.add(f"qkv.{layer}", "gemm_qkv")
    if model.mla and model.mla.q_rank:
        build.add(f"q_b.{layer}", "gemm_q_b")
    build.add(f"rope.{layer}", "rope")


def _attention(model: ModelShape, layer: int, selector: Selector) -> str:
    if model.mla:
        return "attn_mla"
    if model.mixer(layer) == "sliding":
        return "attn_window"
    dense = layer < selector.dense_layers() or not selector.query_conditioned
    return "attn_dense" if dense else "attn_sparse"


def _mlp(build: _Builder, model: ModelShape, layer: int) -> None:
    if model.mlp(layer) == "none":
        return
    build.add(f"norm2.{layer}", "norm")
    gate_up, act, down = "gemm_gate_up", "act", "gemm_down"
    if model.mlp(layer) == "moe":
        build.add(f"router.{layer}", "moe_router")
        gate_up, act, down = "moe_gate_up", "moe_act", "moe_down"
    build.add(f"gate_up.{layer}", gate_up)
    build.add(f"act.{layer}", act)
    build.add(f"down.{layer}", down)


def _route_own(build: _Builder, layer: int, routing: Routing) -> None:
    """Route from the layer's own query, right before its attention."""
    if routing.where == "gpu":
        build.add(f"route.{layer}", f"gpu_route_{routing.kernel}")
        return
    published = build.add(f"publish.{layer}", "publish")
    _cpu_route(build, layer)
    _update(build, layer, published)


def _route_early(build: _Builder, layer: int, routing: Routing) -> None:
    """Route for target `layer` from the anchor that the main stream has just produced."""
    if routing.where == "gpu_side":
        # What the co-running router costs the main stream, in max-plus terms.
        anchor = build.ops[-1].name
        build.add(f"slowdown.{layer}", "gpu_side_slowdown")
        build.add(f"proxy.{layer}", "gpu_proxy", stream="gpu_side", waits=[anchor])
        build.add(f"route.{layer}", f"gpu_route_{routing.kernel}", stream="gpu_side")
        return
    if routing.projection_rank is not None and routing.down_projection == "gpu":
        build.add(f"proxy_down.{layer}", "proxy_down")
    published = build.add(f"publish.{layer}", "publish")
    if build.keys:
        _update(build, build.keys.pop(0), published)
    _cpu_route(build, layer)


def _cpu_route(build: _Builder, layer: int) -> None:
    """Anchor to the CPU, route there, indices back; summaries are those of the step before."""
    build.add(f"anchor_d2h.{layer}", "anchor_d2h", None, waits=[f"publish.{layer}"])
    build.add(
        f"route.{layer}",
        "cpu_route",
        "cpu",
        waits=[f"anchor_d2h.{layer}"],
        previous=[f"update.{layer}"],
    )
    build.add(f"index_h2d.{layer}", "index_h2d", None, waits=[f"route.{layer}"])


def _update(build: _Builder, layer: int, published: str) -> None:
    """The layer's new key to the CPU with what is published, and its page summary updated there."""
    build.add(f"key_d2h.{layer}", "key_d2h", None, waits=[published])
    build.add(f"update.{layer}", "cpu_update", "cpu", waits=[f"key_d2h.{layer}"])


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
    build = _Builder()
    build.add("embed", "embed")
    copies: list[str] = []
    summarised = selector.summary_bytes_per_token_layer(model) > 0
    for layer in range(model.layers):
        _before_attention(build, model, layer)
        if model.mla:
            build.add(f"kv_b.{layer}", "gemm_kv_b")
        full = "attn_prefill_mla" if model.mla else "attn_prefill"
        sliding = model.mixer(layer) == "sliding"
        build.add(f"attn.{layer}", "attn_prefill_window" if sliding else full)
        build.add(f"o.{layer}", "gemm_o")
        _mlp(build, model, layer)
        if sliding:
            continue
        if selector.evicts(prompt_tokens):
            build.add(f"stage1.{layer}", "stage1_select")
        if layer < selector.dense_layers() or not summarised:
            continue
        summary = build.add(f"summary.{layer}", "summary_build")
        if routing.where == "cpu":
            copies.append(build.add(f"copy.{layer}", "summary_d2h", "d2h", waits=[summary]))
    build.add("norm_final", "norm")
    build.add("head", "head", waits=copies[-1:])
    return tuple(build.ops)
