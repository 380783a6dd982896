"""Selectors as they choose: each says which cached tokens the queries of T positions attend to.

A query may be the layer's own or a proxy. The key of the current token does not exist yet when a
proxy is computed, so it is never scored and always attended to, outside the budget.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor

from measure.fidelity.model import causal
from measure.fidelity.pages import best, summaries, tail_summaries, tokens_of


@dataclass(frozen=True)
class Choice:
    """Which tokens are attended to, [*, T, S], the first axis H, G or 1.

    Attributes
    ----------
    routed
        Chosen by score.
    kept
        Attended to whatever the scores, the current token among them.
    """

    routed: Tensor
    kept: Tensor

    @property
    def attended(self) -> Tensor:
        """All tokens that are attended to."""
        return self.routed | self.kept


class Selector(ABC):
    """What chooses `budget` tokens for a query."""

    name: str
    # Whether a query is needed at all.
    routes = True

    @abstractmethod
    def choose(
        self, layer: int, query: Tensor, keys: Tensor, positions: Tensor, budget: int
    ) -> Choice:
        """Return what positions [T] attend to.

        Parameters
        ----------
        query
            [H, T, D]
        keys
            [G, S, D], after RoPE; those after a position are never looked at.
        """


@dataclass(frozen=True)
class RocketKV(Selector):
    """RocketKV's second stage (hybrid sparse attention), shared in a GQA group.

    Attributes
    ----------
    page
        Tokens a page.
    channels
        Channels that are scored, those of the largest summed absolute query; None is all.
    tail, sink
        Whether the newest page is kept outside the budget, and whether the first is one of the
        chosen in any case. Without `tail` the newest page competes by what it holds so far.
    """

    page: int = 4
    channels: int | None = None
    tail: bool = True
    sink: bool = False
    name: str = "rocketkv"

    def choose(
        self, layer: int, query: Tensor, keys: Tensor, positions: Tensor, budget: int
    ) -> Choice:
        """Return the best pages by the softmax of min/max scores, summed over a group."""
        now = positions // self.page
        low, high = summaries(keys, self.page)
        index = torch.arange(low.shape[1] + 1, device=keys.device)
        scored, scale = self._scored(query, len(keys))
        scores = self._scores(scored, low, high)
        if self.tail:
            eligible = index[:-1] < now[:, None]
        else:
            begun = positions % self.page > 0
            eligible = (index < now[:, None]) | ((index == now[:, None]) & begun[:, None])
            scores = torch.nn.functional.pad(scores, (0, 1))
            newest = self._newest(scored, *tail_summaries(keys, self.page, positions))
            at = now.expand(*newest.shape).unsqueeze(-1)
            scores.scatter_(-1, at, torch.where(begun, newest, 0.0).unsqueeze(-1))
        weights = (scores / scale[..., None]).masked_fill(~eligible, -math.inf).softmax(-1)
        group = weights.nan_to_num().unflatten(0, (len(keys), -1)).sum(1)
        if self.sink:
            group[..., 0] = math.inf
        pages = best(group, budget // self.page, eligible)
        seen = causal(positions, keys.shape[1])
        routed = tokens_of(pages, self.page, keys.shape[1]) & seen
        return Choice(routed, _kept(positions, keys, self.page if self.tail else 1))

    def _scored(self, query: Tensor, groups: int) -> tuple[Tensor, Tensor]:
        """Return the part of the query on chosen channels, split by sign, and the scale.

        The first is [2, H, T, D]: what reads max (where the group's sum is positive), and what
        reads min. The scale is sqrt(D sum|q chosen| / sum|q|), [H, T].
        """
        grouped = query.unflatten(0, (groups, -1))
        size = grouped.abs().sum(1)
        chosen = torch.ones_like(size)
        if self.channels is not None and self.channels < query.shape[-1]:
            index = size.topk(self.channels, dim=-1, sorted=False).indices
            chosen = torch.zeros_like(size).scatter_(-1, index, 1.0)
        read = (grouped * chosen[:, None]).flatten(0, 1)
        positive = (grouped.sum(1, keepdim=True) > 0).expand_as(grouped).flatten(0, 1)
        share = read.abs().sum(-1) / query.abs().sum(-1)
        return torch.stack((read * positive, read * ~positive)), (share * query.shape[-1]).sqrt()

    @staticmethod
    def _scores(scored: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Return scores of whole pages, [H, T, P]."""
        _, heads, count, dim = scored.shape
        by_group = scored.reshape(2, len(low), -1, dim)
        scores = torch.bmm(by_group[0], high.transpose(1, 2))
        scores = torch.baddbmm(scores, by_group[1], low.transpose(1, 2))
        return scores.view(heads, count, -1)

    @staticmethod
    def _newest(scored: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Return the score of each position's own page, [H, T]; NaN where nothing is in it."""
        by_group = scored.unflatten(1, (len(low), -1))
        scores: Tensor = (by_group[0] * high[:, None] + by_group[1] * low[:, None]).sum(-1)
        return scores.flatten(0, 1)


@dataclass(frozen=True)
class Quest(Selector):
    """Quest: each query head takes the pages of the largest upper bound; the newest is one."""

    page: int = 16
    name: str = "quest"

    def choose(
        self, layer: int, query: Tensor, keys: Tensor, positions: Tensor, budget: int
    ) -> Choice:
        """Return the best pages by sum of max(q min, q max) over channels."""
        low, high = summaries(keys, self.page)
        grouped = query.reshape(len(keys), -1, query.shape[-1])
        scores = torch.bmm(grouped.clamp(min=0), high.transpose(1, 2))
        scores = torch.baddbmm(scores, grouped.clamp(max=0), low.transpose(1, 2))
        index = torch.arange(low.shape[1], device=keys.device)
        eligible = index < (positions // self.page)[:, None]
        by_head = scores.view(len(query), len(positions), -1)
        pages = best(by_head, budget // self.page - 1, eligible)
        return Choice(tokens_of(pages, self.page, keys.shape[1]), _kept(positions, keys, self.page))


@dataclass(frozen=True)
class Loki(Selector):
    """Loki: each query head takes the tokens of the largest score in a few PCA dimensions.

    Attributes
    ----------
    bases
        [G, D, r] of each layer: the first principal directions of keys on a calibration text.
    """

    bases: list[Tensor] = field(repr=False)
    name: str = "loki"

    def choose(
        self, layer: int, query: Tensor, keys: Tensor, positions: Tensor, budget: int
    ) -> Choice:
        """Return the best tokens by (q P)(k P)."""
        basis = self.bases[layer]
        grouped = query.reshape(len(keys), -1, query.shape[-1])
        scores = torch.bmm(torch.bmm(grouped, basis), torch.bmm(keys, basis).transpose(1, 2))
        eligible = causal(positions - 1, keys.shape[1])[0]
        by_head = scores.view(len(query), len(positions), -1)
        return Choice(best(by_head, budget, eligible), _kept(positions, keys, 1))


@dataclass(frozen=True)
class ExactTopK(Selector):
    """Exact top-k: every key is scored, the group's mean probability decides. The oracle."""

    name: str = "exact_topk"

    def choose(
        self, layer: int, query: Tensor, keys: Tensor, positions: Tensor, budget: int
    ) -> Choice:
        """Return the tokens of the largest attention, summed over a group."""
        grouped = query.reshape(len(keys), -1, query.shape[-1])
        scores = torch.bmm(grouped, keys.transpose(1, 2)) / math.sqrt(query.shape[-1])
        eligible = causal(positions - 1, keys.shape[1])[0]
        by_head = scores.view(len(keys), -1, len(positions), keys.shape[1])
        weights = by_head.masked_fill(~eligible, -math.inf).softmax(-1).sum(1)
        return Choice(best(weights, budget, eligible), _kept(positions, keys, 1))


@dataclass(frozen=True)
class SinkRecent(Selector):
    """The first tokens and the newest: no query, no routing. What a router has to beat."""

    sinks: int = 4
    name: str = "sink_recent"
    routes = False

    def choose(
        self, layer: int, query: Tensor, keys: Tensor, positions: Tensor, budget: int
    ) -> Choice:
        """Return `sinks` first tokens and the newest others."""
        index = torch.arange(keys.shape[1], device=keys.device)
        age = positions[:, None] - index
        routed = (age > 0) & ((index < self.sinks) | (age <= budget - self.sinks))
        return Choice(routed[None], _kept(positions, keys, 1))


def _kept(positions: Tensor, keys: Tensor, page: int) -> Tensor:
    """Return the tokens of a position's own page up to itself, [1, T, S]."""
    first = positions // page * page
    index = torch.arange(keys.shape[1], device=keys.device)
    return ((index >= first[:, None]) & (index <= positions[:, None]))[None]


def principal_directions(keys: Tensor, rank: int) -> Tensor:
    """Return the first directions of keys [G, S, D] about the origin, [G, D, rank].

    Loki keeps keys in this basis, so it is not centred: q k is what is approximated.
    """
    vectors: Tensor = torch.linalg.eigh(torch.bmm(keys.transpose(1, 2), keys))[1]
    return vectors.flip(-1)[..., :rank].contiguous()
