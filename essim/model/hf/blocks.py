"""The latents, experts and recurrent mixers of a config."""

from __future__ import annotations

from typing import Literal

from pydantic import AliasChoices, Field

from essim.model.hf.source import Part, Source
from essim.model.shape import Count, Mla, Moe, Recurrent

# State of a recurrence in fp32, its convolution window in 16 bits.
_STATE_BYTES, _CONV_BYTES = 4, 2


class _Latent(Part):
    kv_lora_rank: Count
    qk_rope_head_dim: Count
    qk_nope_head_dim: Count | None = None
    v_head_dim: Count | None = None
    q_lora_rank: Count | None = None


def read_mla(source: Source) -> Mla | None:
    """Return the sizes of multi-head latent attention, if the config has it."""
    if source.data.get("kv_lora_rank") is None:
        return None
    keys = source.read(_Latent)
    for name in ("qk_nope_head_dim", "v_head_dim"):
        if getattr(keys, name) is None:
            source.warn(f"{name} is absent: 128 taken, as in DeepSeek-V2")
    return Mla(
        kv_rank=keys.kv_lora_rank,
        rope_dim=keys.qk_rope_head_dim,
        nope_dim=keys.qk_nope_head_dim or 128,
        v_dim=keys.v_head_dim or 128,
        q_rank=keys.q_lora_rank,
    )


EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


class _Experts(Part):
    experts: int = Field(0, ge=0, validation_alias=AliasChoices(*EXPERT_COUNTS))
    per_token: Count = Field(
        validation_alias=AliasChoices("num_experts_per_tok", "num_experts_per_token", "moe_k")
    )
    ffn: Count | None = Field(None, validation_alias="moe_intermediate_size")
    shared: int | None = Field(
        None, ge=0, validation_alias=AliasChoices("n_shared_experts", "num_shared_experts")
    )
    shared_ffn: int | None = Field(
        None,
        ge=0,
        validation_alias=AliasChoices(
            "shared_expert_intermediate_size",
            "moe_shared_expert_intermediate_size",
            "shared_intermediate_size",
        ),
    )


def read_moe(source: Source, ffn: int) -> Moe | None:
    """Return the experts, if there is more than one; `ffn` is their width where none is given."""
    counts = [source.data[key] for key in EXPERT_COUNTS if source.data.get(key) is not None]
    if not counts or counts[0] in (0, 1):
        return None
    keys = source.read(_Experts)
    width = keys.ffn or ffn
    # Some give the width of the one shared expert, some their number, some both.
    each = width if keys.shared_ffn is None else keys.shared_ffn
    number = keys.shared if keys.shared is not None else keys.shared_ffn is not None
    shared_ffn = each * number
    return Moe(
        experts=keys.experts, experts_per_token=keys.per_token, ffn=width, shared_ffn=shared_ffn
    )


class _DeltaNet(Part):
    """Gated DeltaNet (Qwen3-Next)."""

    linear_num_key_heads: Count
    linear_key_head_dim: Count
    linear_num_value_heads: Count
    linear_value_head_dim: Count
    linear_conv_kernel_dim: Count

    def size(self, hidden: int) -> Recurrent:
        keys = self.linear_num_key_heads * self.linear_key_head_dim
        values = self.linear_num_value_heads * self.linear_value_head_dim
        wide = 2 * keys + values
        projected = hidden * (wide + values + 2 * self.linear_num_value_heads) + values * hidden
        return _sized(
            projected, wide, self.linear_conv_kernel_dim, values * self.linear_key_head_dim
        )


class _KimiDelta(Part):
    """Kimi Delta Attention: the keys of ``linear_attn_config``."""

    num_heads: Count
    head_dim: Count
    short_conv_kernel_size: Count

    def size(self, hidden: int) -> Recurrent:
        width = self.num_heads * self.head_dim
        gates = 2 * (hidden * self.head_dim + self.head_dim * width) + hidden * self.num_heads
        state = width * self.head_dim
        return _sized(4 * hidden * width + gates, 3 * width, self.short_conv_kernel_size, state)


class _Mamba1(Part):
    """Mamba (Jamba)."""

    mamba_d_state: Count
    mamba_d_conv: Count
    mamba_expand: Count
    mamba_dt_rank: Count | Literal["auto"] = "auto"

    def size(self, hidden: int) -> Recurrent:
        width, state = self.mamba_expand * hidden, self.mamba_d_state
        rank = -(-hidden // 16) if self.mamba_dt_rank == "auto" else self.mamba_dt_rank
        projected = 3 * hidden * width + width * (2 * rank + 2 * state) + width * (state + 1)
        return _sized(projected, width, self.mamba_d_conv, width * state)


class _Mamba2(Part):
    """Mamba-2 (Nemotron-H, Bamba, Granite hybrids)."""

    heads: Count = Field(validation_alias=AliasChoices("mamba_num_heads", "mamba_n_heads"))
    head_dim: Count = Field(validation_alias=AliasChoices("mamba_head_dim", "mamba_d_head"))
    groups: Count = Field(validation_alias=AliasChoices("mamba_n_groups", "n_groups"))
    state: Count = Field(validation_alias=AliasChoices("ssm_state_size", "mamba_d_state"))
    kernel: Count = Field(validation_alias=AliasChoices("conv_kernel", "mamba_d_conv"))

    def size(self, hidden: int) -> Recurrent:
        width = self.heads * self.head_dim
        wide = width + 2 * self.groups * self.state
        projected = hidden * (wide + width + self.heads) + width * hidden
        return _sized(projected, wide, self.kernel, width * self.state)


def _sized(projected: int, conv: int, kernel: int, state: int) -> Recurrent:
    """Return a layer's size: projections, a depthwise convolution, and the state of both."""
    held = state * _STATE_BYTES + conv * (kernel - 1) * _CONV_BYTES
    return Recurrent(weights=projected + conv * kernel, state_bytes=held)


def read_recurrent(source: Source, hidden: int) -> Recurrent | None:
    """Return the size of the layers without attention; None where the config does not tell."""
    data = source.data
    if isinstance(data.get("linear_attn_config"), dict):
        nested = source.nested("linear_attn_config")
        return nested.read(_KimiDelta).size(hidden) if "num_heads" in nested.data else None
    if "linear_num_value_heads" in data:
        return source.read(_DeltaNet).size(hidden)
    if "mamba_num_heads" in data or "mamba_n_heads" in data:
        return source.read(_Mamba2).size(hidden)
    return source.read(_Mamba1).size(hidden) if "mamba_d_state" in data else None
