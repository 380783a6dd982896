"""Teacher-forced decode with sparse attention, all positions of a continuation at once.

A position's choice and attention depend on keys before it alone, and those are made layer by layer,
so T decode steps of one layer are a batch with a mask for each position. Layer 0 stays dense: it
has no earlier layer. Prompt keys are those of the dense prefill.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from measure.fidelity.model import attention, causal
from measure.fidelity.queries import Maker, Query, Seen
from measure.fidelity.selectors import Selector
from measure.fidelity.trajectory import Trajectory


@dataclass(frozen=True)
class Setting:
    """One way to decode: who chooses, by which query, how many tokens."""

    selector: Selector
    query: Query
    budget: int

    @property
    def name(self) -> str:
        """Such as ``rocketkv mid-r128 128``; a selector that routes nothing has no query."""
        query = f" {self.query.name}" if self.selector.routes else ""
        return f"{self.selector.name}{query} {self.budget}"


@dataclass(frozen=True)
class Decoded:
    """What a decode gave.

    Attributes
    ----------
    log_probabilities
        [T, vocabulary]
    attended_tokens
        Mean over routed layers, heads and positions.
    """

    log_probabilities: Tensor
    attended_tokens: float


def decode(maker: Maker, dense: Trajectory, setting: Setting) -> Decoded:
    """Return the decode of a trajectory's continuation under `setting`."""
    model, positions = maker.model, dense.positions
    prompt = int(positions[0])
    everything = causal(positions, prompt + len(positions))
    hidden = model.embed(dense.tokens[positions])
    before = middle = previous = hidden
    attended = []
    for index, layer in enumerate(model.checkpoint.layers):
        query = model.query(layer, hidden, positions)
        own = model.keys_values(layer, hidden, positions)
        cached = (dense.keys[index], dense.values[index])
        keys, values = (torch.cat((c[:, :prompt], o), 1) for c, o in zip(cached, own, strict=True))
        allowed = everything
        if index:
            real = torch.cat((dense.queries[index][:, :1], query), 1)
            seen = Seen(before, middle, real, previous)
            route = maker.make(setting.query, index, seen, positions)
            choice = setting.selector.choose(index, route, keys, positions, setting.budget)
            allowed = choice.attended
            attended.append(float(allowed.sum(-1, dtype=torch.float32).mean()))
        before, previous = hidden, query
        middle = model.after_attention(layer, hidden, attention(query, keys, values, allowed))
        hidden = model.after_mlp(layer, middle)
    return Decoded(model.log_probabilities(hidden), sum(attended) / max(1, len(attended)))
