"""The recurrent mixers of a config: weights of a layer, and the state of one sequence in it."""

from __future__ import annotations

from typing import Literal

from pydantic import AliasChoices, Field

from essim.model.hf.source import Part, Source
from essim.model.shape import Count, Recurrent

# State of a recurrence in fp32, its convolution window in 16 bits.
_STATE_BYTES, _CONV_BYTES = 4, 2


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


class _Griffin(Part):
    """RG-LRU of RecurrentGemma: gates are block diagonal, a block a head."""

    num_attention_heads: Count
    lru_width: Count | None = None
    conv1d_width: Count = 4

    def size(self, hidden: int) -> Recurrent:
        width = self.lru_width or hidden
        gates = 2 * width * (width // self.num_attention_heads)
        return _sized(3 * hidden * width + gates + width, width, self.conv1d_width, width)


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
    for key, part in _BY_KEY.items():
        if key in data:
            return source.read(part).size(hidden)
    return None


# What tells of each mixer; Mamba-2 names its heads, Mamba does not.
_BY_KEY: dict[str, type[_DeltaNet | _Griffin | _Mamba1 | _Mamba2]] = {
    "linear_num_value_heads": _DeltaNet,
    "block_types": _Griffin,
    "mamba_num_heads": _Mamba2,
    "mamba_n_heads": _Mamba2,
    "mamba_d_state": _Mamba1,
}
