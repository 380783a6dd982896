"""Decode steps of many batches at any contexts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from essim.engines import finish_alike
from essim.hardware.profile import HardwareProfile
from essim.simulate.closed.lines import Tokens, Values
from essim.simulate.closed.strata import shares, times_s
from essim.simulate.replay import check_length
from essim.simulate.scenario import Scenario
from essim.step.kinds import KINDS, Case, Point
from essim.step.ops import MAIN_STREAM, Op, decode_step
from essim.step.price import INSIDE, CostModel, Price

# Steps are counted in whole femtoseconds: finer than the engines' picoseconds, so that lines
# through two contexts are as straight as prices make them.
_FS_PER_S = 1e15
# Lanes that are computed at once: their rows stay in a core's cache.
_MOST_LANES = 1 << 14


class Steps:
    """Decode steps of a model on a machine with a selector and a routing.

    Parameters
    ----------
    point
        Any point of them: batch and output length are not read.
    batches
        Sequences in the batch, shape [batches].
    contexts
        The first and the last context that are asked for.
    evicted_tokens
        Tokens of the prompt that were evicted: layers with a sliding window count them.

    Attributes
    ----------
    calls, main, router
        How often a step has an op kind: at all, on the main stream, on the CPU router's.
    fixed, moving
        Prices that do not depend on the context, and the kinds of the others.
    drawn
        Kinds whose calls take another time each, and how often a step has them.
    period
        Steps are lines for each remainder of the context by it.

    Raises
    ------
    InputError, PricingError
        If such a step cannot be timed.
    """

    def __init__(
        self,
        point: Scenario,
        profile: HardwareProfile,
        batches: Tokens,
        contexts: tuple[int, int],
        evicted_tokens: int,
        *,
        strict: bool = False,
    ) -> None:
        selector = point.resolved_selector()
        self.profile, self.batches, self._evicted = profile, batches, evicted_tokens
        self.ops = _the_same(decode_step(point.model, selector, point.routing))
        self._costs = CostModel(profile, Case(point.model, selector, point.routing), strict=strict)
        place = point.routing.placement
        self.calls = Counter(op.kind for op in self.ops)
        self.kinds = list(self.calls)
        self.main = Counter(op.kind for op in self.ops if op.stream == MAIN_STREAM)
        on_router = [op.kind for op in self.ops if op.stream == place.stream]
        self.router = Counter(on_router if place.hands_over else [])
        self.fixed: dict[str, Price] = {}
        # Two contexts at least: what has one lane only is the same at both.
        at = np.array([contexts[0], max(contexts[1], contexts[0] + 1)], dtype=np.int64)
        self._prices = prices = self.prices(at)
        self.fixed = {kind: p for kind, p in prices.items() if p.mean_s.shape[1] == 1}
        self.moving = [kind for kind in self.kinds if kind not in self.fixed]
        self.drawn = {k: n for k, n in self.calls.items() if prices[k].distribution is not None}
        check_length(self.ops, prices, profile)
        # Outside of tables, prices follow the bytes of whole pages.
        pages = selector.table_conditions()
        whole = math.lcm(pages.get("page_tokens") or 1, pages.get("kv_block_tokens") or 1)
        outside = any((prices[kind].rank > INSIDE).any() for kind in self.moving)
        self.period = whole if outside else 1

    def prices(self, contexts: Tokens) -> dict[str, Price]:
        """Return each kind's price: shape [batches, contexts], or [batches or 1, 1]."""
        batch = self.batches[:, None]
        at = Point(batch, batch, contexts[None, :], self._evicted)
        return {
            kind: self.fixed.get(kind) or _two_axes(self._costs.lanes(kind, at))
            for kind in self.kinds
        }

    def moving_prices(self) -> list[Price]:
        """Return the prices that depend on the context, at the first one."""
        return [self._prices[kind] for kind in self.moving]

    def fixed_s(self, kind: str) -> Values:
        """Return a fixed price, shape [batches, 1]."""
        return np.broadcast_to(self.fixed[kind].mean_s, (len(self.batches), 1))

    def typical_s(self, spans: Sequence[tuple[int, int]]) -> Values:
        """Return about how long a step takes, shape [batches]."""
        prices = self.prices(np.array([spans[0][0]], dtype=np.int64))
        total = sum(n * prices[kind].mean_s[:, 0] for kind, n in self.main.items())
        return np.broadcast_to(np.asarray(total), self.batches.shape)

    def step_s(
        self,
        prices: Mapping[str, Price],
        factors: Mapping[str, Values] | None = None,
        *,
        routed: bool = True,
        first: bool = False,
    ) -> Values:
        """Return the time of a step whose calls take their means.

        Parameters
        ----------
        factors
            By kind, what to multiply its price by: shape [batches, contexts, draws], or ones.
            With these, calls lie in `strata`.
        routed
            Whether routing and hand-over take time.
        first
            Whether no step is before it; else it follows one like it.

        Returns
        -------
        array
            Shape [batches, contexts, draws], or what broadcasts to it.
        """
        rows: dict[str, NDArray[np.int64]] = {}
        drawn = 0
        for kind, price in prices.items():
            if not routed and KINDS[kind].part == "routing":
                rows[kind] = np.zeros((1, 1, 1, 1), dtype=np.int64)
                continue
            time_s = price.mean_s[:, :, None, None]
            if price.distribution is not None and factors is not None:
                time_s = times_s(price.distribution, drawn)[:, :, None, :]
                drawn += 1
            if factors is not None and kind in factors:
                time_s = time_s * factors[kind][:, :, :, None]
            rows[kind] = _whole_fs(time_s)
        durations = [rows[op.kind] for op in self.ops]
        steps = finish_alike(self.ops, durations, "nothing" if first else "its like") / _FS_PER_S
        return np.asarray(steps @ shares() if drawn else steps[..., 0])

    def drawn_s(self, contexts: Tokens, normals: Values) -> Values:
        """Return the times of the first steps of a run that stays at a context, at each.

        Parameters
        ----------
        normals
            Of the drawn calls, shape [calls of a step, steps].

        Returns
        -------
        array
            Shape [batches, contexts, steps].
        """
        size = max(1, _MOST_LANES // (len(self.batches) * normals.shape[1]))
        parts = np.split(contexts, range(size, len(contexts), size))
        return np.concatenate([self._drawn_s(part, normals) for part in parts], axis=1)

    def _drawn_s(self, contexts: Tokens, normals: Values) -> Values:
        prices = self.prices(contexts)
        rows = {kind: _whole_fs(price.mean_s[:, :, None]) for kind, price in prices.items()}
        durations, calls = [], iter(normals)
        for op in self.ops:
            spread = prices[op.kind].distribution
            if spread is None:
                durations.append(rows[op.kind])
                continue
            lanes = replace(spread, log_s=spread.log_s[:, :, :, None])
            durations.append(_whole_fs(lanes.times_s(next(calls))))
        steps = finish_alike(self.ops, durations, "the lane before") / _FS_PER_S
        shape = (len(self.batches), len(contexts), normals.shape[1])
        return np.broadcast_to(steps, shape)


@lru_cache(maxsize=256)
def _the_same(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """Return an equal list that was here before, if any: its plan is found without comparing."""
    return ops


def _whole_fs(seconds: Values) -> NDArray[np.int64]:
    return np.asarray(np.rint(seconds * _FS_PER_S)).astype(np.int64)


def _two_axes(price: Price) -> Price:
    """Return a price with an axis of batches and one of contexts."""
    mean_s, rank = np.broadcast_arrays(np.atleast_2d(price.mean_s), np.atleast_2d(price.rank))
    spread = price.distribution
    if spread is not None:
        log_s = spread.log_s.reshape(len(spread.z), *np.atleast_2d(spread.log_s[0]).shape)
        spread = replace(spread, log_s=log_s)
    return replace(price, mean_s=mean_s, rank=rank, distribution=spread)
