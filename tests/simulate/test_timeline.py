"""One step to look at: starts, the critical path, what is exposed, windows, the trace."""

from __future__ import annotations

import pytest

from essim.simulate.plan import load_scenario
from essim.simulate.sweep import Simulator
from essim.simulate.timeline import Timeline


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
    assert names == ["gpu", "flags", "cpu"]
    events = {e["name"]: e for e in trace["traceEvents"] if e["ph"] == "X"}
    assert len(events) == len(found.run.ops)
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
