"""Runs in closed form against the engine that simulates every step."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from essim.engines import finish_maxplus
from essim.hardware.profile import HardwareProfile, load_profile, shipped
from essim.methods.routing import PRESETS as ROUTINGS
from essim.methods.routing import Routing
from essim.methods.selectors.dense import Dense
from essim.methods.selectors.exact_topk import ExactTopK
from essim.methods.selectors.quest import Quest
from essim.methods.selectors.rocketkv import RocketKV
from essim.model.shape import PRESETS as MODELS
from essim.simulate.closed.decode import Decode, Spans
from essim.simulate.closed.room import Room
from essim.simulate.closed.steps import Steps
from essim.simulate.memory import max_batch, memory, shortage
from essim.simulate.replay import run_decode
from essim.simulate.scenario import Scenario, Workload

SELECTORS = [
    RocketKV(prompt_budget=1024, page_tokens=4, top_pages=32, kv_block_tokens=8),
    RocketKV(prompt_budget=4096, page_tokens=4, top_pages=64, kv_block_tokens=4),
    Quest(page_tokens=16, top_pages=32),
    ExactTopK(top_tokens=256),
    Dense(),
]
ROUTINGS_TRIED = [name for name in ROUTINGS if "mix" not in name]


@cache
def profile_of(name: str) -> HardwareProfile:
    with warnings.catch_warnings(action="ignore"):
        return load_profile(shipped("hardware_profiles") / f"{name}.yaml")


def changed(profile: HardwareProfile, seed: int, drawn: bool) -> HardwareProfile:
    """Return a profile whose every measured time is another; calls may take their mean."""
    rng = np.random.default_rng(seed)
    tables = {}
    for name, table in profile.tables.items():
        grids = {}
        for key, grid in table.grids.items():
            times = grid.values.get("mean_s", grid.values["p50_s"])
            factor = rng.uniform(0.3, 3.0) * rng.uniform(0.8, 1.25, times.shape)
            kept = grid.values if drawn else {"mean_s": times}
            grids[key] = replace(grid, values={n: v * factor for n, v in kept.items()})
        tables[name] = replace(table, grids=grids)
    reference = profile.reference and changed(profile.reference, seed, drawn)
    return replace(profile, tables=tables, reference=reference)


@st.composite
def points(draw: st.DrawFn) -> Scenario:
    model = MODELS[draw(st.sampled_from(["llama-3.1-8b", "qwen2.5-7b", "smollm2-135m"]))]
    selector = draw(st.sampled_from(SELECTORS))
    routing = ROUTINGS[draw(st.sampled_from(ROUTINGS_TRIED))]
    return Scenario(
        name="random",
        model=model.model_copy(update={"layers": draw(st.integers(2, 6))}),
        hardware="changed",
        selector=selector,
        routing=Routing(**routing, projection_rank=draw(st.sampled_from([64, 128, None]))),
        workload=Workload(batch=1, input_tokens=draw(st.integers(40, 9000)), output_tokens=2),
    )


def decoded(point: Scenario, profile: HardwareProfile, batches: list[int], steps: list[int]):
    kept = point.resolved_selector().kept_prompt_tokens(point.workload.input_tokens)
    first = np.full(len(steps), kept + 1)
    spans = Spans(first, kept + np.array(steps))
    ends = (kept + 1, kept + max(steps))
    own = Steps(point, profile, np.array(batches), ends, point.workload.input_tokens - kept)
    return Decode.of(own, spans, [], seed=0)


def simulated(point: Scenario, profile: HardwareProfile, batch: int, steps: int):
    load = point.workload.model_copy(update={"batch": batch})
    full = point.model_copy(update={"workload": load})
    return run_decode(full, profile, finish_maxplus, steps)


@settings(max_examples=15, deadline=None)
@given(
    points(),
    st.sampled_from(["h200-sxm", "l40s"]),
    st.integers(0, 10**6),
    st.lists(st.integers(1, 40), min_size=1, max_size=2, unique=True),
    st.lists(st.integers(1, 1200), min_size=1, max_size=3),
)
def test_runs_are_within_a_millionth_of_those_simulated_step_by_step(
    point: Scenario, hardware: str, seed: int, batches: list[int], steps: list[int]
) -> None:
    profile = changed(profile_of(hardware), seed, drawn=False)
    found = decoded(point, profile, batches, steps)
    for b, batch in enumerate(batches):
        run = simulated(point, profile, batch, max(steps))
        for r, number in enumerate(steps):
            whole_s = run.step_ps[:number].sum() / 1e12
            assert found.total_s[b, r] == pytest.approx(whole_s, rel=1e-6)
            assert abs(found.total_s[b, r] - whole_s) <= number * found.off_s[b, r]
            unrouted_s = run.unrouted_ps[:number].sum() / 1e12
            assert found.unrouted_s[b, r] == pytest.approx(unrouted_s, rel=1e-6)
            for device in ("gpu", "cpu"):
                busy_s = run.busy_ps[device][:number].sum() / 1e12
                assert found.busy_s[device][b, r] == pytest.approx(busy_s, rel=1e-6)
            sources = run.sources(number)
            assert found.texts[found.sources[b, r]] == sources.text
            assert found.measured_frac[b, r] == pytest.approx(sources.measured_frac, rel=1e-6)


@settings(max_examples=8, deadline=None)
@given(
    st.sampled_from(["cpu-target", "cpu-in", "cpu-mid"]),
    st.sampled_from(["h200-sxm", "l40s"]),
    st.integers(0, 10**6),
    st.integers(1, 16),
    st.lists(st.integers(1, 2000), min_size=1, max_size=3),
)
def test_drawn_calls_are_within_the_bound_that_is_shown(
    routing: str, hardware: str, seed: int, batch: int, steps: list[int]
) -> None:
    point = Scenario(
        name="drawn",
        model=MODELS["llama-3.1-8b"],
        hardware="changed",
        selector=SELECTORS[1].model_copy(update={"top_pages": 32}),
        routing=Routing(**ROUTINGS[routing]),
        workload=Workload(batch=1, input_tokens=40960, output_tokens=2),
    )
    profile = changed(profile_of(hardware), seed, drawn=True)
    found = decoded(point, profile, [batch], steps)
    run = simulated(point, profile, batch, max(steps))
    for r, number in enumerate(steps):
        step_s = run.step_ps[:number].mean() / 1e12
        assert abs(found.total_s[0, r] / number - step_s) <= found.off_s[0, r]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["llama-3.1-8b", "qwen2.5-32b", "mistral-7b-v0.2"]),
    st.sampled_from(SELECTORS),
    st.sampled_from(ROUTINGS_TRIED),
    st.sampled_from(["h200-sxm", "l40s", "cpu-2core"]),
    st.integers(1, 600),
    st.integers(1, 130_000),
    st.integers(1, 9000),
)
def test_bytes_of_many_points_are_those_of_each(
    model: str, selector, routing: str, hardware: str, batch: int, tokens: int, output: int
) -> None:
    point = Scenario(
        name="bytes",
        model=MODELS[model],
        hardware=hardware,
        selector=selector,
        routing=Routing(**ROUTINGS[routing]),
        workload=Workload(batch=batch, input_tokens=tokens, output_tokens=output),
    )
    profile, own = profile_of(hardware), point.resolved_selector()
    room = Room(point, own, profile, np.array([17, tokens]), np.array([1, output]))
    need = memory(point, profile)
    found = room.bytes(np.array([[batch]]))
    for name, values in found.items():
        assert np.broadcast_to(values, (1, 2))[0, 1] == getattr(need, name), name
    assert room.max_batch()[1] == max_batch(point, profile)
    assert room.shortages(np.array([[1], [batch]]))[1, 1] == shortage(point, profile)
