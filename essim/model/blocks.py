"""Parts of a model beside plain attention and MLPs: latents, experts, recurrent mixers."""

from __future__ import annotations

from typing import Annotated

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
