"""The two engines against each other, against networkx, and against what must always hold."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import layered_steps, steps

from essim.engines import finish_alike, finish_des, finish_maxplus
from essim.engines.chains import plan_of
from essim.step.ops import MAIN_STREAM, Op

ENGINES = [finish_des, finish_maxplus]


def longest_path(ops, durations_ps) -> np.ndarray:
    """Ends of every op by networkx: the heaviest path through the unrolled steps."""
    graph = nx.DiGraph()
    lanes = durations_ps.shape[1]
    last_main = max(i for i, op in enumerate(ops) if op.stream == MAIN_STREAM)
    position = {op.name: i for i, op in enumerate(ops)}

    def arrow(source, target) -> None:
        # An arrow weighs what its source takes, so a node's distance is its start.
        lane, i = source
        graph.add_edge(source, target, weight=int(durations_ps[i, lane]))

    for lane in range(lanes):
        last_on_stream: dict[str, int] = {}
        for i, op in enumerate(ops):
            node = (lane, i)
            graph.add_edge("start", node, weight=0)
            if op.stream in last_on_stream:
                arrow((lane, last_on_stream[op.stream]), node)
            elif lane and op.stream:
                last = max(j for j, other in enumerate(ops) if other.stream == op.stream)
                arrow((lane - 1, last), node)
            if op.stream:
                last_on_stream[op.stream] = i
            for name in op.waits:
                arrow((lane, position[name]), node)
            if lane:
                arrow((lane - 1, last_main), node)
                for name in op.waits_previous:
                    arrow((lane - 1, position[name]), node)
    start: dict[object, int] = {}
    for node in nx.topological_sort(graph):
        start[node] = max(
            (start[p] + graph.edges[p, node]["weight"] for p in graph.predecessors(node)), default=0
        )
    ends = np.array(
        [[start[lane, i] + durations_ps[i, lane] for lane in range(lanes)] for i in range(len(ops))]
    )
    origins = np.concatenate([[0], ends[last_main][:-1]])
    return ends - origins


@settings(max_examples=400, deadline=None)
@given(steps())
def test_both_engines_equal_the_longest_path(step) -> None:
    ops, durations_ps = step
    oracle = longest_path(ops, durations_ps)
    np.testing.assert_array_equal(finish_maxplus(ops, durations_ps), oracle)
    np.testing.assert_array_equal(finish_des(ops, durations_ps), oracle)


@settings(max_examples=200, deadline=None)
@given(layered_steps(), st.data())
def test_layers_that_are_alike_are_computed_once_and_equal_the_longest_path(step, data) -> None:
    ops, rows = step
    oracle = longest_path(ops, np.array(rows))
    keep = data.draw(st.lists(st.integers(0, len(ops) - 1), min_size=1, max_size=3))
    np.testing.assert_array_equal(finish_maxplus(ops, rows, keep), oracle[keep])


@settings(max_examples=100, deadline=None)
@given(layered_steps(most_lanes=1))
def test_a_step_that_follows_its_like_is_a_late_step_of_a_run_of_them(step) -> None:
    ops, rows = step
    many = [np.repeat(row, 9) for row in rows]
    last = max(i for i, op in enumerate(ops) if op.stream == MAIN_STREAM)
    run = finish_des(ops, many, [last])[0]
    assert finish_alike(ops, rows, "nothing")[0] == run[0]
    # A side stream that gets further and further behind has no late step.
    if run[-1] == run[-2] == run[-3]:
        assert finish_alike(ops, rows)[0] == run[-1]


def test_chains_that_nobody_waits_for_are_one_op() -> None:
    ops = (
        *(Op("main", "x", "gpu", i) for i in range(5)),
        Op("side", "y", "cpu", waits=("main.2",)),
    )
    plan = plan_of(ops, (0, 0, 1, 0, 0, 2), frozenset())
    # Ops 0 to 2, ops 3 and 4, the one beside; what is left of each is its sum.
    assert [chain.sources for chain in plan.chains] == [(), (0,), (0,)]
    assert plan.sums == (((0, 2), (1, 1)), ((0, 2),), ((2, 1),))


@settings(max_examples=150, deadline=None)
@given(steps(), st.data())
def test_longer_durations_never_finish_earlier(step, data) -> None:
    ops, durations_ps = step
    longer = durations_ps.copy()
    i = data.draw(st.integers(0, len(ops) - 1))
    longer[i] += data.draw(st.integers(0, 10**6))
    before, after = absolute(ops, durations_ps), absolute(ops, longer)
    assert (after >= before).all()


@settings(max_examples=150, deadline=None)
@given(steps(), st.integers(2, 1000))
def test_scaling_durations_scales_every_end(step, factor: int) -> None:
    ops, durations_ps = step
    scaled = finish_maxplus(ops, durations_ps * factor)
    np.testing.assert_array_equal(scaled, finish_maxplus(ops, durations_ps) * factor)


@settings(max_examples=150, deadline=None)
@given(steps())
def test_the_makespan_is_at_least_each_streams_busy_time(step) -> None:
    ops, durations_ps = step
    makespan = absolute(ops, durations_ps).max()
    for stream in {op.stream for op in ops} - {None}:
        rows = [row for op, row in zip(ops, durations_ps, strict=True) if op.stream == stream]
        assert makespan >= np.sum(rows)


def absolute(ops, durations_ps) -> np.ndarray:
    """Ends counted from the start of the run instead of each lane's origin."""
    ends = finish_maxplus(ops, durations_ps)
    last_main = max(i for i, op in enumerate(ops) if op.stream == MAIN_STREAM)
    return ends + np.concatenate([[0], np.cumsum(ends[last_main])[:-1]])


@pytest.mark.parametrize("finish", ENGINES)
def test_a_step_by_hand(finish) -> None:
    ops = (
        Op("a", "x", "gpu"),
        Op("copy", "x", None, waits=("a",)),
        Op("b", "x", "gpu"),
        Op("route", "x", "cpu", waits=("copy",)),
        Op("c", "x", "gpu", waits=("route",)),
    )
    durations = [np.array([d]) for d in (10, 2, 5, 20, 1)]
    assert finish(ops, durations)[:, 0].tolist() == [10, 12, 15, 32, 33]


@pytest.mark.parametrize("finish", ENGINES)
def test_a_side_stream_that_is_still_busy_delays_the_next_step(finish) -> None:
    ops = (Op("main", "x", "gpu"), Op("update", "x", "cpu", waits=("main",)))
    durations = [np.array([10, 10, 10]), np.array([25, 5, 5])]
    # Step 2 may start its update at 10 of its own time, but the first one runs until 25.
    assert finish(ops, durations)[1].tolist() == [35, 30, 25]


@pytest.mark.parametrize("finish", ENGINES)
def test_an_op_may_wait_for_one_of_the_step_before(finish) -> None:
    ops = (
        Op("scan", "x", "gpu", waits_previous=("update",)),
        Op("end", "x", "gpu"),
        Op("update", "x", "cpu", waits=("scan",)),
    )
    durations = [np.array([1, 1]), np.array([1, 1]), np.array([50, 0])]
    # The update ends at 51, which is 49 after the first step's end at 2.
    assert finish(ops, durations).tolist() == [[1, 50], [2, 51], [51, 50]]


@pytest.mark.parametrize("finish", ENGINES)
def test_kept_rows_are_the_rows_asked_for(finish) -> None:
    ops = (Op("a", "x", "gpu"), Op("b", "x", "cpu"), Op("c", "x", "gpu", waits=("b",)))
    durations = [np.array([1]), np.array([7]), np.array([2])]
    assert finish(ops, durations, [2, 0]).tolist() == [[9], [1]]


@pytest.mark.parametrize("finish", ENGINES)
@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ((Op("a", "x", "gpu"), Op("a", "x", "gpu")), "two ops are named 'a'"),
        ((Op("a", "x", "gpu", waits=("b",)), Op("b", "x", "gpu")), "is not an earlier op"),
        ((Op("a", "x", "gpu", waits=("a",)),), "is not an earlier op"),
        ((Op("a", "x", "gpu", waits_previous=("z",)),), "which does not exist"),
        ((Op("a", "x", "cpu"),), "no op runs on the main stream 'gpu'"),
    ],
)
def test_impossible_op_lists_are_refused(finish, ops, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        finish(ops, [np.array([1]) for _ in ops])


def layered(compute_us: float, copy_us: float, layers: int, ahead: int):
    """Layers whose attention needs a copy, started `ahead` layers before: 0 is on demand."""
    ops = []
    for i in range(layers):
        waits = (f"compute.{i - ahead - 1}",) if i > ahead else ()
        ops.append(Op(f"copy.{i}", "copy", "h2d", waits=waits))
        ops.append(Op(f"compute.{i}", "compute", "gpu", waits=(f"copy.{i}",)))
    each = {"copy": round(copy_us * 1e6 / layers), "compute": round(compute_us * 1e6 / layers)}
    return tuple(ops), [np.array([each[op.kind]]) for op in ops]


@pytest.mark.parametrize("finish", ENGINES)
def test_copies_on_demand_add_up_and_copies_ahead_overlap(finish) -> None:
    """27.59 ms of compute and 23.20 ms of copies: 19.69 steps a second, or 36.2 overlapped."""
    compute, copy, layers = 27_590.0, 23_200.0, 1000
    rates = {}
    for ahead in (0, layers):
        ops, durations = layered(compute, copy, layers, ahead)
        rates[ahead] = 1e12 / finish(ops, durations, [len(ops) - 1])[0, 0]
    assert rates[0] == pytest.approx(19.69, abs=0.005)
    assert rates[layers] == pytest.approx(36.2, abs=0.05)


@pytest.mark.parametrize("finish", ENGINES)
def test_a_round_trip_in_every_layer_is_paid_in_every_layer(finish) -> None:
    """86.2 us in each of 48 layers are 4.14 ms a token."""
    ops: list[Op] = []
    for i in range(48):
        ops.append(Op(f"compute.{i}", "compute", "gpu", waits=(f"trip.{i - 1}",) if i else ()))
        ops.append(Op(f"trip.{i}", "trip", None, waits=(f"compute.{i}",)))
    ops.append(Op("end", "end", "gpu", waits=("trip.47",)))
    each = {"compute": 0, "trip": 86_200_000, "end": 0}
    end = finish(ops, [np.array([each[op.kind]]) for op in ops], [len(ops) - 1])
    assert end[0, 0] / 1e9 == pytest.approx(4.14, abs=0.005)
