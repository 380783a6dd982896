"""Decode runs in closed form: their sums, how sure these are, and where prices come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from essim.results.prices import PriceSources
from essim.simulate.closed.drawn import drawn
from essim.simulate.closed.lines import Lines, Tokens, Values, fitted
from essim.simulate.closed.steps import Steps
from essim.simulate.replay import WAITING
from essim.step.kinds import KINDS
from essim.step.price import SOURCES, STRICT_SOURCES

# How far a step may be from its line, as a share of it; drawn calls are less sure anyway.
_TOLERANCE, _DRAWN_TOLERANCE = 2e-7, 1e-5
# The full-lane engine counts each op in whole picoseconds.
_ROUNDED_S = 0.5e-12


@dataclass(frozen=True)
class Spans:
    """Runs by the contexts of their first and last steps, shape [runs]."""

    first: Tokens
    last: Tokens

    @property
    def steps(self) -> Tokens:
        """Steps of each run."""
        return self.last - self.first + 1

    def merged(self) -> list[tuple[int, int]]:
        """Return spans of contexts that are apart from each other."""
        found: list[tuple[int, int]] = []
        for a, b in sorted(zip(self.first.tolist(), self.last.tolist(), strict=True)):
            if found and a <= found[-1][1] + 1:
                found[-1] = (found[-1][0], max(found[-1][1], b))
            else:
                found.append((a, b))
        return found


@dataclass(frozen=True)
class Decode:
    """Sums over decode runs, each of shape [batches, runs].

    Attributes
    ----------
    total_s, unrouted_s
        Time of all steps, and what it would be if routing and hand-over took none.
    off_s
        How far the mean step may be from that of a run whose steps are all simulated.
    call_s
        Standard deviation of a step by its drawn calls.
    busy_s
        How long the main stream (``gpu``) and the CPU router (``cpu``) work.
    measured_frac
        Share of the main stream's time whose price is measured or interpolated.
    sources
        Position of each run's text in `texts`.
    attention_s
        How much of the time on the main stream is attention.
    pieces
        Spans of contexts over which steps are lines.
    """

    steps: Steps
    runs: Spans
    total_s: Values
    unrouted_s: Values
    off_s: Values
    call_s: Values
    busy_s: Mapping[str, Values]
    measured_frac: Values
    sources: NDArray[np.intp]
    texts: Sequence[PriceSources]
    attention_s: Values
    pieces: list[tuple[int, int]]

    @staticmethod
    def of(steps: Steps, runs: Spans, ticks: Sequence[int], seed: int) -> Decode:
        """Sum steps over runs; `ticks` are contexts at which prices have another source."""
        nodes = _Nodes.of(steps, runs, ticks)
        total_s, unrouted_s = (nodes.sums(name) for name in ("step", "unrouted"))
        # Between the contexts that are looked at, lines may be off by more.
        share = (4 if steps.drawn else 2) * nodes.off
        off_s = _ROUNDED_S * len(steps.ops) + share * total_s / runs.steps
        call_s = np.zeros((len(total_s), 1))
        if steps.drawn:
            calls = drawn(steps, runs.merged(), runs.first, runs.last, seed)
            total_s, off_s, call_s = total_s + calls.more_s, off_s + calls.off_s, calls.call_s
        elif steps.router:
            total_s = total_s + _first_s(steps, runs)
        means = {kind: nodes.sums(kind) for kind in steps.moving}
        means |= {kind: steps.fixed_s(kind) * runs.steps for kind in steps.fixed}
        busy = {
            place: sum((means[k] * n for k, n in counts.items()), np.zeros(total_s.shape))
            for place, counts in (("gpu", steps.main), ("cpu", steps.router))
        }
        spent_s = {kind: means[kind] * n for kind, n in steps.main.items()}
        spent_s[WAITING] = total_s - busy["gpu"]
        known = {kind: nodes.known(kind) for kind in steps.kinds}
        router = next((op.kind for op in steps.ops if op.stage == "route"), WAITING)
        measured_s = sum(
            seconds * known[router if kind == WAITING else kind]
            for kind, seconds in spent_s.items()
            if kind != WAITING or router in known
        )
        attention = [k for k in steps.main if KINDS[k].part == "attention"]
        codes, texts = nodes.sources()
        return Decode(
            *(steps, runs, total_s, unrouted_s),
            off_s=off_s,
            call_s=call_s,
            busy_s=busy,
            measured_frac=np.asarray(measured_s / sum(spent_s.values())),
            sources=codes,
            texts=texts,
            attention_s=np.asarray(sum((spent_s[k] for k in attention), np.zeros(total_s.shape))),
            pieces=nodes.pieces,
        )


@dataclass(frozen=True)
class _Nodes:
    """Steps at the contexts that sums are made of."""

    steps: Steps
    runs: Spans
    pieces: list[tuple[int, int]]
    lines: Lines
    values: dict[str, Values]
    weights: Values
    off: float

    @staticmethod
    def of(steps: Steps, runs: Spans, ticks: Sequence[int]) -> _Nodes:
        names = ["step", "unrouted", *steps.moving, *(f"rank {kind}" for kind in steps.moving)]
        count = len(steps.batches)
        scale = steps.typical_s(runs.merged())

        def evaluate(contexts: Tokens) -> Values:
            found = _values(steps, contexts)
            shape = (count, len(contexts))
            scaled = [np.broadcast_to(found[name], shape) / scale[:, None] for name in names[:2]]
            for kind in steps.moving:
                calls = steps.calls[kind]
                scaled.append(np.broadcast_to(found[kind], shape) * calls / scale[:, None])
            # Where a source changes is a kink, too.
            scaled += [
                np.broadcast_to(found[name], shape) * 1.0 for name in names[2 + len(steps.moving) :]
            ]
            return np.concatenate(scaled)

        tolerance, most = (_DRAWN_TOLERANCE, 300) if steps.drawn else (_TOLERANCE, 5000)
        pieces, lines, flat, off = fitted(
            runs.merged(), ticks, steps.period, evaluate, tolerance, most
        )
        values = dict(zip(names, flat.reshape(len(names), count, -1), strict=True))
        for name in names[:2]:
            values[name] = values[name] * scale[:, None]
        for kind in steps.moving:
            values[kind] = values[kind] * scale[:, None] / steps.calls[kind]
        weights = lines.weights(runs.first, runs.last)
        return _Nodes(steps, runs, pieces, lines, values, weights, off)

    def sums(self, name: str) -> Values:
        """Return sums over runs, shape [batches, runs]."""
        return np.asarray(self.values[name] @ self.weights.T)

    def known(self, kind: str) -> Values:
        """Return the share of steps in which a kind's price is measured or interpolated."""
        if kind in self.steps.fixed:
            return np.asarray(self.steps.fixed[kind].rank < len(STRICT_SOURCES), dtype=np.float64)
        known = self.values[f"rank {kind}"] < len(STRICT_SOURCES) - 0.5
        return np.asarray(known @ self.weights.T / self.runs.steps)

    def worst(self, kind: str) -> NDArray[np.int8]:
        """Return the worst source of a kind in each run, shape [batches, runs]."""
        shape = (len(self.steps.batches), len(self.runs.first))
        if kind in self.steps.fixed:
            return np.broadcast_to(self.steps.fixed[kind].rank, shape)
        rank = np.rint(self.values[f"rank {kind}"]).astype(np.int8)
        firsts = np.searchsorted(self.lines.contexts, [first for first, _ in self.pieces])
        of_piece = np.maximum.reduceat(rank, firsts, axis=1)
        low, high = (np.array(ends) for ends in zip(*self.pieces, strict=True))
        touched = (low <= self.runs.last[:, None]) & (high >= self.runs.first[:, None])
        return np.asarray(np.where(touched, of_piece[:, None, :], np.int8(-1)).max(axis=-1))

    def sources(self) -> tuple[NDArray[np.intp], list[PriceSources]]:
        """Return which of the texts each run has, and the texts."""
        worst = np.stack([self.worst(kind) for kind in self.steps.kinds], axis=-1)
        found, codes = np.unique(worst.reshape(-1, worst.shape[-1]), axis=0, return_inverse=True)
        texts = [
            PriceSources.of(
                {k: SOURCES[r] for k, r in zip(self.steps.kinds, row, strict=True)}, SOURCES
            )
            for row in found.tolist()
        ]
        return codes.reshape(worst.shape[:-1]), texts


def _first_s(steps: Steps, runs: Spans) -> Values:
    """Return how much longer first steps take than those that follow one like them."""
    contexts, run = np.unique(runs.first, return_inverse=True)
    prices = steps.prices(contexts)
    after, alone = (steps.step_s(prices, first=none)[:, :, 0] for none in (False, True))
    return np.asarray(alone - after)[:, run]


def _values(steps: Steps, contexts: Tokens) -> dict[str, Values]:
    """Return steps and prices at contexts."""
    prices = steps.prices(contexts)
    found: dict[str, Values] = {}
    for name, routed in (("step", True), ("unrouted", False)):
        found[name] = steps.step_s(prices, routed=routed)[:, :, 0]
    for kind in steps.moving:
        found[kind] = prices[kind].mean_s
        found[f"rank {kind}"] = prices[kind].rank.astype(np.float64)
    return found
