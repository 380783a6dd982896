"""StepModel: a step's time is the simulator's, its segments are its time, and what it refuses."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from firstday import FIRST_DAY
from hypothesis import given, settings
from hypothesis import strategies as st

import essim
from essim.engines import finish_des
from essim.engines.graph import Graph
from essim.simulate.plan import points_of
from essim.simulate.sweep import Simulator
from essim.step.kinds import Case, Point
from essim.step.price import CostModel
from essim.text.yaml import Document

ROCKET = {"kind": "rocketkv", "prompt_budget": 4096, "page_tokens": 4, "top_pages": 32}
QUEST = {"kind": "quest", "top_pages": 64, "per": "kv_head"}
SELECTORS = {"rocketkv": ROCKET, "quest": QUEST, "dense": {"kind": "dense"}}
GPU = ("gpu-target", "gpu-target-fused", "gpu_side-mid", "gpu_side-in-fused")
CPU = ("cpu-target", "cpu-in", "cpu-mid", "cpu-mix")
# Its router's calls have no distribution: rooflines alone.
# By specification alone: no price is a distribution.
STEADY = str(Path(__file__).parents[1] / "data" / "no-reference.yaml")
SEEN = settings(deadline=None, max_examples=12)


@cache
def model(hardware: str, selector: str, routing: str) -> essim.StepModel:
    return essim.StepModel("llama-3.1-8b", hardware, SELECTORS[selector], routing)


def run_ps(hardware: str, selector: str, routing: str, batch: int, prompt: int) -> tuple:
    """Contexts and picoseconds of the steps of a simulated run."""
    load = {"batch": batch, "input_tokens": prompt, "output_tokens": 6}
    data = {"name": "run", "model": "llama-3.1-8b", "hardware": hardware, "routing": routing}
    data |= {"selector": SELECTORS[selector], "workload": load}
    (point, _) = points_of(Document(FIRST_DAY.parent / "d.yaml", data, {}))
    kept = point.resolved_selector().kept_prompt_tokens(prompt)
    return range(kept + 1, kept + 6), simulator().decode(point).step_ps.tolist()


@cache
def simulator() -> Simulator:
    return Simulator()


@SEEN
@given(
    st.sampled_from(["h200-sxm", str(FIRST_DAY), STEADY]),
    st.sampled_from(sorted(SELECTORS)),
    st.sampled_from(GPU),
    st.integers(1, 40),
    st.integers(100, 60000),
)
def test_every_step_of_a_run_on_the_gpu_is_its_own(hardware, selector, routing, batch, prompt):
    contexts, times = run_ps(hardware, selector, routing, batch, prompt)
    steps = model(hardware, selector, routing)
    assert [steps.ps([context] * batch) for context in contexts] == times


@SEEN
@given(st.sampled_from(CPU), st.integers(1, 40), st.integers(100, 60000))
def test_steps_with_a_cpu_router_are_those_of_a_run_that_draws_none(routing, batch, prompt) -> None:
    """From the second on: the first one finds every stream idle."""
    contexts, times = run_ps(STEADY, "rocketkv", routing, batch, prompt)
    steps = model(STEADY, "rocketkv", routing)
    assert [steps.ps([context] * batch) for context in contexts][1:] == times[1:]


@settings(deadline=None, max_examples=4)
@given(st.sampled_from([*GPU, *CPU]), st.integers(1, 32), st.integers(1, 131072))
def test_a_step_is_the_last_of_many_like_it(routing, batch, context) -> None:
    """By the reference engine, every op at its mean price."""
    steps = model("h200-sxm", "rocketkv", routing)
    costs = CostModel(steps.profile, Case(steps.model, steps.selector, steps.routing))
    at = Point(batch, batch, np.full(3, context))
    rows = [np.rint(costs.price(op.kind, at).mean_s * 1e12).astype(np.int64) for op in steps.ops]
    last = [Graph.of(steps.ops).last_main]
    assert steps.ps([context] * batch) == finish_des(steps.ops, rows, last)[0, -1]


@SEEN
@given(
    st.sampled_from(["h200-sxm", STEADY]),
    st.sampled_from(["rocketkv", "quest"]),
    st.sampled_from(["gpu-target", "gpu_side-mid", "cpu-mid"]),
    st.integers(1, 16),
    st.integers(1, 131072),
    st.integers(0, 3000),
    st.data(),
)
def test_segments_are_the_times(hardware, selector, routing, batch, first, more, data) -> None:
    last = min(first + more, 131072)
    steps = model(hardware, selector, routing)
    lines = steps.segments(batch, first, last)
    starts, ends = [s.start_tokens for s in lines], [s.end_tokens for s in lines]
    assert (starts[0], ends[-1]) == (first, last)
    assert starts[1:] == [end + 1 for end in ends[:-1]]
    line = data.draw(st.sampled_from(lines))
    for context in (line.start_tokens, line.end_tokens):
        assert line.ps(context) == steps.ps([context] * batch)
    between = data.draw(st.integers(line.start_tokens, line.end_tokens))
    assert abs(line.ps(between) - int(steps.ps([between] * batch))) <= steps.bound_ps


def test_segments_end_at_the_ticks_of_measured_tables() -> None:
    """At 12288 for dense attention and the router; a token past it is within the bound still."""
    steps = model(str(FIRST_DAY), "rocketkv", "gpu-target")
    # Embedding, 32 layers of ten ops with 31 routers between, final norm, head and host.
    assert steps.bound_ps == len(steps.ops)
    lines = steps.segments(4, 4097, 50000)
    assert [(s.start_tokens, s.end_tokens) for s in lines] == [(4097, 12289), (12290, 50000)]


def test_without_tables_there_is_a_segment_a_page() -> None:
    """A roofline counts whole pages, and the tail page is attended as far as it is full."""
    lines = model(STEADY, "rocketkv", "gpu-target").segments(2, 5001, 5012)
    assert [(s.start_tokens, s.end_tokens) for s in lines] == [
        *((5001, 5004), (5005, 5008), (5009, 5012)),
    ]


def test_a_line_is_rounded_to_whole_picoseconds() -> None:
    line = essim.Segment(10, 13, 100, 110)
    assert [line.ps(context) for context in range(10, 14)] == [100, 103, 107, 110]
    assert essim.Segment(7, 7, 5, 5).ps(7) == 5


def test_one_time_is_an_int64() -> None:
    time_ps = model("h200-sxm", "rocketkv", "gpu-target").ps(np.full(4, 4096, dtype=np.int32))
    assert type(time_ps) is np.int64


def test_objects_are_taken_as_well_as_their_names() -> None:
    named = model("h200-sxm", "rocketkv", "cpu-mid")
    made = essim.StepModel(named.model, named.profile, named.selector, named.routing)
    assert made.ps([5000, 5000]) == named.ps([5000, 5000])


@pytest.mark.parametrize(
    ("contexts", "message"),
    [
        ([100, 4096], "contexts: sequences of 100 to 4096 tokens in one step cannot be priced yet"),
        ([[5, 5]], r"contexts: must be whole numbers of shape \[batch\] \(got \[\[5, 5\]\]\)"),
        ([[5], [5, 5]], "contexts: must be whole numbers of shape"),
        ([], "contexts: must be whole numbers of shape"),
        ([4096.0], "contexts: must be whole numbers of shape"),
        ([0], "contexts: 0 to 0 tokens are not within 1 to 131072"),
        ([131073], "contexts: 131073 to 131073 tokens are not within 1 to 131072"),
    ],
)
def test_contexts_that_are_none(contexts, message) -> None:
    with pytest.raises(essim.InputError, match=message):
        model("h200-sxm", "rocketkv", "gpu-target").ps(contexts)


def test_ranges_that_are_none() -> None:
    steps = model("h200-sxm", "rocketkv", "gpu-target")
    with pytest.raises(essim.InputError, match="first_tokens, last_tokens: 5 to 3 tokens"):
        steps.segments(1, 5, 3)
    with pytest.raises(essim.InputError, match="batch: must be 1 or more"):
        steps.segments(0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "lama-3.1-8b"}, "<dict>: model: no model .* Did you mean 'llama-3.1-8b'?"),
        ({"hardware": "h200"}, "hardware: no hardware profile 'h200'"),
        ({"selector": {"kind": "dens"}}, "<dict>: selector: no kind 'dens'"),
        ({"routing": "gpu"}, "<dict>: routing: no routing 'gpu'"),
        (
            {"routing": {"where": "cpu", "anchor": "mid", "cpu_threads": 99}},
            "routing: 99 router threads on 16 cores",
        ),
        (
            {"selector": {"kind": "exact_topk", "top_tokens": 64}, "routing": "cpu-mid"},
            "routing: exact_topk scores every cached key",
        ),
        (
            {"selector": {"kind": "rocketkv", "budget_tokens": 512}},
            "selector: the settings of rocketkv follow from the workload. Give the pages",
        ),
        ({"model": {"preset": "llama-3.1-8b", "tp": 2}}, "model.tp: a step on 2 ranks"),
    ],
)
def test_steps_that_cannot_be_timed(changes, message) -> None:
    parts = {"model": "llama-3.1-8b", "hardware": "h200-sxm", "selector": ROCKET}
    with pytest.raises(essim.InputError, match=message):
        essim.StepModel(**(parts | {"routing": "gpu-target"} | changes))


def test_strict_refuses_what_is_not_measured() -> None:
    parts = ("llama-3.1-8b", "h200-sxm", ROCKET, "gpu-target")
    assert essim.StepModel(*parts, strict=True).ps([4097]) == essim.StepModel(*parts).ps([4097])
    with pytest.raises(essim.PricingError, match="not measured"):
        essim.StepModel(*parts, strict=True).ps([131072])
