"""The sizes of a config: heads and widths, under every name that families use."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field

from essim.model.hf.blocks import EXPERT_COUNTS, SameCount, read_mla
from essim.model.hf.families import DOUBLE_WIDTH, FOUR_TIMES
from essim.model.hf.source import Part, Source
from essim.model.shape import Count


def _named(*names: str, default: Any = ...) -> Any:
    return Field(default, validation_alias=AliasChoices(*names))


# Widths that are the hidden size in what can be modelled.
_AS_HIDDEN = ("word_embed_proj_dim", "embedding_size", "block_dim")


class Sizes(Part):
    """What every decoder has."""

    layers: Annotated[int, Field(ge=1, le=10_000)] = _named(
        "num_hidden_layers", "n_layer", "n_layers", "num_layers"
    )
    hidden: Count = _named("hidden_size", "n_embd", "d_model")
    heads: Count = _named("num_attention_heads", "n_head", "n_heads", "num_heads")
    vocab: Count = _named("vocab_size", "padded_vocab_size", "n_vocab")


class _Heads(Part):
    kv_heads: Count | None = _named(
        *("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"),
        *("num_query_groups", "num_attention_groups"),
        default=None,
    )
    multi_query: bool = False
    multi_query_attention: bool | None = None
    new_decoder_architecture: bool = False
    head_dim: Count | None = _named("head_dim", "kv_channels", "attention_head_dim", default=None)
    swa_heads: Count | None = Field(None, validation_alias="swa_num_attention_heads")
    swa_kv_heads: Count | None = Field(None, validation_alias="swa_num_key_value_heads")
    swa_head_dim: Count | None = None


class _PerLayer(Part):
    heads: list[Count] | None = Field(None, validation_alias="num_attention_heads_per_layer")
    kv_heads: list[Count] | None = _named(
        "num_key_value_heads_per_layer", "num_kv_heads_per_layer", default=None
    )
    ffn: list[Count] | None = Field(None, validation_alias="intermediate_size_per_layer")


class _NestedHeads(Part):
    """The ``attn_config`` of MPT and DBRX."""

    kv_n_heads: Count | None = None
    attn_type: Literal["multihead_attention", "multiquery_attention", "grouped_query_attention"] = (
        "multihead_attention"
    )
    sliding_window_size: Literal[-1] = -1


class _Widths(Part):
    ffn: Count | None = _named(
        *("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"), default=None
    )
    expansion_ratio: int | float | None = Field(None, gt=0, le=1000)
    moe: SameCount | None = Field(None, validation_alias="moe_intermediate_size")


class _Shared(Part):
    shared_intermediate_size: Annotated[int, Field(ge=0)] | None = None


class _Lfm2Width(Part):
    intermediate_size: Count | None = None
    block_ff_dim: Count | None = None
    block_auto_adjust_ff_dim: bool = True
    block_ffn_dim_multiplier: int | float | None = Field(1.0, gt=0, le=1000)
    block_multiple_of: Count = 256
    block_dim: Count | None = None
    conv_dim: Count | None = None
    conv_dim_out: Count | None = None


def read_heads(source: Source, sizes: Sizes) -> dict[str, Any]:
    """Return the heads; of latents the KV heads are virtual, one a query head."""
    heads, mla, keys = sizes.heads, read_mla(source), source.read(_Heads)
    if mla is not None:
        width = mla.nope_dim + mla.rope_dim
        source.get("num_key_value_heads")
        fields = {"heads": heads, "kv_heads": heads, "head_dim": width}
        return fields | {"mla": mla.model_dump()}
    if keys.head_dim is None and sizes.hidden % heads:
        key = next(k for k in ("hidden_size", "n_embd", "d_model") if k in source.data)
        message = f"hidden_size ({sizes.hidden}) is not a multiple of num_attention_heads ({heads})"
        raise source.error(key, message, "Give head_dim")
    kv_heads = _kv_heads(source, keys, heads)
    if kv_heads is None and source.read(_PerLayer).kv_heads is None:
        message = f"num_key_value_heads is absent: {heads} taken, one for each attention head"
        source.warn(message, "num_key_value_heads")
    head_dim = keys.head_dim or sizes.hidden // heads
    return {"heads": heads, "kv_heads": kv_heads or heads, "head_dim": head_dim}


def _kv_heads(source: Source, keys: _Heads, heads: int) -> int | None:
    if isinstance(source.data.get("attn_config"), dict):
        nested = source.nested("attn_config").read(_NestedHeads)
        if nested.attn_type == "multiquery_attention":
            return 1
        return nested.kv_n_heads or heads
    if keys.multi_query and not keys.new_decoder_architecture:
        return 1
    return heads if keys.multi_query_attention is False else keys.kv_heads


def read_width(source: Source, kind: str, hidden: int) -> int:
    """Return the width of a dense MLP, or where there is none that of an expert."""
    if kind == "lfm2":
        return _lfm2_width(source)
    if not any(source.data.get(key) for key in EXPERT_COUNTS):
        # Granite's hybrids without experts keep their one MLP under the shared one's name.
        shared = source.read(_Shared).shared_intermediate_size
        if shared:
            source.skip(_Widths)
            return shared
    keys = source.read(_Widths)
    nested = experts_source(source)
    for place, key in ((nested, "hidden_size"), *((source, key) for key in _AS_HIDDEN)):
        if place.get(key, hidden) != hidden:
            raise place.error(
                key, f"{place.data[key]} is another width than the {hidden} of layers"
            )
    ffn = keys.ffn if nested is source else nested.read(_Widths).ffn
    if ffn is None and keys.expansion_ratio is not None:
        ffn = int(keys.expansion_ratio * hidden)
    if ffn is None and kind in FOUR_TIMES:
        ffn = 4 * hidden
        source.warn(f"intermediate_size is absent: {ffn} taken, four times the hidden size")
    width = ffn or keys.moe
    if width is None:
        raise source.error("intermediate_size", "required, but missing")
    if kind not in DOUBLE_WIDTH:
        return width
    if width % 2:
        raise source.error("intermediate_size", f"{width} is odd: it is of gate and up together")
    return width // 2


def experts_source(source: Source) -> Source:
    """Return where a config keeps its MLPs: some nest them in ``ffn_config``."""
    nested = isinstance(source.data.get("ffn_config"), dict)
    return source.nested("ffn_config") if nested else source


def _lfm2_width(source: Source) -> int:
    keys = source.read(_Lfm2Width)
    width = keys.block_ff_dim or keys.intermediate_size
    if width is None:
        raise source.error("intermediate_size", "required, but missing")
    if not keys.block_auto_adjust_ff_dim:
        return width
    width = int((keys.block_ffn_dim_multiplier or 1) * (2 * width // 3))
    return -(-width // keys.block_multiple_of) * keys.block_multiple_of


def per_layer(source: Source, sizes: dict[str, Any], mixers: list[str]) -> dict[str, Any]:
    """Return `sizes` as most layers have them, and the layers that differ.

    Raises
    ------
    InputError
        If a list is not of as many layers as there are.
    """
    keys, heads, layers = source.read(_PerLayer), source.read(_Heads), len(mixers)
    listed: dict[str, list[int]] = {
        name: [sizes[name]] * layers for name in ("heads", "kv_heads", "head_dim", "ffn")
    }
    for name in ("heads", "kv_heads", "ffn"):
        own = getattr(keys, name)
        if own is not None and len(own) != layers:
            key = next(key for key in _PER_LAYER[name] if key in source.data)
            raise source.error(key, f"lists {len(own)} layers, not {layers}")
        listed[name] = own or listed[name]
    for name in ("heads", "kv_heads", "head_dim"):
        windowed = getattr(heads, f"swa_{name}")
        if windowed is not None and sizes.get("mla") is None:
            pairs = zip(listed[name], mixers, strict=True)
            listed[name] = [windowed if mixer == "sliding" else n for n, mixer in pairs]
    each = list(zip(*listed.values(), strict=True))
    usual = Counter(each).most_common(1)[0][0]
    others = [
        {"layers": [i for i, own in enumerate(each) if own == other]}
        | {name: n for name, n, o in zip(listed, other, usual, strict=True) if n != o}
        for other in dict.fromkeys(each)
        if other != usual
    ]
    return (
        sizes | dict(zip(listed, usual, strict=True)) | ({"other_layers": others} if others else {})
    )


_PER_LAYER = {
    "heads": ("num_attention_heads_per_layer",),
    "kv_heads": ("num_key_value_heads_per_layer", "num_kv_heads_per_layer"),
    "ffn": ("intermediate_size_per_layer",),
}
