"""The latents and experts of a config, and which layers have experts."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AliasChoices, BeforeValidator, Field

from essim.model.blocks import Mlp
from essim.model.hf.families import EXPERTS_OF_DENSE_WIDTH
from essim.model.hf.source import Part, Source
from essim.model.shape import Count, Mla, Moe


class _Latent(Part):
    kv_lora_rank: Count
    qk_rope_head_dim: Count
    qk_nope_head_dim: Count | None = None
    qk_head_dim: Count | None = None
    v_head_dim: Count | None = None
    q_lora_rank: Count | None = None


def read_mla(source: Source) -> Mla | None:
    """Return the sizes of multi-head latent attention, if the config has it."""
    if "kv_lora_rank" not in source.data:
        return None
    keys = source.read(_Latent)
    for name in ("qk_nope_head_dim", "v_head_dim"):
        if getattr(keys, name) is None:
            source.warn(f"{name} is absent: 128 taken, as in DeepSeek-V2")
    nope = keys.qk_nope_head_dim or 128
    if keys.qk_head_dim not in (None, nope + keys.qk_rope_head_dim):
        message = f"{keys.qk_head_dim} is not qk_nope_head_dim + qk_rope_head_dim"
        raise source.error("qk_head_dim", message)
    return Mla(
        kv_rank=keys.kv_lora_rank,
        rope_dim=keys.qk_rope_head_dim,
        nope_dim=nope,
        v_dim=keys.v_head_dim or 128,
        q_rank=keys.q_lora_rank,
    )


def _one_of_all(value: Any) -> Any:
    """Return the entry of a list of equal ones: what some write once a layer."""
    if isinstance(value, list) and value and all(entry == value[0] for entry in value):
        return value[0]
    return value


SameCount = Annotated[Count, BeforeValidator(_one_of_all)]
SameNumber = Annotated[int, BeforeValidator(_one_of_all), Field(ge=0, le=10**9)]


def _named(*names: str, default: Any = None) -> Any:
    return Field(default, validation_alias=AliasChoices(*names))


EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


class _Experts(Part):
    experts: SameCount = _named(*EXPERT_COUNTS, default=...)
    per_token: SameCount = _named(
        *("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_k"),
        *("moe_topk", "moe_top_k"),
        default=...,
    )
    ffn: SameCount | None = _named("moe_intermediate_size", "expert_hidden_dim")
    shared: SameNumber | None = _named(
        *("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")
    )
    shared_ffn: SameNumber | None = _named(
        *("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"),
        *("shared_experts_intermediate_size", "shared_intermediate_size"),
    )


def read_moe(source: Source, kind: str, ffn: int) -> Moe | None:
    """Return the experts, if there is more than one; `ffn` is their width where none is given."""
    counts = [source.get(key) for key in EXPERT_COUNTS if key in source.data]
    if not counts or counts[0] in (0, 1):
        if counts:
            source.skip(_Experts)
        return None
    keys = source.read(_Experts)
    width = keys.ffn or ffn
    if keys.ffn is None and kind not in EXPERTS_OF_DENSE_WIDTH:
        source.warn(f"moe_intermediate_size is absent: {ffn} taken, the width of a dense MLP")
    # Some give the width of the one shared expert, some their number, some both.
    each = width if keys.shared_ffn is None else keys.shared_ffn
    number = keys.shared if keys.shared is not None else keys.shared_ffn is not None
    if keys.per_token > keys.experts:
        message = f"{keys.per_token} experts a token, of {keys.experts}"
        raise source.error("num_experts_per_tok", message)
    return Moe(
        experts=keys.experts,
        experts_per_token=keys.per_token,
        ffn=width,
        shared_ffn=each * number,
    )


class _Places(Part):
    """Where experts begin, end and alternate with dense MLPs; each rule is its family's code."""

    first_k_dense_replace: int = _named(
        *("first_k_dense_replace", "num_dense_layers", "n_dense_layers", "moe_layer_num_skipped"),
        default=0,
    )
    moe_layer_freq: int | list[int] = 1
    decoder_sparse_step: Count = 1
    mlp_only_layers: list[int] = Field(default_factory=list)
    expert_layer_period: Count = 1
    expert_layer_offset: int = 0
    moe_layer_start_index: int = 0
    moe_layer_end_index: int = -1
    moe_layer_interval: Count = 1
    interleave_moe_layer_step: Count = 1
    moe_layers: list[int] | None = None
    mlp_layer_types: list[str] | None = None


_MLP_NAMES: dict[str, Mlp] = {"dense": "dense", "mlp": "dense", "sparse": "moe", "moe": "moe"}


def mlps(source: Source, layers: int, experts: bool) -> list[Mlp]:
    """Return the MLP of each layer of a model with `experts`, or without."""
    keys = source.read(_Places)
    if keys.mlp_layer_types is not None:
        return _listed(source, keys.mlp_layer_types, layers, experts)
    freq, last = keys.moe_layer_freq, keys.moe_layer_end_index
    if isinstance(freq, list) and len(freq) != layers:
        raise source.error("moe_layer_freq", f"lists {len(freq)} layers, not {layers}")
    chosen = [
        i >= max(keys.first_k_dense_replace, keys.moe_layer_start_index)
        and (last < 0 or i <= last)
        and (freq[i] > 0 if isinstance(freq, list) else i % max(freq, 1) == 0)
        and (i + 1) % keys.decoder_sparse_step == 0
        and (i + 1) % keys.moe_layer_interval == 0
        and (i + 1) % keys.interleave_moe_layer_step == 0
        and i % keys.expert_layer_period == keys.expert_layer_offset
        and i not in keys.mlp_only_layers
        and (keys.moe_layers is None or i in keys.moe_layers)
        for i in range(layers)
    ]
    return ["moe" if experts and here else "dense" for here in chosen]


def _listed(source: Source, names: list[str], layers: int, experts: bool) -> list[Mlp]:
    key = "mlp_layer_types"
    if len(names) != layers:
        raise source.error(key, f"lists {len(names)} layers, not {layers}")
    for name in names:
        if name not in _MLP_NAMES:
            hint = f"Known: {', '.join(_MLP_NAMES)}"
            raise source.error(key, f"MLPs of kind {name!r} cannot be modelled", hint)
        if _MLP_NAMES[name] == "moe" and not experts:
            raise source.error(key, "lists layers with experts, but there are none")
    return [_MLP_NAMES[name] for name in names]
