"""How well a query chooses, on the dense trajectory: nothing that it chooses changes what follows.

Every measure is an array [L - 1, H, T] of routed layers, query heads and decode positions; what a
GQA group shares is there for each of its heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from measure.fidelity.decode import Setting
from measure.fidelity.model import causal, probabilities
from measure.fidelity.queries import Maker, Query, Seen
from measure.fidelity.selectors import Choice, ExactTopK
from measure.fidelity.trajectory import Trajectory

Measures: TypeAlias = dict[str, NDArray[np.float32]]
TARGET = Query("target")


@dataclass(frozen=True)
class Choices:
    """What was measured on one context.

    Attributes
    ----------
    queries
        By query's name: ``cosine`` to the real query, and ``recall``, the share of its signed
        top-r channels that the proxy's group has too.
    settings
        By setting's name: ``mass``, the real query's attention on what is attended to;
        ``oracle_mass``, the same of exact top-k's choice by the real query; ``overlap``, the share
        of the routed tokens that the real query would have chosen; ``oracle_recall``, the share of
        exact top-k's tokens that are attended to.
    """

    queries: dict[str, Measures] = field(default_factory=dict)
    settings: dict[str, Measures] = field(default_factory=dict)


def measure_choices(
    maker: Maker,
    dense: Trajectory,
    queries: Sequence[Query],
    settings: Sequence[Setting],
    channels: int,
    stride: int = 1,
) -> Choices:
    """Return what queries and settings do at every `stride`-th decode position of a trajectory.

    Parameters
    ----------
    channels
        r of the signed top-r recall.
    """
    layers = [_Layer(maker, dense, index, stride) for index in range(1, maker.model.sizes.layers)]
    found = Choices()
    by_query: dict[str, list[dict[str, Tensor]]] = {}
    by_setting: dict[str, list[dict[str, Tensor]]] = {}
    for layer in layers:
        for query in queries:
            by_query.setdefault(query.name, []).append(layer.of_query(query, channels))
        for name, measured in layer.of_settings(settings):
            by_setting.setdefault(name, []).append(measured)
        layer.forget()
    heads = maker.model.sizes.heads
    found.queries.update((name, _stacked(rows, heads)) for name, rows in by_query.items())
    found.settings.update((name, _stacked(rows, heads)) for name, rows in by_setting.items())
    return found


def _stacked(layers: Sequence[Mapping[str, Tensor]], heads: int) -> Measures:
    """Return a layer's measures as arrays over all layers, one entry a query head."""

    def by_head(values: Tensor) -> Tensor:
        return values.repeat_interleave(heads // len(values), dim=0)

    return {
        name: torch.stack([by_head(layer[name]) for layer in layers]).float().cpu().numpy()
        for name in layers[0]
    }


class _Layer:
    """One routed layer of a trajectory, at some of its decode positions."""

    def __init__(self, maker: Maker, dense: Trajectory, index: int, stride: int) -> None:
        self.maker, self.index = maker, index
        self.positions = dense.positions[::stride]
        self.keys = dense.keys[index]
        every = slice(None, None, stride)
        own, previous = dense.queries[index], dense.queries[index - 1][:, 1:]
        pairs = torch.stack((own[:, :-1][:, every], own[:, 1:][:, every]))
        self.real, self.last = pairs[1], pairs[0]
        self.seen = (dense.before[index - 1][every], dense.middle[index - 1][every])
        self.previous = previous[:, every]
        self._made: dict[Query, Tensor] = {}
        self._truth: Tensor | None = None

    @property
    def truth(self) -> Tensor:
        """The real query's attention, [H, T, S]."""
        if self._truth is None:
            allowed = causal(self.positions, self.keys.shape[1])
            self._truth = probabilities(self.real, self.keys, allowed)
        return self._truth

    def forget(self) -> None:
        """Give back the memory of what can be computed again."""
        self._made.clear()
        self._truth = None

    def made(self, query: Query) -> Tensor:
        """Return the query to route with, [H, T, D]."""
        if query not in self._made:
            if query.kind in ("target", "previous_token"):
                self._made[query] = self.real if query.kind == "target" else self.last
            else:
                seen = Seen(*self.seen, self.real, self.previous)
                self._made[query] = self.maker.make(query, self.index, seen, self.positions)
        return self._made[query]

    def of_query(self, query: Query, channels: int) -> dict[str, Tensor]:
        """Return the cosine [H, T] and the signed recall [G, T] of a query."""
        made = self.made(query)
        groups = len(self.keys)
        wanted, found = (_signed_top(q, groups, channels) for q in (self.real, made))
        recall = (wanted & found).sum(-1) / channels
        return {"cosine": functional.cosine_similarity(made, self.real, dim=-1), "recall": recall}

    def of_settings(self, settings: Sequence[Setting]) -> Iterator[tuple[str, dict[str, Tensor]]]:
        """Yield each setting's name and measures; the real query chooses once for all proxies."""
        oracles: dict[int, Tensor] = {}
        real: dict[tuple[str, int], Choice] = {}
        for setting in settings:
            budget, key = setting.budget, (setting.selector.name, setting.budget)
            if budget not in oracles:
                oracles[budget] = self._choose(Setting(ExactTopK(), TARGET, budget)).attended
            if key not in real:
                real[key] = self._choose(Setting(setting.selector, TARGET, budget))
            is_real = setting.query == TARGET or not setting.selector.routes
            choice = real[key] if is_real else self._choose(setting)
            yield setting.name, self._measured(choice, real[key], oracles[budget])

    def _choose(self, setting: Setting) -> Choice:
        query = self.made(setting.query)
        selector = setting.selector
        return selector.choose(self.index, query, self.keys, self.positions, setting.budget)

    def _measured(self, choice: Choice, real: Choice, oracle: Tensor) -> dict[str, Tensor]:
        attended = choice.attended
        both = (choice.routed & real.routed).sum(-1)
        held = attended.unflatten(0, (-1, max(1, len(attended) // len(oracle)))) & oracle[:, None]
        return {
            "mass": _mass(self.truth, attended),
            "oracle_mass": _mass(self.truth, oracle),
            "overlap": both / real.routed.sum(-1).clamp(min=1),
            "oracle_recall": (held.sum(-1) / oracle.sum(-1)[:, None]).flatten(0, 1),
        }


def _mass(truth: Tensor, attended: Tensor) -> Tensor:
    """Return the attention [H, T] on what is attended to."""
    if len(attended) == 1:
        whole: Tensor = (truth * attended).sum(-1)
        return whole
    grouped = truth.unflatten(0, (len(attended), -1))
    held: Tensor = (grouped * attended[:, None]).sum(-1)
    return held.flatten(0, 1)


def _signed_top(query: Tensor, groups: int, channels: int) -> Tensor:
    """Return which (channel, sign) a group scores with, [G, T, 2 D]."""
    grouped = query.unflatten(0, (groups, -1))
    index = grouped.abs().sum(1).topk(channels, dim=-1).indices
    chosen = torch.zeros_like(grouped[:, 0], dtype=torch.bool).scatter_(-1, index, True)
    positive = grouped.sum(1) > 0
    return torch.cat((chosen & positive, chosen & ~positive), dim=-1)
