"""The forward pass of a Llama-type model in float32, in parts that a sparse decode can reorder.

Shapes: heads come first. A batch of T positions has queries [H, T, D], keys and values [G, T, D].
Of H query heads those of one KV head follow each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from measure.fidelity.weights.checkpoint import Checkpoint, Layer, Sizes


@dataclass(frozen=True)
class Model:
    """A checkpoint on a device, with the operations of its layers."""

    checkpoint: Checkpoint

    @property
    def sizes(self) -> Sizes:
        """The model's shape."""
        return self.checkpoint.sizes

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.checkpoint.embedding.device

    def embed(self, ids: Tensor) -> Tensor:
        """Return hidden states [T, d] of token ids [T]."""
        return functional.embedding(ids, self.checkpoint.embedding)

    def normed(self, hidden: Tensor, weight: Tensor) -> Tensor:
        """Return the RMS norm of hidden states."""
        return functional.rms_norm(hidden, weight.shape, weight, self.sizes.norm_eps)

    def query(self, layer: Layer, hidden: Tensor, positions: Tensor) -> Tensor:
        """Return RoPE(W_q norm1(hidden)), [H, T, D]: also of another layer's hidden state."""
        normed = self.normed(hidden, layer.norm1)
        flat = functional.linear(normed, layer.query, layer.query_bias)
        return self.rotated(self.by_head(flat), positions)

    def keys_values(self, layer: Layer, hidden: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys after RoPE and values, [G, T, D] each."""
        normed = self.normed(hidden, layer.norm1)
        keys = self.by_head(functional.linear(normed, layer.key, layer.key_bias))
        values = self.by_head(functional.linear(normed, layer.value, layer.value_bias))
        return self.rotated(keys, positions), values

    def by_head(self, flat: Tensor) -> Tensor:
        """Return [T, heads D] as [heads, T, D]."""
        return flat.view(len(flat), -1, self.sizes.head_dim).transpose(0, 1)

    def rotated(self, heads: Tensor, positions: Tensor) -> Tensor:
        """Return RoPE of [heads, T, D] at positions [T], the halves of D against each other."""
        angles = positions[:, None].float() * self.checkpoint.frequencies
        cos, sin = angles.cos(), angles.sin()
        first, second = heads.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    def after_attention(self, layer: Layer, hidden: Tensor, attended: Tensor) -> Tensor:
        """Return the residual stream after o_proj, [T, d]: the Mid anchor."""
        flat = attended.transpose(0, 1).reshape(len(hidden), -1)
        return hidden + functional.linear(flat, layer.output)

    def after_mlp(self, layer: Layer, hidden: Tensor) -> Tensor:
        """Return the residual stream after the MLP, [T, d]."""
        normed = self.normed(hidden, layer.norm2)
        gate = functional.silu(functional.linear(normed, layer.gate))
        return hidden + functional.linear(gate * functional.linear(normed, layer.up), layer.down)

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        """Return log probabilities of the next token, [T, vocabulary]."""
        logits = functional.linear(self.normed(hidden, self.checkpoint.norm), self.checkpoint.head)
        return functional.log_softmax(logits, dim=-1)


def probabilities(query: Tensor, keys: Tensor, allowed: Tensor) -> Tensor:
    """Return attention [H, T, S] of queries over keys [G, S, D], none where not `allowed`.

    `allowed` is [*, T, S], its first axis H, G or 1.
    """
    grouped, mask = query.unflatten(0, (len(keys), -1)), _by_group(allowed, len(keys))
    scores = (grouped / math.sqrt(query.shape[-1])) @ keys[:, None].transpose(2, 3)
    return functional.softmax(scores.masked_fill_(~mask, -math.inf), dim=-1).flatten(0, 1)


def attention(query: Tensor, keys: Tensor, values: Tensor, allowed: Tensor) -> Tensor:
    """Return the attention output [H, T, D] over what is `allowed`; shapes as above."""
    grouped, mask = query.unflatten(0, (len(keys), -1)), _by_group(allowed, len(keys))
    # Each group is a sequence of its own, with one KV head.
    attended = functional.scaled_dot_product_attention(
        grouped, keys[:, None], values[:, None], attn_mask=mask, enable_gqa=True
    )
    return attended.flatten(0, 1)


def _by_group(allowed: Tensor, groups: int) -> Tensor:
    """Return a mask [*, T, S] as one that broadcasts to [G, H / G, T, S]."""
    return allowed[None] if len(allowed) == 1 else allowed.unflatten(0, (groups, -1))


def causal(positions: Tensor, tokens: int) -> Tensor:
    """Return which of `tokens` each position may see, [1, T, tokens]."""
    return (torch.arange(tokens, device=positions.device) <= positions[:, None])[None]


def on_device(checkpoint: Checkpoint, device: str) -> Model:
    """Return a model whose weights are on `device`."""

    def moved(value: Any) -> Any:
        return value.to(device) if isinstance(value, Tensor) else value

    def all_moved(owner: Any) -> dict[str, Any]:
        return {field.name: moved(getattr(owner, field.name)) for field in fields(owner)}

    layers = tuple(Layer(**all_moved(layer)) for layer in checkpoint.layers)
    return Model(replace(Checkpoint(**all_moved(checkpoint)), layers=layers))
