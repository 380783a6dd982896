"""One dense run over a context: its KV cache, and what routing could have been made from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from measure.fidelity.model import Model


@dataclass(frozen=True)
class Trajectory:
    """A context of N tokens, the last T of which are decode positions.

    Attributes
    ----------
    tokens
        N inputs and the target of the last, [N + 1].
    keys, values
        [G, N, D] of each layer, keys after RoPE.
    queries
        The real queries [H, T + 1, D] of each layer, those of the last prompt token first.
    before, middle
        Input of each layer and its residual stream after attention, [T, d] (anchors In and Mid).
    log_probabilities
        Of the next token at each decode position, [T, vocabulary].
    """

    tokens: Tensor
    decoded: int
    keys: list[Tensor]
    values: list[Tensor]
    queries: list[Tensor]
    before: list[Tensor]
    middle: list[Tensor]
    log_probabilities: Tensor

    @property
    def positions(self) -> Tensor:
        """Decode positions, [T]."""
        last = len(self.tokens) - 1
        return torch.arange(last - self.decoded, last, device=self.tokens.device)

    @property
    def targets(self) -> Tensor:
        """The token after each decode position, [T]."""
        return self.tokens[-self.decoded :]


def run_dense(model: Model, tokens: Tensor, decoded: int) -> Trajectory:
    """Return the dense run over `tokens` [N + 1], its last `decoded` inputs as decode positions."""
    count, made = len(tokens) - 1, Trajectory(tokens, decoded, [], [], [], [], [], tokens)
    positions = torch.arange(count, device=tokens.device)
    hidden = model.embed(tokens[:-1])
    for layer in model.checkpoint.layers:
        made.before.append(hidden[-decoded:].clone())
        queries = model.query(layer, hidden, positions)
        keys, values = model.keys_values(layer, hidden, positions)
        attended = functional.scaled_dot_product_attention(
            queries[None], keys[None], values[None], is_causal=True, enable_gqa=True
        )[0]
        hidden = model.after_attention(layer, hidden, attended)
        made.keys.append(keys.contiguous())
        made.values.append(values.contiguous())
        made.queries.append(queries[:, -decoded - 1 :].clone())
        made.middle.append(hidden[-decoded:].clone())
        hidden = model.after_mlp(layer, hidden)
    return Trajectory(
        *(tokens, decoded, made.keys, made.values, made.queries, made.before, made.middle),
        model.log_probabilities(hidden[-decoded:]),
    )
