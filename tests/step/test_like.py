"""Routers that were not measured, by those that were; each of these by the others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from essim.hardware.profile import load_profile, shipped
from essim.methods.routing import Routing
from essim.methods.selectors import SELECTORS, Phase
from essim.model.shape import PRESETS
from essim.step.errors import error_factors
from essim.step.kinds import Case, Point
from essim.step.like import cpu_ratio, form_of, least_squares, measured_routers
from essim.step.price import SOURCES, CostModel

H200 = load_profile(shipped("hardware_profiles") / "h200-sxm.yaml")
LLAMA = PRESETS["llama-3.1-8b"]
LOKI = SELECTORS["loki"].model_validate({"kind": "loki"})
INLINE = Routing(where="gpu", anchor="target")


def price(kernel: str = "stepwise", batch: int = 1, tokens: int = 32768, profile=H200):
    routing = Routing(where="gpu", anchor="target", kernel=kernel)
    costs = CostModel(profile, Case(LLAMA, LOKI, routing))
    return costs.price(f"gpu_route_{kernel}", Point(batch, batch, np.array([tokens])))


@pytest.mark.parametrize(
    ("router", "median", "worst"),
    [
        ("gpu_route_stepwise", 0.18, 0.34),
        ("gpu_route_quest", 0.15, 0.74),
        ("gpu_route_exact_topk", 0.14, 0.18),
        ("gpu_route_fused", 0.22, 0.47),
    ],
)
def test_each_measured_router_is_predicted_by_the_others(router, median, worst) -> None:
    features, times_s = measured_routers(H200)[router]
    form = form_of(H200, without=router)
    error = np.abs(features @ form.scan / times_s - 1)
    assert (round(float(np.median(error)), 2), round(float(error.max()), 2)) == (median, worst)


def test_a_router_without_a_table_is_transferred_with_its_own_error() -> None:
    found = price()
    assert SOURCES[found.rank[0]] == "transferred"
    assert found.error == "transferred like"
    low, high = error_factors(found.error, np.array([0.05, 0.95]))
    assert low < 0.8 < 1.25 < high


def test_a_fused_router_saves_its_launches_alone() -> None:
    form = form_of(H200)
    stepwise, fused = price("stepwise").mean_s[0], price("fused").mean_s[0]
    own, project = form.scan[0], form.project[0]
    # Loki: two kernels of the projection, then one of the scan and three of the choice.
    assert stepwise - fused == pytest.approx(4 * own + project)


@given(st.integers(1, 64), st.integers(1, 10**6))
def test_more_work_never_takes_less(batch: int, tokens: int) -> None:
    small, large = price(batch=batch, tokens=tokens), price(batch=batch + 1, tokens=tokens + 1000)
    assert 0 < small.mean_s[0] <= large.mean_s[0]


def test_least_squares_has_no_negative_terms_and_finds_what_is_there() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(1, 2, (50, 4))
    assert least_squares([(x, x @ np.array([1.0, 0.0, 2.0, 3.0]))]) == pytest.approx([1, 0, 2, 3])
    assert (least_squares([(x, x @ np.array([1.0, -0.2, 2.0, 3.0]))]) >= 0).all()


def test_without_three_routers_there_is_no_form() -> None:
    alone = load_profile(shipped("hardware_profiles") / "a100-sxm-80gb.yaml")
    assert form_of(alone) is None


def test_a_cpu_router_takes_its_multiple_of_the_least_time() -> None:
    ratio = cpu_ratio(H200)
    assert ratio == pytest.approx(1.908, abs=1e-3)
    routing = Routing(where="cpu", anchor="mid")
    selector = SELECTORS["double_sparsity"].model_validate({"kind": "double_sparsity"})
    case, at = Case(LLAMA, selector, routing), Point(2, 2, np.array([131072]))
    found = CostModel(H200, case).price("cpu_route", at)
    assert SOURCES[found.rank[0]] == "transferred"
    assert (found.error, found.family) == ("", "cpu")
    # Labels of two sequences, and the proxy's second factor.
    read = 2 * 131072 * 256 + 128 * 4096 * 2
    assert found.mean_s[0] == pytest.approx(ratio * read / 7.853e10)


def test_projections_have_their_own_terms() -> None:
    form, phase = form_of(H200), Phase("project", weight_bytes=4.259e6, launches=2)
    expected = 2 * form.project[0] + form.project[1] * 1e-6
    assert float(form.time_s([phase], 1, 4.259e12)) == pytest.approx(expected)
    assert form.waits_s([phase]) == 2 * form.project[0]
