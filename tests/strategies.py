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
