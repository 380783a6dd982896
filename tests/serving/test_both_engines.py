"""Two engines, one answer: random traffic, event by event."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from stubs import Linear

from essim.serving import des, jump
from essim.serving.load import Fleet, Limits, Load, Outcome, Pool, Prices, Request, Sample


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """Draw small pools, so that blocks run out, and any way to batch."""
    block = draw(st.sampled_from([1, 2, 4, 16]))
    budget = draw(st.sampled_from([None, 3, 8]))
    pool = Pool(
        block,
        draw(st.integers(20, 60)),
        draw(st.sampled_from([18, 1 << 60])),
        (lambda tokens: tokens) if budget is None else (lambda tokens: min(tokens, budget)),
        draw(st.booleans()),
    )
    batch = draw(st.integers(1, 6))
    limits = Limits(
        pool,
        batch,
        draw(st.integers(batch + 1, 20)),
        draw(st.integers(1, 3)),
        draw(st.booleans()),
    )
    return Fleet(
        limits, draw(st.integers(1, 3)), draw(st.sampled_from(["round_robin", "least_tokens"]))
    )


@st.composite
def loads(draw: st.DrawFn, fleet: Fleet) -> Load:
    """Draw requests that fit; close arrivals make ties common."""
    gaps = st.one_of(st.integers(0, 3), st.integers(0, 200))
    drawn = draw(st.lists(st.tuples(gaps, st.integers(1, 25), st.integers(1, 20)), max_size=25))
    now, requests = 0, []
    for gap, prompt, output in drawn:
        now += gap
        if fleet.limits.pool.fits(prompt, output):
            requests.append(Request(now, prompt, output))
    users = draw(st.sampled_from([0, 0, 1, 3]))
    think = draw(st.sampled_from([0, 1, 40]))
    prefilled = draw(st.sampled_from([False, False, True]))
    if prefilled:
        requests = [request for request in requests if request.output_tokens > 1]
    return Load(requests, users, think, prefilled)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Load, Fleet, Prices]:
    fleet = draw(fleets())
    small = st.integers(0, 3)
    prices = Linear(
        draw(st.integers(1, 30)),
        *(draw(small) for _ in range(5)),
        cell=draw(st.sampled_from([1, 5, 8])),
    )
    return draw(loads(fleet)), fleet, prices


def check_equal(one: Outcome, other: Outcome) -> None:
    assert one.records == other.records
    for i in range(len(one.records)):
        assert one.token_ps(i).tolist() == other.token_ps(i).tolist()
    assert (one.busy_ps, one.steps) == (other.busy_ps, other.steps)
    # What the fast engine samples, it samples as the slow one does.
    assert set(map(seen, other.samples)) <= set(map(seen, one.samples))
    assert sum(s.steps for s in one.samples) == sum(s.steps for s in other.samples)


def seen(sample: Sample) -> tuple[int, ...]:
    """Return all of a sample but for how many steps it stands for."""
    return tuple(vars(replace(sample, steps=0)).values())


@settings(max_examples=300, deadline=None)
@given(cases())
def test_both_engines_agree_event_by_event(case: tuple[Load, Fleet, Prices]) -> None:
    load, fleet, prices = case
    check_equal(des.simulate(load, fleet, prices), jump.simulate(load, fleet, prices))


@settings(max_examples=100, deadline=None)
@given(cases())
def test_nothing_is_lost(case: tuple[Load, Fleet, Prices]) -> None:
    load, fleet, prices = case
    out = jump.simulate(load, fleet, prices)
    assert [record.request for record in out.records] == list(load.requests)
    for i, record in enumerate(out.records):
        times = out.token_ps(i)
        # Every token came once, at a time of its own, the first and last when the record says.
        assert len(times) == record.request.output_tokens
        assert np.all(np.diff(times) > 0)
        assert (record.first_ps, record.finish_ps) == (times[0], times[-1])
        assert record.arrival_ps <= record.admitted_ps <= record.finish_ps
    # Blocks are given back: the last sample of a replica holds none.
    last = {sample.replica: sample for sample in out.samples}
    for sample in last.values():
        assert (sample.waiting, sample.decoding, sample.prefilling) == (0, 0, 0)
        assert (sample.used_blocks, sample.reserved_blocks) == (0, 0)
    pool = fleet.limits.pool
    assert all(s.used_blocks + s.reserved_blocks <= pool.gpu_blocks for s in out.samples)


def waits_s(out: Outcome) -> np.ndarray:
    return np.array([record.admitted_ps - record.arrival_ps for record in out.records]) / 1e12


def in_system(out: Outcome) -> list[tuple[int, int]]:
    """Return (time, change) of the number of requests in the system."""
    ends = [(record.arrival_ps, 1) for record in out.records]
    return sorted(ends + [(record.finish_ps, -1) for record in out.records])


@settings(max_examples=50, deadline=None)
@given(cases())
def test_littles_law_holds_to_the_picosecond(case: tuple[Load, Fleet, Prices]) -> None:
    """Time in the system, summed over requests, is their number, summed over time."""
    out = jump.simulate(*case)
    inside = area = last = 0
    for time, change in in_system(out):
        area += inside * (time - last)
        inside, last = inside + change, time
    assert area == sum(record.finish_ps - record.arrival_ps for record in out.records)


ONE_AT_A_TIME = Fleet(Limits(Pool(1, 1 << 40), max_batch=1, token_budget=1 << 30))


def poisson(rate_per_s: float, count: int, seed: int) -> np.ndarray:
    gaps = np.random.default_rng(seed).exponential(1e12 / rate_per_s, count)
    return np.rint(np.cumsum(gaps)).astype(np.int64)


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """Return the mean without warm-up, and three standard errors of it by batch means."""
    means = np.array([part.mean() for part in np.array_split(values[len(values) // 10 :], 30)])
    return float(means.mean()), 3 * float(means.std(ddof=1)) / np.sqrt(len(means))


def test_a_constant_step_waits_as_m_d_1_does() -> None:
    """Mean wait of M/D/1 (Pollaczek-Khinchine): rho D / (2 (1 - rho))."""
    step_ps, load = 10**10, 0.7
    arrivals = poisson(load * 1e12 / step_ps, 40_000, seed=1)
    requests = [Request(int(time), 8, 1) for time in arrivals]
    out = jump.simulate(Load(requests), ONE_AT_A_TIME, Linear(step=step_ps), sampled=False)
    mean, error = mean_and_error(waits_s(out))
    expected = load * 0.01 / (2 * (1 - load))
    assert error < 0.1 * expected
    assert abs(mean - expected) < error


def test_exponential_prompts_wait_as_m_m_1_does() -> None:
    """Mean wait of M/M/1: rho S / (1 - rho), with time in proportion to the prompt."""
    mean_tokens, token_ps, load = 10_000, 10**6, 0.6
    arrivals = poisson(load * 1e12 / (mean_tokens * token_ps), 60_000, seed=2)
    prompts = np.random.default_rng(3).exponential(mean_tokens, len(arrivals))
    requests = [
        Request(int(time), max(1, round(size)), 1)
        for time, size in zip(arrivals, prompts, strict=True)
    ]
    prices = Linear(step=0, chunk=token_ps)
    out = jump.simulate(Load(requests), ONE_AT_A_TIME, prices, sampled=False)
    mean, error = mean_and_error(waits_s(out))
    expected = load * 0.01 / (1 - load)
    assert error < 0.1 * expected
    assert abs(mean - expected) < error
