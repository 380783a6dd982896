"""The KV cache of a batch of equal sequences, and which RoPE position its next slot has."""

from __future__ import annotations

import torch
from torch import Tensor

from essim.errors import InputError
from essim.model.shape import ModelShape
from measure.kernels.flow import cpu as flow

THETA = 10000.0


def check_room(
    model: ModelShape, capacity_tokens: int, tokens: int = 1, evicted_tokens: int = 0
) -> None:
    """Raise InputError where a cache, or one more token in it, is past the model's context."""
    most = model.max_context_tokens
    if capacity_tokens > most:
        raise InputError(f"a cache of {capacity_tokens} tokens, but {model.name} ends at {most}")
    if tokens < 1 or evicted_tokens < 0 or tokens >= min(capacity_tokens, most - evicted_tokens):
        raise InputError(
            f"position {tokens} with {evicted_tokens} tokens evicted",
            f"The cache has {capacity_tokens} slots, {model.name} ends at {most}, and a step needs "
            "one more",
        )


class KVCache:
    """Keys and values of every layer, in fp32.

    Attributes
    ----------
    tokens
        Cached tokens of each sequence.
    evicted_tokens
        Prompt tokens that are gone: the token in slot s has RoPE position s + evicted_tokens.
    """

    def __init__(self, model: ModelShape, batch: int, capacity_tokens: int) -> None:
        check_room(model, capacity_tokens)
        self.model, self.capacity_tokens = model, capacity_tokens
        self.rope = flow.rope_table(model.max_context_tokens, model.head_dim, THETA)
        shape = (batch, model.kv_heads, capacity_tokens, model.head_dim)
        self.layers = [(torch.zeros(shape), torch.zeros(shape)) for _ in range(model.layers)]
        self.tokens = self.evicted_tokens = 0
        self.angles = self.rope

    def place(self, tokens: int, evicted_tokens: int) -> None:
        """Say how many tokens are cached and how many prompt tokens were evicted.

        Raises
        ------
        InputError
            If there is no room for one more token.
        """
        check_room(self.model, self.capacity_tokens, tokens, evicted_tokens)
        self.tokens, self.evicted_tokens = tokens, evicted_tokens
        # A slot's angles: the table, from where positions and slots differ.
        self.angles = self.rope[0][evicted_tokens:], self.rope[1][evicted_tokens:]

    def write(self, layer: int, sequence: int, keys: Tensor, values: Tensor) -> None:
        """Put a prompt's keys and values [G, tokens, D] into the first slots of a sequence."""
        for own, new in zip(self.layers[layer], (keys, values), strict=True):
            own[sequence, :, : new.shape[1]] = new

    def fill_noise(self, generator: torch.Generator) -> None:
        """Fill what is cached with unit noise."""
        for layer in self.layers:
            for part in layer:
                part[:, :, : self.tokens].normal_(generator=generator)

    def append(self, layer: int, qkv: Tensor) -> Tensor:
        """Write the newest token, slot ``tokens - 1``; return rotated queries [b, H, D]."""
        return flow.rope_append(qkv, self.angles, *self.layers[layer], self.tokens - 1)

    def newest(self, layer: int) -> Tensor:
        """The newest token's key [b, G, D]."""
        return self.layers[layer][0][:, :, self.tokens - 1]

    def keys(self, layer: int) -> Tensor:
        """Post-RoPE keys [b, G, tokens, D]."""
        return self.layers[layer][0][:, :, : self.tokens]

    def values(self, layer: int) -> Tensor:
        """Values [b, G, tokens, D]."""
        return self.layers[layer][1][:, :, : self.tokens]
