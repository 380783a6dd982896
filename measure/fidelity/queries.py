"""Queries to route with: the layer's own, and what can be had before it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, get_args

import torch
from torch import Tensor

from essim.errors import InputError
from measure.fidelity.model import Model
from measure.fidelity.weights.checkpoint import Layer

Kind = Literal["target", "in", "mid", "mix", "previous_token", "previous_layer"]
KINDS: tuple[Kind, ...] = get_args(Kind)
EARLY: tuple[Kind, ...] = ("in", "mid", "mix")


@dataclass(frozen=True)
class Query:
    """What a layer is routed with.

    Attributes
    ----------
    kind
        `target` is the real query. `in`, `mid` and `mix` are the layer's own projection of an
        earlier hidden state. `previous_token` is the query that the layer had a token ago,
        `previous_layer` the real query of the layer before, both as they were.
    rank
        Of the SVD of W_q for `in`, `mid` and `mix`; None is the whole W_q.
    """

    kind: Kind
    rank: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"no query {self.kind!r}", f"There are: {', '.join(KINDS)}")
        if self.rank is not None and self.kind not in EARLY:
            message = f"query {self.kind} has no projection to cut to rank {self.rank}"
            raise InputError(message, f"Ranks are of {', '.join(EARLY)}")

    @property
    def name(self) -> str:
        """Such as ``mid`` or ``mid-r128``."""
        return self.kind + (f"-r{self.rank}" if self.rank else "")


@dataclass(frozen=True)
class Seen:
    """What there is when layer l is about to be routed.

    Attributes
    ----------
    before, middle
        Input of layer l-1 and its residual stream after attention, [T, d].
    own
        Real queries of layer l, [H, T + 1, D], those of the token before the first one first.
    previous
        Real queries of layer l-1, [H, T, D].
    """

    before: Tensor
    middle: Tensor
    own: Tensor
    previous: Tensor


@dataclass(frozen=True)
class Maker:
    """Makes routing queries of a model.

    Attributes
    ----------
    mix
        For ``mix``: the anchor of each target layer 1, 2, ...
    """

    model: Model
    mix: Sequence[str] = ()

    def make(self, query: Query, layer: int, seen: Seen, positions: Tensor) -> Tensor:
        """Return the query [H, T, D] that layer `layer` is routed with."""
        kind = self.mix[layer - 1] if query.kind == "mix" else query.kind
        if kind == "target":
            return seen.own[:, 1:]
        if kind == "previous_token":
            return seen.own[:, :-1]
        if kind == "previous_layer":
            return seen.previous
        own = self.model.checkpoint.layers[layer]
        if query.rank is not None:
            own = truncated(own, query.rank)
        return self.model.query(own, seen.before if kind == "in" else seen.middle, positions)


@cache
def _factors(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    u, s, v = torch.linalg.svd(weight, full_matrices=False)
    return u, s, v


def truncated(layer: Layer, rank: int) -> Layer:
    """Return a layer whose W_q is its best approximation of a rank (its truncated SVD)."""
    u, s, v = _factors(layer.query)
    return replace(layer, query=(u[:, :rank] * s[:rank]) @ v[:rank])
