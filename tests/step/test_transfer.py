"""Prices beside and beyond tables: forms of GEMMs, and that leaving a table never gets cheaper."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from essim.errors import InputError
from essim.hardware.forms import GemmWork, Peaks, fit_forms
from essim.hardware.interpolation import Grid
from essim.hardware.profile import load_profile, shipped
from essim.hardware.table import Table
from essim.methods.routing import Routing
from essim.methods.selectors.rocketkv import RocketKV
from essim.model.shape import PRESETS, ModelShape
from essim.step.errors import error_factors
from essim.step.kinds import KINDS, Case, Point
from essim.step.price import SOURCES, STRICT_SOURCES, CostModel
from essim.validate.source_errors import source_errors

FOLDER = shipped("hardware_profiles")
NAMES = ("h200-sxm", "h100-sxm", "a100-sxm-80gb", "l40s", "b200", "rtx-4090")
PROFILES = {name: load_profile(FOLDER / f"{name}.yaml") for name in NAMES}
H200 = PROFILES["h200-sxm"]
LLAMA = PRESETS["llama-3.1-8b"]
PEAKS = Peaks(4.0e12, 700e12)
PREFILL = ("attn_prefill", "stage1_select", "summary_build")
DECODE = (
    *("embed", "norm", "rope", "act", "gemm_qkv", "gemm_o", "gemm_gate_up", "gemm_down", "head"),
    *("attn_dense", "attn_sparse", "gpu_route_stepwise", "gpu_route_fused", "gpu_proxy"),
    *("proxy_down", "publish"),
)


def form_s(n: float, k: float, rows: float) -> float:
    read_s, compute_s = 2 * (n * k + rows * (n + k)) / (0.9 * 4e12), 2 * n * k * rows / (0.8 * 7e14)
    return 3e-6 + 1e-6 * k / 4096 + (read_s**3 + compute_s**3) ** (1 / 3)


def gemms(shapes: list[tuple[int, int]], rows: list[int]) -> Table:
    axis = np.array(rows, dtype=float)
    grids = {
        (str(n), str(k), "bf16"): Grid(
            (axis,), {"mean_s": np.array([form_s(n, k, m) for m in rows])}
        )
        for n, k in shapes
    }
    return Table("gemm", ("n", "k", "dtype"), ("rows",), grids)


def test_a_fit_finds_the_form_that_made_its_points() -> None:
    shapes = [(1024, 1024), (4096, 1024), (4096, 4096), (1024, 8192), (16384, 8192), (8192, 2048)]
    forms = fit_forms({"table": gemms(shapes, [1, 8, 64, 128, 1024])}, "bf16", 2.0, PEAKS)
    assert forms is not None
    for rows, form in ((1, forms[0]), (48, forms[0]), (2048, forms[1])):
        for n, k in ((2048, 3072), (30000, 5000)):
            found = form.time_s(GemmWork(n, k, rows, 2.0), PEAKS)
            assert found == pytest.approx(form_s(n, k, rows), rel=0.03)
    assert np.abs(forms[0].errors).max() < 0.02


def test_no_measured_gemm_of_a_dtype_is_no_form() -> None:
    assert fit_forms({"table": gemms([(1024, 1024)], [1])}, "fp8", 1.0, PEAKS) is None


def test_latency_goes_over_by_the_clock_and_bytes_by_bandwidth() -> None:
    """On a GPU that is the H200 but for one peak."""
    gpu = H200.spec.gpu
    halved = gpu.bandwidth_bytes_per_s.model_copy(
        update={"value": gpu.bandwidth_bytes_per_s.value / 2}
    )
    slow = H200.spec.model_copy(
        update={"gpu": gpu.model_copy(update={"bandwidth_bytes_per_s": halved}), "tables": {}}
    )
    other = replace(H200, spec=slow, tables={}, surveys={}, reference=H200)
    case = Case(LLAMA, ROCKET, INLINE)

    def priced(kind: str, batch: int) -> tuple[float, float, float]:
        at = Point(batch, batch, np.array([12288]))
        here, there = (CostModel(p, case).price(kind, at).mean_s[0] for p in (H200, other))
        moved = np.max(KINDS[kind].work(case, at).byte_count)
        return here, there, moved / gpu.bandwidth_bytes_per_s.value

    here, there, moved_s = priced("attn_dense", 8)
    assert there == pytest.approx(here + 1.1 * moved_s)
    # Blocks that read alone wait for memory, and not for its bandwidth ...
    here, there, _ = priced("gpu_route_stepwise", 8)
    assert there == here
    # ... until all of them together need more than there is.
    here, there, moved_s = priced("gpu_route_stepwise", 32)
    least_s = H200.tables["gpu_route_stepwise"].grid({}).least_s
    assert there == pytest.approx(least_s + 1.1 * 2 * moved_s)
    assert there > here


def test_a_reference_that_is_itself_is_refused(tmp_path) -> None:
    text = (FOLDER / "h100-sxm.yaml").read_text()
    file = tmp_path / "own.yaml"
    file.write_text(text.replace("reference: h200-sxm\n", "reference: own.yaml\n"))
    with pytest.raises(InputError, match="a profile cannot be its own reference"):
        load_profile(file)


def test_what_prices_are_off_by_is_what_the_shipped_data_say() -> None:
    for name, found in source_errors().items():
        ranks = np.array([0.05, 0.5, 0.95])
        percentiles = np.exp([found["log_error"][i] for i in (1, 3, 5)])
        assert error_factors(name, ranks) == pytest.approx(percentiles, rel=2e-3), name
        assert error_factors(name, np.array([0.5])) == pytest.approx([1.0])


ROCKET = RocketKV(prompt_budget=1 << 20, page_tokens=4, top_pages=32, kv_block_tokens=4)
INLINE = Routing(where="gpu", anchor="target")
SIZES = {"batch": (1, 96), "context": (4096, 80_000), "pages": (32, 256), "rank": (128, 512)}


@st.composite
def steps(draw: st.DrawFn) -> tuple[dict[str, int], dict[str, int]]:
    """Two points of which the second is larger in one thing."""
    at = {name: draw(st.integers(*ends)) for name, ends in SIZES.items()}
    at |= {key: getattr(LLAMA, key) * draw(st.sampled_from([1, 2])) for key in ("hidden", "ffn")}
    at["vocab"] = LLAMA.vocab
    grown = draw(st.sampled_from(sorted(at)))
    return at, at | {grown: at[grown] + draw(st.sampled_from([1, 64, at[grown]]))}


def prices(profile_name: str, at: dict[str, int]) -> dict[str, tuple[float, str, float]]:
    """Return time, source and roofline of every op kind."""
    sizes = {key: at[key] for key in ("hidden", "ffn", "vocab")}
    model = ModelShape(**LLAMA.model_dump() | sizes)
    selector = ROCKET.model_copy(update={"top_pages": at["pages"]})
    routing = Routing(where="gpu_side", anchor="mid", projection_rank=at["rank"])
    case = Case(model, selector, routing)
    costs, found = CostModel(PROFILES[profile_name], case), {}
    for kind in (*DECODE, *PREFILL):
        rows = at["context"] if kind in PREFILL else at["batch"]
        point = Point(1 if kind in PREFILL else rows, rows, np.array([at["context"]]))
        price = costs.price(kind, point)
        least = float(np.max(costs.floor_s(KINDS[kind].work(case, point))))
        found[kind] = float(price.mean_s[0]), SOURCES[price.rank[0]], least
    return found


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(NAMES), steps())
def test_leaving_a_table_never_gets_cheaper(name: str, step: tuple[dict[str, int], ...]) -> None:
    """More work takes no less, but between two points that were measured themselves."""
    before, after = (prices(name, at) for at in step)
    for kind, (time_s, source, least_s) in before.items():
        more_s, other, more_least_s = after[kind]
        measured = source in STRICT_SOURCES and other in STRICT_SOURCES
        if not measured and more_least_s >= least_s:
            assert more_s >= time_s * (1 - 1e-9), kind
