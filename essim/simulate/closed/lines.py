"""Sums over many contexts from values at few: a step's time is a line between its kinks.

Methods that work in pages make the time a saw: it is a line for each place in a page. So a piece,
between two kinks, has a line for every remainder of the context by a period.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]
Values = NDArray[np.float64]

# Where in a piece a line is looked at, in parts of its length.
_LOOKED_AT = (0.31, 0.64)
# Pieces are cut no more often than this.
_ROUNDS = 40
# Kinks that are looked for at once in a piece.
_CUTS = 6


@dataclass(frozen=True)
class Lines:
    """Lines through values at contexts.

    Attributes
    ----------
    contexts
        Where values are wanted, ascending.
    first, count, period
        A line goes over so many contexts, the first and every `period`-th after it.
    low, high
        Positions in `contexts` of each line's first and last one.
    """

    contexts: Tokens
    first: Tokens
    count: Tokens
    period: int
    low: NDArray[np.intp]
    high: NDArray[np.intp]

    @staticmethod
    def over(pieces: Iterable[tuple[int, int]], period: int) -> Lines:
        """Return the lines of pieces, each from its first to its last context."""
        firsts = [range(a, min(a + period, b + 1)) for a, b in pieces]
        first = np.array([c for one in firsts for c in one], dtype=np.int64)
        last = [b for one, (_, b) in zip(firsts, pieces, strict=True) for _ in one]
        count = (np.array(last, dtype=np.int64) - first) // period + 1
        ends = first + (count - 1) * period
        contexts = np.unique(np.concatenate((first, ends)))
        low, high = (np.searchsorted(contexts, c) for c in (first, ends))
        return Lines(contexts, first, count, period, low, high)

    def touched(self, first: Tokens, last: Tokens) -> NDArray[np.bool_]:
        """Return which lines have a context in each span, shape (spans, lines)."""
        low, high = self._within(first, last)
        return high > low

    def weights(self, first: Tokens, last: Tokens) -> Values:
        """Return what sums over spans of contexts are made of.

        Returns
        -------
        array
            Shape (spans, contexts): its product with the values is the sum of each span.
        """
        low, high = self._within(first, last)
        number = np.maximum(high - low, 0)
        rise = np.where(number > 0, (high * (high - 1) - low * (low - 1)) / 2.0, 0.0)
        share = rise / np.maximum(self.count - 1, 1)
        found = np.zeros((len(first), len(self.contexts)))
        found[:, self.low] = number - share
        # Of a line of one context both ends are the same, and it rises nowhere.
        found[:, self.high] += share
        return found

    def _within(self, first: Tokens, last: Tokens) -> tuple[Tokens, Tokens]:
        """Return from and up to which of its contexts each line lies in each span."""
        low = -((self.first - first[:, None]) // self.period)
        high = (last[:, None] - self.first) // self.period + 1
        return np.clip(low, 0, self.count), np.clip(high, 0, self.count)


Evaluate = Callable[[Tokens], Values]


def fitted(
    spans: Iterable[tuple[int, int]],
    ticks: Iterable[int],
    period: int,
    evaluate: Evaluate,
    tolerance: float,
    most: int,
) -> tuple[list[tuple[int, int]], Lines, Values, float]:
    """Return pieces of spans over which values are lines, and the values.

    Parameters
    ----------
    spans
        First and last contexts, apart from each other.
    ticks
        Contexts that are pieces of their own.
    evaluate
        Values at contexts, shape (values, contexts): each is asked for once.
    tolerance
        How far values may be from their line, where it is looked at.
    most
        Once so many contexts are known, no more are looked at.

    Returns
    -------
    pieces, lines, values, off
        `values` are those at ``lines.contexts``; `off` is how far any was seen from its line.
    """
    known = _Known(evaluate)
    open_, done, off = _cut(spans, ticks), [], 0.0
    for _ in range(_ROUNDS):
        short = [piece for piece in open_ if piece[1] - piece[0] < 4 * period]
        done += [part for piece in short for part in _whole(piece, period)]
        open_ = [piece for piece in open_ if piece[1] - piece[0] >= 4 * period]
        if not open_ or len(known.contexts) > most:
            break
        off = 0.0
        known.ask(
            np.concatenate([_looked_at(p, period, i) for p in open_ for i in _places(p, period)])
        )
        found = [_kinks(piece, period, known, tolerance) for piece in open_]
        cuts, off = [at for at, _ in found], max(own for _, own in found)
        done += [piece for piece, at in zip(open_, cuts, strict=True) if not at]
        open_ = [p for piece, at in zip(open_, cuts, strict=True) for p in _parts(piece, at)]
    pieces = sorted(done + open_)
    lines = Lines.over(pieces, period)
    known.ask(lines.contexts)
    return pieces, lines, known.at(lines.contexts), max(off, tolerance) if open_ else tolerance


class _Known:
    """Values at contexts that were asked for so far."""

    def __init__(self, evaluate: Evaluate) -> None:
        self.evaluate = evaluate
        self.contexts: Tokens = np.empty(0, dtype=np.int64)
        self.values: Values = np.empty((0, 0))

    def ask(self, contexts: Tokens) -> None:
        new = np.setdiff1d(contexts, self.contexts)
        if not new.size:
            return
        found = self.evaluate(new)
        both = np.concatenate((self.contexts, new))
        order = np.argsort(both)
        values = found if not self.contexts.size else np.concatenate((self.values, found), axis=1)
        self.contexts, self.values = both[order], values[:, order]

    def at(self, contexts: Tokens) -> Values:
        return self.values[:, np.searchsorted(self.contexts, contexts)]


def _cut(spans: Iterable[tuple[int, int]], ticks: Iterable[int]) -> list[tuple[int, int]]:
    """Return spans cut at ticks, each of which is a piece of its own."""
    found = []
    for first, last in spans:
        inside = sorted({tick for tick in ticks if first <= tick <= last})
        at = first
        for tick in inside:
            found += [(at, tick - 1), (tick, tick)]
            at = tick + 1
        found.append((at, last))
    return [(a, b) for a, b in found if a <= b]


def _whole(piece: tuple[int, int], period: int) -> list[tuple[int, int]]:
    """Return a piece of less than four periods as pieces whose every context is an end."""
    a, b = piece
    middle = a + 2 * period
    return [(a, b)] if b < middle else [(a, middle - 1), (middle, b)]


def _places(piece: tuple[int, int], period: int) -> set[int]:
    """Return which lines of a piece are looked at: those of a page's first and last token."""
    return {(1 - piece[0]) % period, -piece[0] % period}


def _looked_at(piece: tuple[int, int], period: int, place: int) -> Tokens:
    """Return ends of a piece's line at a place in the period, what is beside, and two between."""
    first = piece[0] + place
    count = (piece[1] - first) // period + 1
    inside = (round(share * (count - 1)) for share in _LOOKED_AT)
    return first + period * np.array([0, 1, *inside, count - 2, count - 1], dtype=np.int64)


def _kinks(
    piece: tuple[int, int], period: int, known: _Known, tolerance: float
) -> tuple[list[int], float]:
    """Return after which contexts to cut a piece, after none if its lines are such; how far off."""
    kinks: set[int] = set()
    most = 0.0
    for place in _places(piece, period):
        at = _looked_at(piece, period, place)
        bends, off = _bends(at, known, tolerance)
        kinks |= {int(at[0]) + round(bend / period) * period for bend in bends}
        most = max(most, off)
    # Lines of one piece bend within about a period of each other: between are but few contexts.
    around = 2 * period if period > 1 else 0
    cuts = {kink + side for kink in kinks for side in (-around, around)}
    return sorted({min(max(cut, piece[0]), piece[1] - 1) for cut in cuts}), most


def _bends(at: Tokens, known: _Known, tolerance: float) -> tuple[list[float], float]:
    """Return how far behind the first context values bend, if at all, and how far off they are."""
    values, length, step = known.at(at), at[-1] - at[0], at[1] - at[0]
    line = values[:, :1] + (values[:, -1:] - values[:, :1]) * (at - at[0]) / length
    off = np.abs(values - line).max(axis=1)
    bent = np.flatnonzero(off > tolerance)
    worst = bent[np.argsort(off[bent])[::-1][:_CUTS]]
    left = (values[worst, 1] - values[worst, 0]) / step
    right = (values[worst, -1] - values[worst, -2]) / step
    with np.errstate(divide="ignore", invalid="ignore"):
        cross = (values[worst, -1] - values[worst, 0] - right * length) / (left - right)
    # Where the lines of both ends do not meet inside, it is no single kink.
    inside = (cross > step) & (cross < length - step)
    return [float(c) for c in np.where(inside, cross, length / 2)], float(off.max())


def _parts(piece: tuple[int, int], cuts: list[int]) -> list[tuple[int, int]]:
    """Return a piece cut after contexts."""
    firsts = [piece[0], *(cut + 1 for cut in cuts)]
    return list(zip(firsts, [*cuts, piece[1]], strict=True)) if cuts else []
