"""One step to look at: starts, the critical path, what is exposed, windows, the trace."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essim.hardware.profile import shipped
from essim.simulate.plan import load_scenario
from essim.simulate.sweep import Simulator
from essim.simulate.timeline import Timeline, chrome_trace


def timeline(scenario_file, *overrides: str, step: int = 0) -> Timeline:
    base, _ = load_scenario(scenario_file(), overrides)
    return Timeline.of(Simulator().decode(base), step)


def by_name(found: Timeline) -> dict[str, dict]:
    return {str(row["name"]): row for row in found.rows()}


def test_an_inline_step_is_one_gapless_critical_path(scenario_file) -> None:
    found = timeline(scenario_file, "routing=gpu-target")
    assert found.critical == tuple(range(len(found.run.ops)))
    assert found.start_ps[0] == 0
    assert list(found.start_ps[1:]) == list(found.end_ps[:-1])
    rows = by_name(found)
    assert rows["route.5"]["exposed_s"] == pytest.approx(19.5e-6 + 8.8e-6 / 8192)
    assert rows["attn.5"]["exposed_s"] == 0.0
    assert sum(row["exposed_s"] for row in rows.values()) == pytest.approx(
        found.step_s() - int(found.run.unrouted_ps[0]) / 1e12
    )


def test_a_hidden_router_is_off_the_critical_path(scenario_file) -> None:
    rows = by_name(timeline(scenario_file))
    assert not rows["route.10"]["critical"]
    assert rows["await.10"]["wait_s"] == 0.0
    # norm2, gate_up, SiLU*mul, down, norm1, QKV, RoPE
    window_s = (2.0 + 56.6 + 2.0 + 32.3 + 2.0 + 16.3 + 2.006) * 1e-6
    assert rows["route.10"]["window_s"] == pytest.approx(window_s, abs=1e-9)
    assert rows["route.10"]["window_start_s"] == rows["publish.10"]["end_s"]
    assert rows["norm2.10"]["window_s"] is None
    assert rows["anchor_d2h.10"]["stream"] == "flags"


def test_an_exposed_router_is_on_the_critical_path_and_its_wait_is_shown(scenario_file) -> None:
    found = timeline(scenario_file, "workload.batch=8")
    rows = by_name(found)
    assert rows["route.10"]["critical"]
    assert rows["await.10"]["wait_s"] > 50e-6
    assert rows["await.10"]["exposed_s"] > rows["await.10"]["wait_s"]
    names = [found.run.ops[i].name for i in found.critical]
    assert names[-3:] == ["head", "publish_key.31", "host"]
    for first, second in zip(found.critical, found.critical[1:], strict=False):
        assert found.end_ps[first] == found.start_ps[second]


def test_the_window_on_a_side_stream_starts_at_the_fork(scenario_file) -> None:
    rows = by_name(timeline(scenario_file, "routing=gpu_side-mid"))
    assert rows["route.10"]["window_start_s"] == rows["slowdown.10"]["end_s"]
    assert rows["slowdown.10"]["exposed_s"] == pytest.approx(3.4e-6, abs=1e-8)


def test_a_later_step_is_the_one_of_the_run(scenario_file) -> None:
    found = timeline(scenario_file, "routing=cpu-target", step=14)
    assert found.step_s() == int(found.run.step_ps[14]) / 1e12


def test_the_trace_has_a_row_a_stream_and_an_event_an_op(scenario_file) -> None:
    found = timeline(scenario_file)
    trace = found.trace()
    names = [e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"]
    # A key and an anchor are on their way at the same time.
    assert names == ["gpu", "flags", "cpu", "flags 2"]
    events = {e["name"]: e for e in trace["traceEvents"] if e["ph"] == "X"}
    # On a first day nothing was known of the host: it takes no time.
    assert {op.name for op in found.run.ops} - set(events) == {"host"}
    gate_up = events["gate_up.3"]
    assert (gate_up["dur"], gate_up["cat"], gate_up["tid"]) == (56.6, "gemm_gate_up", 0)
    assert gate_up["args"] == {
        "price_us": 56.6,
        "source": "measured",
        "critical": True,
        "exposed_us": 0.0,
    }
    route = events["route.3"]
    assert route["tid"] == names.index("cpu")
    assert route["ts"] >= events["publish.3"]["ts"]


def spans_ns(trace: dict) -> dict[str, list[tuple[int, int]]]:
    """Return (start, end) of a trace's events by thread, as Perfetto reads them.

    Its importer of JSON makes whole nanoseconds of `ts` and of `dur`, each cut, not rounded.
    """
    threads = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M"}
    spans: dict[str, list[tuple[int, int]]] = {name: [] for name in threads.values()}
    assert len(spans) == len(threads)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            start = int(event["ts"] * 1000)
            spans[threads[event["tid"]]].append((start, start + int(event["dur"] * 1000)))
    return spans


def assert_viewable(trace: dict) -> None:
    """Assert that on each thread events are in order, none is empty, none overlap."""
    assert {e["ph"] for e in trace["traceEvents"]} <= {"M", "X"}
    for spans in spans_ns(trace).values():
        assert spans
        assert all(start < end for start, end in spans)
        assert all(mine[1] <= after[0] for mine, after in itertools.pairwise(spans))


@pytest.mark.parametrize("routing", ["cpu-mid", "cpu-in", "cpu-target", "gpu_side-mid"])
@pytest.mark.parametrize("batch", [1, 8])
def test_viewers_take_the_trace_of_every_routing(scenario_file, routing: str, batch: int) -> None:
    found = timeline(scenario_file, f"routing={routing}", f"workload.batch={batch}")
    trace = found.trace()
    assert_viewable(trace)
    takes_time = [row["name"] for row in found.rows() if row["start_s"] != row["end_s"]]
    named = [e["name"] for e in trace["traceEvents"] if e["ph"] == "X"]
    assert sorted(named) == sorted(takes_time)


def test_flags_that_a_table_counts_with_their_kernels_are_no_events() -> None:
    """On the measured H200 publish and await hold them: they take no time of their own."""
    file = shipped("scenarios") / "earlyselect-40k.yaml"
    base, _ = load_scenario(file, ["workload.batch=2", "workload.output_tokens=17"])
    trace = Timeline.of(Simulator().decode(base), 7).trace()
    assert_viewable(trace)
    assert set(spans_ns(trace)) == {"gpu", "cpu"}


MOMENTS = st.floats(0, 1e-2, allow_nan=False)


@given(st.lists(st.tuples(st.sampled_from("ab"), MOMENTS, MOMENTS), max_size=30))
def test_viewers_take_any_ops(ops: list[tuple[str, float, float]]) -> None:
    rows = [
        {"name": str(i), "kind": "k", "stream": stream, "start_s": min(x, y), "end_s": max(x, y)}
        for i, (stream, x, y) in enumerate(ops)
    ]
    trace = chrome_trace(rows, [{}] * len(rows))
    assert_viewable(trace)
    found = sorted(span for spans in spans_ns(trace).values() for span in spans)
    whole = [(round(row["start_s"] * 1e9), round(row["end_s"] * 1e9)) for row in rows]
    assert found == sorted(span for span in whole if span[0] < span[1])
