"""A decoder-only model of the Llama type: its sizes and its weights, from whatever file."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sizes:
    """The shape of a Llama-type model, under the names of `essim.model`."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    rope_base: float
    norm_eps: float
    max_context_tokens: int

    @property
    def group(self) -> int:
        """Query heads a KV head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True)
class Layer:
    """Weights of one layer, float32, each [outputs, inputs]; heads rotate halves in RoPE.

    Biases are those of Qwen2's query, key and value, None elsewhere.
    """

    norm1: Tensor
    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    norm2: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor
    query_bias: Tensor | None = None
    key_bias: Tensor | None = None
    value_bias: Tensor | None = None


@dataclass(frozen=True)
class Checkpoint:
    """Everything a forward pass reads.

    Attributes
    ----------
    name
        What the file calls the model, with its quantisation.
    sha256
        Of the weights' file or files.
    frequencies
        RoPE's angle a position, [head_dim / 2].
    """

    name: str
    sha256: str
    sizes: Sizes
    embedding: Tensor
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Tensor
    frequencies: Tensor


def rope_frequencies(sizes: Sizes) -> Tensor:
    """Return base^(-2i/D) for i in 0..D/2-1."""
    exponents = torch.arange(0, sizes.head_dim, 2, dtype=torch.float32) / sizes.head_dim
    return 1.0 / sizes.rope_base**exponents
