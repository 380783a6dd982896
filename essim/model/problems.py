"""Why a shape contradicts itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from essim.model.blocks import ATTENDS, dtype_bytes

if TYPE_CHECKING:
    from essim.model.shape import ModelShape


def problems(model: ModelShape) -> Iterator[str]:
    """Yield what is wrong with a shape, in sentences; an unknown dtype is a `ValueError`."""
    if model.quantised is None:
        dtype_bytes(model.weight_dtype)
    dtype_bytes(model.kv_dtype)
    yield from _list_problems(model)
    yield from _other_layer_problems(model)
    for part in model.parts():
        yield from _attention_problems(part)
        yield from _tp_problems(part)
    yield from _weight_problems(model)


def _attention_problems(model: ModelShape) -> Iterator[str]:
    mla, group = model.mla, model.kv_scale_group
    if model.heads % model.kv_heads:
        yield f"heads ({model.heads}) must be a multiple of kv_heads ({model.kv_heads})"
    if mla and (model.head_dim, model.kv_heads) != (mla.nope_dim + mla.rope_dim, model.heads):
        yield "under mla, head_dim must be nope_dim + rope_dim, and kv_heads equal heads"
    if group and dtype_bytes(model.kv_dtype) > 1:
        yield f"kv_scale_group needs a quantised kv_dtype, not {model.kv_dtype}"
    cached = mla.latent_width if mla else model.head_dim
    if group and cached % group:
        yield f"kv_scale_group ({group}) must divide the {cached} elements cached for a head"


def _list_problems(model: ModelShape) -> Iterator[str]:
    for key, listed in (("mixers", model.mixers), ("mlps", model.mlps)):
        if listed is not None and len(listed) != model.layers:
            yield f"{key} lists {len(listed)} layers, not {model.layers}"
            return
    if not any(map(model.count, ATTENDS)):
        yield "mixers: no layer attends, so there is no KV cache"
    if model.count("sliding") and (model.window_tokens is None or model.mla):
        yield "sliding layers need window_tokens, and no mla"
    if model.count("moe") and model.moe is None:
        yield "mlps lists moe layers, but moe is not given"


def _other_layer_problems(model: ModelShape) -> Iterator[str]:
    others = [layer for other in model.other_layers or () for layer in other.layers]
    if any(layer >= model.layers for layer in others):
        yield f"other_layers names a layer outside the {model.layers} there are"
    if len(others) != len(set(others)):
        yield "other_layers names a layer twice"


def _tp_problems(model: ModelShape) -> Iterator[str]:
    whole = {"heads": model.heads, "ffn": model.ffn}
    if model.moe:
        whole |= {"moe.ffn": model.moe.ffn, "moe.shared_ffn": model.moe.shared_ffn}
    for key, number in whole.items():
        if number % model.tp:
            yield f"{key} ({number}) must be a multiple of tp ({model.tp})"
    if model.kv_heads % model.tp and model.tp % model.kv_heads:
        yield f"tp ({model.tp}) must divide kv_heads ({model.kv_heads}) or be its multiple"


def _weight_problems(model: ModelShape) -> Iterator[str]:
    if model.quantised is None:
        return
    if not model.weight_dtype.startswith(("int", "mxfp", "nvfp")):
        yield f"quantised needs a weight_dtype such as int4 or mxfp4, not {model.weight_dtype}"
    if model.count("recurrent") and "recurrent" not in (model.wide or ()):
        yield "of quantised weights, those of recurrent layers are not known: add them to wide"
