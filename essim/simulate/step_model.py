"""StepModel: how long a decode step takes at the contexts of its sequences, and where linearly."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from essim.engines import finish_maxplus
from essim.engines.graph import Graph
from essim.errors import InputError
from essim.hardware.profile import HardwareProfile
from essim.methods.routing import Routing
from essim.methods.selectors import Selector
from essim.model.shape import ModelShape
from essim.simulate.feasible import cannot_route
from essim.simulate.plan import points_of
from essim.simulate.replay import Picoseconds, check_length, to_ps
from essim.simulate.scenario import Scenario
from essim.simulate.sweep import Simulator
from essim.step.kinds import Case, Point
from essim.step.ops import decode_step
from essim.step.price import CostModel
from essim.text.yaml import Document

# Steps do not depend on these, but a scenario has them, and a policy of a selector asks for them.
_WORKLOADS = [
    {"batch": 1, "input_tokens": tokens, "output_tokens": 1} for tokens in (8192, 32768, 131072)
]


@dataclass(frozen=True)
class Segment:
    """A line of a step's time over the context, from one whole context to another, both in it."""

    start_tokens: int
    end_tokens: int
    start_ps: int
    end_ps: int

    def ps(self, context_tokens: int) -> int:
        """Return the line at a context of the segment, in picoseconds; exact at both ends."""
        tokens = self.end_tokens - self.start_tokens
        if not tokens:
            return self.start_ps
        rise = 2 * (self.end_ps - self.start_ps) * (context_tokens - self.start_tokens) + tokens
        return self.start_ps + rise // (2 * tokens)


class StepModel:
    """The time of one decode step of a model on a machine, with a selector and a routing.

    The list of ops, the prices and the engine are those of a run. A step is in steady state: it
    follows one that was like it. Calls of the CPU router take their mean each, where a run draws
    each of them; that prompts were evicted is not counted by layers with a sliding window; and
    whether caches fit into memory is not asked.

    Parameters
    ----------
    model
        A preset, the path of a ``config.json``, a mapping as in a scenario, or a `ModelShape`.
    hardware
        A profile's name or path, or a loaded profile.
    selector, routing
        As in a scenario, or the objects themselves. A selector whose settings follow from the
        workload is refused.
    strict
        Refuse prices that are neither measured nor interpolated.

    Raises
    ------
    InputError
        As for a scenario, whose file is ``<dict>``, and where such routing cannot run.
    """

    def __init__(
        self,
        model: str | Mapping[str, Any] | ModelShape,
        hardware: str | os.PathLike[str] | HardwareProfile,
        selector: Mapping[str, Any] | Selector,
        routing: str | Mapping[str, Any] | Routing,
        *,
        strict: bool = False,
    ) -> None:
        if isinstance(hardware, HardwareProfile):
            self.profile = hardware
        else:
            self.profile = Simulator().profile(os.fspath(hardware))
        parts = {"model": model, "selector": selector, "routing": routing}
        data = {key: dict(v) if isinstance(v, Mapping) else v for key, v in parts.items()}
        point = _of_any_workload(data | {"hardware": str(self.profile.file)})
        reason = cannot_route(point, self.profile)
        if reason:
            raise InputError(reason, key="routing")
        self.model, self.routing, self.strict = point.model, point.routing, strict
        self.selector = point.resolved_selector()
        self.ops = decode_step(self.model, self.selector, self.routing)

    @property
    def bound_ps(self) -> int:
        """How far `ps` may be from its `segments`: a picosecond an op, since each is rounded."""
        return len(self.ops)

    def ps(self, contexts: ArrayLike) -> np.int64:
        """Return a step's time in picoseconds.

        Parameters
        ----------
        contexts
            Tokens in the KV cache of each sequence, the one of this step included: whole numbers,
            shape [batch], all equal.

        Raises
        ------
        InputError
            If they are not that, or past the model's context.
        PricingError
            If `strict`, and an op is neither measured nor interpolated.
        """
        try:
            tokens = np.asarray(contexts)
        except ValueError:  # rows of several lengths
            tokens = np.empty(0)
        if tokens.ndim != 1 or not tokens.size or not np.issubdtype(tokens.dtype, np.integer):
            message = f"must be whole numbers of shape [batch] (got {contexts!r:.60})"
            raise InputError(message, "One for each sequence", key="contexts")
        low, high = int(tokens.min()), int(tokens.max())
        self._check_range(low, high, "contexts")
        if low != high:
            message = f"sequences of {low} to {high} tokens in one step cannot be priced yet"
            raise InputError(message, "Give equal ones; unequal come with traffic", key="contexts")
        return np.int64(self._steps_ps(len(tokens), np.array([low], dtype=np.int64))[0])

    def segments(
        self, batch: int, first_tokens: int = 1, last_tokens: int | None = None
    ) -> list[Segment]:
        """Return where the time is linear in the context of `batch` equal sequences.

        `ps` is computed at every context of the range. The segments follow one another, none
        overlaps, and each goes as far as its line is within `bound_ps` of `ps` everywhere.

        Parameters
        ----------
        first_tokens, last_tokens
            The range, both in it; by default all contexts of the model.
        """
        last_tokens = self.model.max_context_tokens if last_tokens is None else last_tokens
        if batch < 1:
            raise InputError(f"must be 1 or more (got {batch})", key="batch")
        self._check_range(first_tokens, last_tokens, "first_tokens, last_tokens")
        context = np.arange(first_tokens, last_tokens + 1, dtype=np.int64)
        times = self._steps_ps(batch, context)
        return [
            Segment(int(context[i]), int(context[j]), int(times[i]), int(times[j]))
            for i, j in _lines(times, self.bound_ps - 1)
        ]

    def _check_range(self, low: int, high: int, key: str) -> None:
        most = self.model.max_context_tokens
        if not 1 <= low <= high <= most:
            message = f"{low} to {high} tokens are not within 1 to {most}"
            raise InputError(message, f"The context of {self.model.name}", key=key)

    def _steps_ps(self, batch: int, context: NDArray[np.int64]) -> Picoseconds:
        """Return a steady step's time at each context.

        Each step runs twice, and the second time counts: what it finds still busy is its own.
        """
        costs = CostModel(
            self.profile, Case(self.model, self.selector, self.routing), strict=self.strict
        )
        at = Point(batch, batch, np.repeat(context, 2))
        prices = {kind: costs.price(kind, at) for kind in dict.fromkeys(o.kind for o in self.ops)}
        check_length(self.ops, prices, self.profile)
        rows = {kind: to_ps(price.mean_s) for kind, price in prices.items()}
        last = [Graph.of(self.ops).last_main]
        return finish_maxplus(self.ops, [rows[op.kind] for op in self.ops], last)[0, 1::2]


def _of_any_workload(data: Mapping[str, Any]) -> Scenario:
    """Return the scenario of `data` with some workload; all of them must mean the same selector."""
    points = [
        points_of(Document(Path("<dict>"), {"name": "step", "workload": load, **data}, {}))[0]
        for load in _WORKLOADS
    ]
    if any(point.resolved_selector() != points[0].resolved_selector() for point in points):
        message = f"the settings of {points[0].selector.kind} follow from the workload"
        raise InputError(message, "Give the pages themselves", key="selector")
    return points[0]


def _lines(times: Picoseconds, bound_ps: int) -> Iterator[tuple[int, int]]:
    """Yield first and last positions of lines that no time between is more than a bound off."""
    first = 0
    while first < len(times):
        last = _reach(times[first:], bound_ps)
        yield first, first + last
        first += last + 1


def _reach(times: Picoseconds, bound_ps: int) -> int:
    """Return the last position whose line from the first is within a bound of all between."""
    size = 64
    while True:
        rise = (times[1 : size + 1] - times[0]).astype(np.float64)
        run = np.arange(1, len(rise) + 1)
        # The slopes that are within the bound of all times so far.
        least = np.maximum.accumulate((rise - bound_ps) / run)
        most = np.minimum.accumulate((rise + bound_ps) / run)
        if size + 1 < len(times) and least[-1] <= most[-1]:
            size *= 4
            continue
        fits = np.flatnonzero((least <= rise / run) & (rise / run <= most))
        return int(fits[-1]) + 1 if fits.size else 0
