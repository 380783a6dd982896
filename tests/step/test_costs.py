"""Prices: tables first, the roofline where there is none, and each says which."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from firstday import FIRST_DAY

from essim.errors import PricingError
from essim.hardware.profile import find_profile, load_profile, shipped
from essim.methods.routing import PRESETS as ROUTINGS
from essim.methods.routing import Routing
from essim.methods.selectors import SELECTORS
from essim.methods.selectors.dense import Dense
from essim.methods.selectors.exact_topk import ExactTopK
from essim.methods.selectors.quest import Quest
from essim.methods.selectors.rocketkv import RocketKV
from essim.model.shape import PRESETS, ModelShape
from essim.step.kinds import KINDS, Case, Point, priced_names
from essim.step.ops import decode_step, prefill_step
from essim.step.price import SOURCES, CostModel

PROFILE = load_profile(FIRST_DAY)
H200 = load_profile(shipped("hardware_profiles") / "h200-sxm.yaml")
ROCKET = RocketKV(prompt_budget=4096, page_tokens=4, top_pages=32, kv_block_tokens=4)
CPU_MID = Routing(where="cpu", anchor="mid")
BANDWIDTH, LAUNCH_S = 4.3e12, 0.5e-6
ONE = Point(1, 1, np.array([8192], dtype=np.int64))


def price(kind, batch=1, context=(4096,), model="llama-3.1-8b", routing=CPU_MID, **options):
    case = Case(MODELS[model], ROCKET, routing)
    point = Point(batch, batch, np.array(context, dtype=np.int64))
    found = CostModel(PROFILE, case, **options).price(kind, point)
    return found, [SOURCES[rank] for rank in found.rank]


def test_on_the_grid_a_price_is_measured() -> None:
    found, sources = price("gemm_qkv", batch=8)
    assert (found.mean_s[0], sources) == (16.4e-6, ["measured"])
    assert price("publish")[1] == ["measured"]


def test_between_points_it_is_interpolated() -> None:
    found, sources = price("gpu_route_stepwise", context=(4096, 8192))
    assert sources == ["measured", "interpolated"]
    assert found.mean_s == pytest.approx([19.5e-6, (19.5e-6 + 28.3e-6) / 2])


def test_past_the_edge_it_goes_on_but_never_below_the_roofline() -> None:
    found, sources = price("gpu_route_stepwise", batch=16, context=(12288,))
    assert sources == ["extrapolated"]
    # 16 sequences at 12288 tokens were seen at 160 us.
    assert found.mean_s[0] == pytest.approx(89.7e-6 + 2 * (89.7e-6 - 55.7e-6))
    case = Case(PRESETS["llama-3.1-8b"], ROCKET, CPU_MID)
    prefill = Point(1, 40960, np.array([40960], dtype=np.int64))
    found = CostModel(PROFILE, case).price("gemm_gate_up", prefill)
    flops = 2 * 28672 * 4096 * 40960
    assert found.mean_s[0] == pytest.approx(flops / 989e12 + LAUNCH_S)
    assert SOURCES[found.rank[0]] == "roofline"


@pytest.mark.parametrize("kind", ["cpu_route", "gpu_route_stepwise", "attn_dense", "head", "rope"])
def test_more_work_never_gets_cheaper_by_leaving_a_table(kind: str) -> None:
    model = CostModel(H200, Case(PRESETS["llama-3.1-8b"], ROCKET, CPU_MID))
    contexts = np.array([12288, 24576, 24577, 49152, 200000], dtype=np.int64)
    longer = model.price(kind, Point(8, 8, contexts)).mean_s
    assert (np.diff(longer) >= 0).all()
    sizes = (16, 32, 33, 64, 65, 128, 129, 256, 8192, 8193, 40960)
    more = [model.price(kind, Point(n, n, contexts[:1])).mean_s[0] for n in sizes]
    assert sorted(more) == more
    assert more[-1] > more[0]


def test_far_past_the_edge_the_line_is_assumed() -> None:
    found, sources = price("gpu_route_stepwise", context=(40960,))
    assert sources == ["assumed"]
    assert found.mean_s[0] == pytest.approx(19.5e-6 + (28.3e-6 - 19.5e-6) * (40960 - 4096) / 8192)


def test_channels_of_a_policy_are_scaled_from_those_that_were_measured() -> None:
    resolved = RocketKV(budget_tokens=1024).resolve(40960, 128, 128)
    case = Case(PRESETS["llama-3.1-8b"], resolved, CPU_MID)
    pages = resolved.model_dump()
    asked = CPU_MID.model_copy(update={"channels": case.channels})
    at = Point(8, 8, np.array([8192], dtype=np.int64))
    policy = CostModel(H200, case).price("cpu_route", at)
    given = CostModel(H200, Case(case.model, RocketKV(**pages), asked)).price("cpu_route", at)
    assert case.channels != 32
    assert policy.mean_s == given.mean_s


def test_without_a_table_it_is_the_roofline() -> None:
    """Bytes over bandwidth, and as many of the smallest measured kernels as it launches."""
    found, sources = price("rope")
    assert sources == ["roofline"]
    small_s = 2.0e-6
    assert found.mean_s[0] == pytest.approx(2 * 6144 * 2 / BANDWIDTH + small_s)


def test_a_gemm_of_another_shape_lies_between_smaller_and_larger_measured_ones() -> None:
    costs = CostModel(H200, Case(PRESETS["llama-3.1-8b"], ROCKET, CPU_MID))
    measured = {kind: costs.price(kind, ONE).mean_s[0] for kind in ("gemm_o", "gemm_qkv")}
    for outputs, inputs in ((4104, 4096), (5120, 4096), (6136, 4096)):
        model = PRESETS["llama-3.1-8b"].model_copy(
            update={"hidden": inputs, "heads": 1, "kv_heads": 1, "head_dim": outputs // 3}
        )
        between = CostModel(H200, Case(model, ROCKET, CPU_MID)).price("gemm_qkv", ONE)
        assert SOURCES[between.rank[0]] == "transferred"
        assert measured["gemm_o"] <= between.mean_s[0] <= measured["gemm_qkv"]


def test_equal_bytes_and_equal_peak_are_equal_time() -> None:
    times = {}
    for dtype in ("bf16", "fp16"):
        model = PRESETS["llama-3.1-8b"].model_copy(
            update={"weight_dtype": dtype, "kv_dtype": dtype}
        )
        costs = CostModel(H200, Case(model, ROCKET, CPU_MID))
        times[dtype] = [costs.price(kind, ONE) for kind in ("gemm_qkv", "attn_dense", "head")]
    for one, other in zip(*times.values(), strict=True):
        assert one.mean_s == other.mean_s
        assert one.rank == other.rank


@pytest.mark.parametrize("kind", ["attn_dense", "attn_sparse", "gpu_route_stepwise"])
def test_half_the_kv_heads_of_twice_the_batch_are_the_same_work(kind: str) -> None:
    """A kernel sees pairs of a sequence and a KV head, whichever there are more of."""
    half = PRESETS["llama-3.1-8b"].model_copy(update={"heads": 16, "kv_heads": 4})
    inline = Routing(where="gpu", anchor="target")
    whole = CostModel(H200, Case(PRESETS["llama-3.1-8b"], ROCKET, inline))
    other = CostModel(H200, Case(half, ROCKET, inline)).price(kind, Point(8, 8, ONE.context_tokens))
    same = whole.price(kind, Point(4, 4, ONE.context_tokens))
    assert other.mean_s == pytest.approx(same.mean_s)
    assert SOURCES[other.rank[0]] == "transferred"
    assert SOURCES[same.rank[0]] in ("measured", "interpolated")


def test_sparse_attention_that_was_not_measured_costs_dense_attention_over_its_reads() -> None:
    blocks = ROCKET.model_copy(update={"kv_block_tokens": 64})
    case = Case(PRESETS["llama-3.1-8b"], blocks, CPU_MID)
    read = round(float(blocks.read_tokens(case.model, np.array([4096]))[0]))
    costs = CostModel(H200, case)
    sparse = costs.price("attn_sparse", Point(1, 1, np.array([4096])))
    dense = costs.price("attn_dense", Point(1, 1, np.array([read])))
    assert sparse.mean_s[0] == dense.mean_s[0]
    assert SOURCES[sparse.rank[0]] == "scaled"


@pytest.mark.parametrize(
    "change", [{"channels": 64}, {"channels": 128}, {"down_projection": "cpu"}, {"cpu_threads": 2}]
)
def test_more_work_never_gets_cheaper_by_leaving_the_table(change) -> None:
    base = price("cpu_route")[0].mean_s[0]
    more = price("cpu_route", routing=Routing(where="cpu", anchor="mid", **change))[0].mean_s[0]
    assert more > base


def test_a_side_stream_with_a_kernel_that_was_not_measured_is_scaled() -> None:
    fused = Routing(where="gpu_side", anchor="mid", kernel="fused")
    stepwise = Routing(where="gpu_side", anchor="mid")
    found, sources = price("gpu_side_slowdown", routing=fused)
    assert sources == ["scaled"]
    # Less is read, but a fork and a join wait as long.
    assert found.mean_s[0] == price("gpu_side_slowdown", routing=stepwise)[0].mean_s[0]
    early = Routing(where="gpu_side", anchor="in")
    assert price("gpu_side_slowdown", routing=early)[1] == ["scaled"]


def test_the_cpu_router_carries_its_distribution() -> None:
    found, sources = price("cpu_route")
    assert sources == ["measured"]
    assert found.distribution is not None
    times = found.distribution.times_s(np.array([0.0, 2.3263478740408408]))
    assert times == pytest.approx([27e-6, 64e-6])
    assert found.distribution.mean_s() == pytest.approx(found.mean_s)


def test_small_payloads_cost_their_bytes_over_the_link() -> None:
    found, sources = price("anchor_d2h", batch=8)
    assert sources == ["roofline"]
    assert found.mean_s[0] == pytest.approx(8 * 128 * 2 / 55e9)
    target = Routing(where="cpu", anchor="target")
    assert price("anchor_d2h", routing=target)[0].mean_s[0] == pytest.approx(8192 / 55e9)
    assert price("index_h2d")[0].mean_s[0] == pytest.approx(8 * 32 * 4 / 55e9)
    assert price("key_d2h")[0].mean_s[0] == pytest.approx(2048 / 55e9)


def test_hand_over_may_have_tables_by_payload(tmp_path: Path) -> None:
    """Publish sends latent and new key, await reads the indices: 256 + 2048, and 1024 bytes."""
    text = FIRST_DAY.read_text()
    spec = "{axes: [payload_bytes], source: measured, reference: r, date: '2026-11-29'}"
    text = re.sub(r"  (publish|await): \{.*\n", "", text)
    text = text.replace("tables:\n", f"tables:\n  publish: {spec}\n  await: {spec}\n", 1)
    file = tmp_path / FIRST_DAY.name
    file.write_text(text)
    shutil.copytree(FIRST_DAY.with_suffix(""), file.with_suffix(""))
    head = "payload_bytes,mean_s\n"
    (file.with_suffix("") / "publish.csv").write_text(head + "256,1e-6\n4352,3e-6\n")
    (file.with_suffix("") / "await.csv").write_text(head + "1024,4e-6\n8192,8e-6\n")
    model = CostModel(load_profile(file), Case(MODELS["llama-3.1-8b"], ROCKET, CPU_MID))
    at = Point(1, 1, np.array([4096], dtype=np.int64))
    for kind, want_s, source in (("publish", 2e-6, "interpolated"), ("await", 4e-6, "measured")):
        found = model.price(kind, at)
        assert found.mean_s[0] == pytest.approx(want_s)
        assert SOURCES[found.rank[0]] == source


def test_strict_refuses_what_is_not_measured_and_says_why() -> None:
    price("gemm_qkv", batch=3, strict=True)
    with pytest.raises(PricingError, match=r"rope on h200-sxm is roofline.*no such table"):
        price("rope", strict=True)
    with pytest.raises(PricingError, match="off the table's grid"):
        price("gpu_route_stepwise", batch=64, strict=True)
    with pytest.raises(PricingError, match=r"holds for heads \[32\], not 9"):
        price("attn_sparse", model="smollm2-135m", strict=True)


FAMILIES = {
    "windows": {"mixers": ["sliding", "full"] * 16, "window_tokens": 1024},
    "latents": {
        "head_dim": 192,
        "kv_heads": 32,
        "mla": {"kv_rank": 512, "rope_dim": 64, "nope_dim": 128, "v_dim": 128, "q_rank": 1536},
    },
    "experts": {"moe": {"experts": 8, "experts_per_token": 2, "ffn": 4096, "shared_ffn": 512}},
}
MODELS = PRESETS | {
    name: ModelShape(**PRESETS["llama-3.1-8b"].model_dump() | fields | {"name": name})
    for name, fields in FAMILIES.items()
}


def kinds(model: ModelShape) -> set[str]:
    """Return every op kind that a step or a prefill of this model may have."""
    selectors = [Dense()] if model.mla else [Dense(), ROCKET]
    routings = [Routing(**fields) for fields in ROUTINGS.values() if fields["anchor"] != "mix"]
    lists = (
        ops
        for selector in selectors
        for routing in routings
        for ops in (
            decode_step(model, selector, routing),
            prefill_step(model, selector, routing, 40960),
        )
    )
    return {op.kind for ops in lists for op in ops}


@pytest.mark.parametrize("model", MODELS)
def test_every_op_of_every_model_has_a_positive_finite_price(model: str) -> None:
    for kind in kinds(MODELS[model]):
        for batch in (1, 3, 64):
            found, _ = price(kind, batch=batch, context=(1, 100, 5000, 200000), model=model)
            assert found.mean_s.shape == (4,)
            assert np.isfinite(found.mean_s).all()
            assert (found.mean_s > 0).all() or kind == "host"


def test_every_kind_is_an_op_of_some_step() -> None:
    found = set.union(*map(kinds, MODELS.values()))
    plain, inline = PRESETS["llama-3.1-8b"], Routing(where="gpu", anchor="target")
    for kind, selector in SELECTORS.items():
        own = selector.model_validate({"kind": kind, **selector.usual})
        steps = decode_step(plain, own, inline), prefill_step(plain, own, inline, 4096)
        found |= {op.kind for step in steps for op in step}
    assert found == set(KINDS)


def test_a_profile_may_have_the_tables_of_every_op_and_no_others() -> None:
    at = Point(1, 40960, np.array([40960], dtype=np.int64))
    plain = PRESETS["llama-3.1-8b"].model_copy(update={"gated_mlp": False})
    works = [
        KINDS[kind].work(Case(model, ROCKET, CPU_MID), at)
        for model in (plain, *MODELS.values())
        for kind in kinds(model)
    ]
    selectors = Quest(top_pages=128), ExactTopK(top_tokens=2048)
    inline = Routing(where="gpu", anchor="target")
    own = ("gpu_route_stepwise", "summary_build")
    works += [KINDS[kind].work(Case(plain, s, inline), at) for s in selectors for kind in own]
    assert {work.table for work in works if work.axes} == set(priced_names()["tables"])


def test_sparse_attention_below_its_budget_reads_what_dense_reads() -> None:
    case = Case(PRESETS["smollm2-135m"], ROCKET, CPU_MID)
    point = Point(2, 2, np.array([50], dtype=np.int64))
    sparse = KINDS["attn_sparse"].work(case, point)
    dense = KINDS["attn_dense"].work(case, point)
    assert sparse.byte_count == dense.byte_count


def test_floors_of_prefill_and_routing_by_hand() -> None:
    """Literal bytes, FLOPs and launches, so that a slip in any of them shows."""
    case = Case(PRESETS["llama-3.1-8b"], ROCKET, CPU_MID)
    prompt = Point(1, 1000, np.array([1000], dtype=np.int64))
    attention = KINDS["attn_prefill"].work(case, prompt)
    assert attention.flops == 2 * 1000 * 1000 * 4096
    stage1 = KINDS["stage1_select"].work(case, prompt)
    assert stage1.launches == 10
    assert stage1.flops == 2 * (32 * 32 * 1000) * 128
    at = Point(2, 2, np.array([4096], dtype=np.int64))
    update = 2 * (1024 * 2 + 2 * 2 * 1024)
    inline = Routing(where="gpu", anchor="target")
    stepwise = KINDS["gpu_route_stepwise"].work(Case(case.model, ROCKET, inline), at)
    # Min and max of all 128 channels of 8 KV heads' 1024 pages, two sequences.
    assert stepwise.byte_count == pytest.approx(2 * 2 * 8 * 1024 * 128 + update)
    assert stepwise.launches == 6
    fused = KINDS["gpu_route_fused"].work(Case(case.model, ROCKET, inline), at)
    assert fused.byte_count == pytest.approx(2 * 8 * 1024 * 32 + update)
    assert fused.launches == 1


def test_the_cpu_roofline_scales_with_threads() -> None:
    few, many = (
        CostModel(
            PROFILE,
            Case(
                PRESETS["llama-3.1-8b"], ROCKET, CPU_MID.model_copy(update={"cpu_threads": threads})
            ),
        )
        for threads in (1, 16)
    )
    work = KINDS["cpu_route"].work(few.case, Point(64, 64, np.array([4096], dtype=np.int64)))
    assert float(few.floor_s(work)[0]) > 5 * float(many.floor_s(work)[0])


def test_the_tail_page_is_not_routed() -> None:
    """1024 whole pages of 4 and a tail of one token: reads are 128 routed tokens and the tail."""
    assert ROCKET.read_tokens(PRESETS["llama-3.1-8b"], np.array([4097]))[0] == pytest.approx(129)


def test_a_transfer_is_latency_plus_bytes_over_bandwidth() -> None:
    """So that one page gets a fraction of the bandwidth that a thousand get."""
    profile = load_profile(find_profile("a100-sxm-80gb", Path()))
    case = Case(PRESETS["llama-3.1-8b"], ROCKET, Routing(where="cpu", anchor="target"))
    costs = CostModel(profile, case)
    rates = []
    for batch in (1, 1000):
        at = Point(batch, batch, np.array([4096], dtype=np.int64))
        seconds = costs.price("anchor_d2h", at).mean_s[0]
        assert seconds == pytest.approx(1.5e-6 + batch * 8192 / 25e9)
        rates.append(batch * 8192 / seconds)
    assert rates[0] < 0.2 * rates[1]
