"""Sums over contexts from few of them, against adding all up."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from essim.simulate.closed.lines import Lines, fitted


@st.composite
def times(draw: st.DrawFn):
    """Draw (period, first, last, function): lines with kinks, on a saw, and the larger of two."""
    period = draw(st.sampled_from([1, 1, 2, 4, 16]))
    first = draw(st.integers(1, 5000))
    last = first + draw(st.integers(0, 3000))
    kinks = draw(st.lists(st.integers(first, last), max_size=2))
    slopes = draw(st.lists(st.floats(0.1, 5.0), min_size=2, max_size=2))
    saw = draw(st.floats(0.0, 3.0)) if period > 1 else 0.0
    other = draw(st.floats(0.0, 8.0))

    def function(contexts) -> np.ndarray:
        at = np.asarray(contexts, dtype=np.float64)
        bent = sum(s * np.maximum(at - k, 0.0) for s, k in zip(slopes, kinks, strict=False))
        one = 10_000.0 + at + bent + saw * ((at - 1) % period)
        two = 9_000.0 + other * np.ceil(at / period) * period
        return np.stack([one, np.maximum(one, two)])

    return period, first, last, function


@settings(max_examples=150, deadline=None)
@given(times(), st.data())
def test_sums_from_few_contexts_are_the_sums_of_all(case, data) -> None:
    period, first, last, function = case
    _, lines, values, _ = fitted([(first, last)], [first + 3], period, function, 1e-6, 10**6)
    low = data.draw(st.integers(first, last))
    high = data.draw(st.integers(low, last))
    found = values @ lines.weights(np.array([low]), np.array([high])).T
    whole = function(np.arange(low, high + 1)).sum(axis=1)
    np.testing.assert_allclose(found[:, 0], whole, rtol=1e-6)


def test_a_line_needs_its_ends_and_a_few_contexts_to_look_at() -> None:
    asked: list[int] = []

    def function(contexts) -> np.ndarray:
        asked.extend(contexts.tolist())
        return 5.0 + 2.0 * contexts[None, :].astype(np.float64)

    pieces, lines, values, off = fitted([(1, 100_000)], [], 1, function, 1e-6, 1000)
    assert pieces == [(1, 100_000)]
    assert lines.contexts.tolist() == [1, 100_000]
    assert values.tolist() == [[7.0, 200_005.0]]
    assert (len(asked), off) == (6, 1e-6)


def test_weights_of_a_saw_by_hand() -> None:
    lines = Lines.over([(1, 7)], 3)  # lines 1, 4, 7 and 2, 5 and 3, 6
    assert lines.contexts.tolist() == [1, 2, 3, 5, 6, 7]
    # Contexts 1 to 4: 4 lies halfway between 1 and 7.
    weights = lines.weights(np.array([1]), np.array([4]))
    assert weights.tolist() == [[1.5, 1.0, 1.0, 0.0, 0.0, 0.5]]
    assert lines.touched(np.array([5]), np.array([5])).tolist() == [[False, True, False]]
