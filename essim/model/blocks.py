"""Parts of a model beside plain attention and MLPs: latents, experts, quantised weights."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from essim.errors import BadValueError
from essim.text.yaml import Strict

DTYPE_BYTES: dict[str, int] = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}

Count = Annotated[int, Field(ge=1, le=10**9)]


def dtype_bytes(dtype: str) -> int:
    """Return bytes per element of `dtype`; an unknown name is a `ValueError`, never zero bytes."""
    if dtype not in DTYPE_BYTES:
        raise BadValueError(f"unknown dtype {dtype!r}", f"One of {', '.join(DTYPE_BYTES)}")
    return DTYPE_BYTES[dtype]


Mixer = Literal["full", "sliding", "recurrent", "none"]
Mlp = Literal["dense", "moe", "none"]

# Mixers that keep K and V, and so have an attention op in the step.
ATTENDS: tuple[Mixer, ...] = ("full", "sliding")

# What a matrix of a layer belongs to, as far as its dtype goes.
WeightPart = Literal["attention", "dense", "experts", "shared", "recurrent"]


class Mla(Strict):
    """Multi-head latent attention: a token caches one latent a layer, shared by all heads.

    The latent is `kv_rank` compressed elements and `rope_dim` rotated ones, not K and V.
    """

    kv_rank: Count
    rope_dim: Count
    nope_dim: Count
    v_dim: Count
    q_rank: Count | None = None

    @property
    def latent_width(self) -> int:
        """Elements cached for one token in one layer."""
        return self.kv_rank + self.rope_dim


class Moe(Strict):
    """A mixture of experts: `ffn` is the width of one, `shared_ffn` of all shared ones together."""

    experts: Count
    experts_per_token: Count
    ffn: Count
    shared_ffn: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _consistent(self) -> Moe:
        if self.experts_per_token > self.experts:
            raise ValueError(
                f"experts_per_token ({self.experts_per_token}) exceeds experts ({self.experts})"
            )
        return self

    def distinct_experts(self, tokens: int) -> float:
        """Return the expected number of routed experts that `tokens` tokens reach together.

        E (1 - (1 - k/E)^b): every token takes k of E experts uniformly and independently.
        """
        missed = (1.0 - self.experts_per_token / self.experts) ** tokens
        return self.experts * (1.0 - missed)


class Recurrent(Strict):
    """A linear-attention or state-space mixer: weights of a layer, state of one sequence in it."""

    weights: Annotated[int, Field(ge=0)] = 0
    state_bytes: Annotated[int, Field(ge=0)] = 0


class LayerSizes(Strict):
    """Layers, by index, that differ from the model's own sizes; what is left out is the model's."""

    layers: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    heads: Count | None = None
    kv_heads: Count | None = None
    head_dim: Count | None = None
    ffn: Count | None = None

    def sizes(self) -> dict[str, int]:
        """Return the sizes that differ."""
        return self.model_dump(exclude={"layers"}, exclude_none=True)


def split_sizes(sizes: dict[str, int], ranks: int) -> dict[str, int]:
    """Return what one of several ranks has of a layer's sizes: of KV heads one at least."""
    least = {"kv_heads": 1}
    whole = {"head_dim": 1}
    return {k: max(least.get(k, 0), n // whole.get(k, ranks)) for k, n in sizes.items()}


class Quantised(Strict):
    """How weights below 8 bits are stored: groups of a row's inputs share a scale.

    Attributes
    ----------
    bits, scale_bits, zero_bits
        Bits of a weight, of a scale, and of a zero point where the format has them.
    group
        Inputs that share a scale; None where it is a whole row.
    """

    bits: Annotated[int, Field(ge=1, le=8)]
    group: Count | None = None
    scale_bits: Annotated[int, Field(ge=0, le=64)] = 16
    zero_bits: Annotated[int, Field(ge=0, le=64)] = 0

    def matrix_bytes(self, outputs: int, inputs: int) -> int:
        """Return the bytes of a matrix, its scales and its zero points."""
        groups = outputs * -(-inputs // self.group) if self.group else outputs
        bits = outputs * inputs * self.bits + groups * (self.scale_bits + self.zero_bits)
        return -(-bits // 8)
