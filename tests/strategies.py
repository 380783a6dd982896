"""Random op lists for property tests."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from essim.step.ops import STREAMS, Op


@st.composite
def steps(draw: st.DrawFn, most_ops: int = 25, most_lanes: int = 5):
    """Draw (ops, durations_ps[op, lane]): any streams, any earlier waits, any previous waits."""
    count = draw(st.integers(1, most_ops))
    streams = draw(st.lists(st.sampled_from([*STREAMS, None]), min_size=count, max_size=count))
    streams[draw(st.integers(0, count - 1))] = "gpu"
    ops = []
    for i, stream in enumerate(streams):
        earlier = st.sets(st.integers(0, i - 1), max_size=3) if i else st.just(set())
        waits = sorted(draw(earlier))
        previous = sorted(draw(st.sets(st.integers(0, count - 1), max_size=2)))
        ops.append(
            Op(
                stage=f"op{i}",
                kind="any",
                stream=stream,
                waits=tuple(f"op{j}" for j in waits),
                waits_previous=tuple(f"op{j}" for j in previous),
            )
        )
    lanes = draw(st.integers(1, most_lanes))
    # Small numbers make ties, zeros and long carries common.
    duration = st.one_of(st.integers(0, 5), st.integers(0, 10**9))
    rows = draw(
        st.lists(st.lists(duration, min_size=lanes, max_size=lanes), min_size=count, max_size=count)
    )
    return tuple(ops), np.array(rows, dtype=np.int64)


@st.composite
def layered_steps(draw: st.DrawFn, most_lanes: int = 4):
    """Draw (ops, rows): layers that are alike and share rows of durations, as a model's do."""
    count, layers = draw(st.integers(1, 5)), draw(st.integers(2, 9))
    streams = draw(st.lists(st.sampled_from([*STREAMS, None]), min_size=count, max_size=count))
    streams[draw(st.integers(0, count - 1))] = "gpu"
    back = [
        draw(st.sets(st.integers(1, 2 * count), max_size=2)) for _ in range(count)
    ]  # how many ops before it lies what an op waits for
    awaits_previous = draw(st.sets(st.integers(0, count - 1), max_size=1))
    ops = []
    for i in range(count * layers):
        kind = i % count
        previous = (f"op.{i}",) if kind in awaits_previous else ()
        waits = tuple(f"op.{i - step}" for step in sorted(back[kind]) if step <= i)
        ops.append(Op("op", str(kind), streams[kind], i, waits, previous))
    lanes = draw(st.integers(1, most_lanes))
    duration = st.one_of(st.integers(0, 5), st.integers(0, 10**9))
    row = st.lists(duration, min_size=lanes, max_size=lanes)
    rows = [np.array(draw(row), dtype=np.int64) for _ in range(count)]
    return tuple(ops), [rows[i % count] for i in range(count * layers)]
