"""Windows, latents, experts, layers without attention, ranks and FP8 weights, end to end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from firstday import FIRST_DAY
from hypothesis import given
from hypothesis import strategies as st

from essim.errors import InputError
from essim.hardware.profile import load_profile
from essim.methods.routing import Routing
from essim.methods.selectors.dense import Dense
from essim.methods.selectors.rocketkv import RocketKV
from essim.model.shape import PRESETS, ModelShape, Moe
from essim.simulate.memory import memory
from essim.simulate.plan import load_scenario
from essim.simulate.scenario import Scenario
from essim.simulate.sweep import Simulator
from essim.step.kinds import KINDS, Case, Point, Work
from essim.step.ops import Op, decode_step, prefill_step
from essim.step.price import CostModel

ROOT = Path(__file__).parents[2]
PROFILE = load_profile(FIRST_DAY)
ROCKET = RocketKV(prompt_budget=4096, page_tokens=4, top_pages=32, kv_block_tokens=4)
ROUTING = Routing(where="cpu", anchor="mid")
LLAMA = PRESETS["llama-3.1-8b"].model_dump()
WINDOWS = {"mixers": ["sliding"] * 3 + ["full"] * 29, "window_tokens": 1024}
LATENTS = {
    "head_dim": 192,
    "kv_heads": 32,
    "mla": {"kv_rank": 512, "rope_dim": 64, "nope_dim": 128, "v_dim": 128},
}
EXPERTS = {
    "moe": {"experts": 8, "experts_per_token": 2, "ffn": 2048, "shared_ffn": 512},
    "mlps": ["dense"] + ["moe"] * 31,
}
HYBRID = {
    "mixers": (["recurrent"] * 3 + ["full"]) * 8,
    "recurrent": {"weights": 10**6, "state_bytes": 10**5},
}


def shape(**changes: object) -> ModelShape:
    return ModelShape(**LLAMA | changes)


def work(kind: str, model: ModelShape, batch: int = 1, context: int = 4096, **at) -> Work:
    point = Point(batch, batch, np.array([context], dtype=np.int64), **at)
    return KINDS[kind].work(Case(model, ROCKET, ROUTING), point)


def scenario(file: Path, **model: object) -> Scenario:
    settings = (f"model.{k}={json.dumps(v)}" for k, v in model.items())
    return load_scenario(file, ["selector={kind: dense}", *settings])[0]


def kinds(ops: tuple[Op, ...], start: str) -> list[str]:
    return [op.kind for op in ops if op.name.startswith(start)]


@given(st.lists(st.sampled_from(["full", "sliding"]), min_size=1, max_size=12), st.data())
def test_what_attends_is_what_holds_kv(mixers: list[str], data: st.DataObject) -> None:
    """One mask: bytes of the cache are those the step's attention ops read, op by op."""
    context = data.draw(st.integers(1, 5000))
    model = shape(layers=len(mixers), mixers=mixers, window_tokens=1024)
    ops = decode_step(model, Dense(), ROUTING)
    read = sum(
        float(work(kind, model, context=context).byte_count[0]) for kind in kinds(ops, "attn.")
    )
    assert read == model.kv_bytes(context, context)


def test_a_window_is_attended_densely_and_counts_evicted_tokens() -> None:
    model = shape(**WINDOWS)
    for context, evicted, held in ((500, 0, 500), (5000, 0, 1024), (500, 9000, 1024)):
        found = work("attn_window", model, context=context, evicted_tokens=evicted)
        dense = work("attn_dense", model, context=held)
        assert found.axes["context_tokens"] == held
        assert (found.byte_count, found.flops) == (dense.byte_count, dense.flops)


def test_only_layers_with_full_attention_are_routed_and_evicted() -> None:
    model = shape(**WINDOWS)
    ops = decode_step(model, ROCKET, ROUTING)
    assert kinds(ops, "attn.") == ["attn_window"] * 3 + ["attn_sparse"] * 29
    assert [op.name for op in ops if op.kind == "cpu_route"] == [f"route.{i}" for i in range(3, 32)]
    prefill = prefill_step(model, ROCKET, ROUTING, 40960)
    assert kinds(prefill, "attn.")[2:4] == ["attn_prefill_window", "attn_prefill"]
    assert len(kinds(prefill, "stage1.")) == len(kinds(prefill, "copy.")) == 29


@pytest.mark.parametrize(("rows", "pairs"), [(1024, 1024**2 / 2), (4096, 1024 * 3584)])
def test_a_prefill_computes_the_band_below_the_diagonal(rows: int, pairs: float) -> None:
    found = work("attn_prefill_window", shape(**WINDOWS), batch=rows)
    assert found.flops == 4 * pairs * 4096
    # Only what is whole is what a table of whole triangles was measured for.
    assert found.table == ("attn_prefill" if rows == 1024 else "attn_prefill_window")


def test_memory_caps_windows_and_summarises_routed_layers_only(scenario_file) -> None:
    overrides = [f"model.{key}={json.dumps(value)}" for key, value in WINDOWS.items()]
    base, _ = load_scenario(scenario_file(("output_tokens: 16", "output_tokens: 1")), overrides)
    need = memory(base, PROFILE)
    assert need.kv_bytes == (29 * 4096 + 3 * 1024) * 4096
    assert need.kv_peak_bytes == (29 * 40960 + 3 * 1024) * 4096
    assert need.summary_cpu_bytes == 29 * 4096 * 512
    assert need.proxy_gpu_bytes == 29 * 2**20


def test_a_latent_is_read_once_for_all_heads() -> None:
    model = shape(**LATENTS)
    found = work("attn_mla", model, batch=2, context=1000)
    assert found.byte_count == 2 * 1000 * 576 * 2
    assert found.flops == 2 * 1000 * 32 * 2 * (576 + 512)
    ops = [op.name for op in decode_step(model, Dense(), ROUTING)]
    assert ops[1:8] == ["norm1.0", "qkv.0", "rope.0", "absorb_q.0", "attn.0", "absorb_v.0", "o.0"]
    assert [op.kind for op in prefill_step(model, Dense(), ROUTING, 40960)][4:6] == [
        "gemm_kv_b",
        "attn_prefill_mla",
    ]
    # The two absorbed matrices are the expansion of the latent, no more and no less.
    absorbed = sum(work(f"mla_absorb_{part}", model, batch=1).flops for part in "qv")
    assert absorbed == 2 * np.prod(model.gemm_shape("kv_b"))


def test_tokens_share_the_experts_they_read() -> None:
    moe = Moe(experts=8, experts_per_token=2, ffn=2048)
    assert moe.distinct_experts(1) == pytest.approx(2)
    assert moe.distinct_experts(2) == pytest.approx(8 * (1 - 0.75**2)) == pytest.approx(3.5)
    assert moe.distinct_experts(1000) == pytest.approx(8)
    one, many = (work("moe_down", shape(**EXPERTS), batch=batch) for batch in (1, 1000))
    matrix, shared = 4096 * 2048, 4096 * 512
    activations = 2 * (2 * (4096 + 2048) + 4096 + 512)
    assert one.byte_count == pytest.approx(2 * (2 * matrix + shared) + activations)
    assert many.byte_count == pytest.approx(2 * (8 * matrix + shared) + 1000 * activations)
    assert many.flops == 1000 * one.flops == 1000 * 2 * (2 * matrix + shared)


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 512))
def test_distinct_experts_lie_between_one_tokens_and_all(k: int, more: int, tokens: int) -> None:
    moe = Moe(experts=k + more, experts_per_token=k, ffn=8)
    found = moe.distinct_experts(tokens)
    assert k * (1 - 1e-9) <= found <= min(k + more, tokens * k) * (1 + 1e-9)


def test_layers_have_the_mlp_they_list() -> None:
    ops = decode_step(shape(**EXPERTS), Dense(), ROUTING)
    assert kinds(ops, "gate_up.") == ["gemm_gate_up"] + ["moe_gate_up"] * 31
    assert len(kinds(ops, "router.")) == 31


@pytest.mark.parametrize("family", [WINDOWS, LATENTS, EXPERTS, LATENTS | EXPERTS])
def test_both_engines_simulate_every_family(scenario_file, family: dict) -> None:
    point = scenario(scenario_file(), **family)
    rows = [Simulator(engine=engine).rows([point])[0] for engine in ("des", "maxplus")]
    assert rows[0]["status"] == "ok"
    assert rows[0]["step_s"] == rows[1]["step_s"] > 0


def test_layers_without_attention_have_bytes_but_no_time(scenario_file) -> None:
    point = scenario(scenario_file(), **HYBRID)
    need = memory(point, PROFILE)
    assert need.kv_bytes == 8 * (40960 + 15) * 4096
    assert need.state_bytes == 24 * 10**5
    attention = 24 * (4096 * 6144 + 4096 * 4096)
    assert need.weight_bytes == 2 * (8_030_261_248 - attention + 24 * 10**6)
    with pytest.raises(
        InputError, match=r"model.mixers: layer 0 is 'recurrent': without attention"
    ):
        Simulator().rows([point])


def test_ranks_have_bytes_but_no_time(scenario_file) -> None:
    point = scenario(scenario_file(), tp=4)
    need = memory(point, PROFILE)
    assert need.kv_bytes == (40960 + 15) * 32768
    assert need.weight_bytes < memory(scenario(scenario_file()), PROFILE).weight_bytes / 3.9
    with pytest.raises(InputError, match=r"model.tp: a step on 4 ranks cannot be timed"):
        Simulator().rows([point])


def test_the_host_serves_the_routers_of_all_ranks(scenario_file) -> None:
    one, four = (
        memory(load_scenario(scenario_file(), [f"model.tp={tp}"])[0], PROFILE) for tp in (1, 4)
    )
    assert four.summary_cpu_bytes == one.summary_cpu_bytes
    side = ["routing=gpu_side-mid", "model.tp=4"]
    split = memory(load_scenario(scenario_file(), side)[0], PROFILE)
    assert 4 * split.summary_gpu_bytes == one.summary_cpu_bytes


@pytest.mark.parametrize(
    ("family", "obstacle"),
    [
        (LATENTS, "multi-head latent attention"),
        (HYBRID, "layer 0 is 'recurrent', without attention"),
        ({"mixers": ["sliding"] * 32, "window_tokens": 64}, "no layer with full attention"),
    ],
)
def test_pages_are_not_selected_where_there_are_none(scenario_file, family, obstacle) -> None:
    overrides = [f"model.{key}={json.dumps(value)}" for key, value in family.items()]
    with pytest.raises(InputError) as error:
        load_scenario(scenario_file(), overrides)
    assert f"selector rocketkv on llama-3.1-8b: {obstacle}. Use kind: dense" in str(error.value)


def test_fp8_gemms_run_on_the_fp8_peak_and_half_the_bytes() -> None:
    model = shape(weight_dtype="fp8")
    assert PROFILE.spec.gpu.flops_per_s("fp8") == 1979e12
    prices = {}
    for dtype in ("bf16", "fp8"):
        costs = CostModel(PROFILE, Case(shape(weight_dtype=dtype), ROCKET, ROUTING))
        prices[dtype] = [
            float(costs.floor_s(work("gemm_down", costs.case.model, batch=rows)))
            for rows in (1, 40960)
        ]
    weights, flops = 4096 * 14336, 2 * 4096 * 14336
    assert prices["fp8"][0] == pytest.approx((weights + 2 * 18432) / 4.3e12 + 0.5e-6)
    assert prices["bf16"][1] == pytest.approx(40960 * flops / 989e12 + 0.5e-6)
    assert prices["fp8"][1] == pytest.approx(40960 * flops / 1979e12 + 0.5e-6)
    head = work("head", model)
    assert head.byte_count == work("head", shape()).byte_count
    assert head.dtype == "bf16"


def test_without_an_fp8_peak_fp8_runs_at_that_of_bf16() -> None:
    gpu = PROFILE.spec.gpu.model_copy(update={"fp8_flops_per_s": None})
    assert gpu.flops_per_s("fp8") == 989e12


def test_fp8_weights_halve_the_window_of_mid(scenario_file) -> None:
    """From o_proj to the next layer's attention little runs but GEMMs."""
    windows, sources = {}, {}
    simulator = Simulator()
    for dtype in ("bf16", "fp8"):
        file = scenario_file(("llama-3.1-8b", f"{{preset: llama-3.1-8b, weight_dtype: {dtype}}}"))
        run = simulator.decode(load_scenario(file)[0])
        prices = {kind: float(price.mean_s[0]) for kind, price in run.prices.items()}
        main = [op for op in run.ops if op.stream == "gpu"]
        names = [op.name for op in main]
        between = main[names.index("publish.5") + 1 : names.index("await.5")]
        windows[dtype] = sum(prices[op.kind] for op in between)
        sources[dtype] = run.sources(1).worst["gemm_down"]
    assert windows["bf16"] == pytest.approx(113.2e-6, rel=0.01)
    # Half the bytes; launches and what is no GEMM take as long.
    assert windows["fp8"] / windows["bf16"] == pytest.approx(0.625, abs=0.01)
    assert sources == {"bf16": "measured", "fp8": "transferred"}


def test_tied_embeddings_save_bytes_but_no_time(scenario_file) -> None:
    rows = [
        Simulator().rows([scenario(scenario_file(), tied_embeddings=tied)])[0]
        for tied in (True, False)
    ]
    assert rows[0]["step_s"] == rows[1]["step_s"]


def test_the_command_line_says_what_was_assumed(scenario_file, tmp_path: Path) -> None:
    fields = {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 100,
        "max_position_embeddings": 65536,
    }
    (tmp_path / "config.json").write_text(json.dumps(fields))
    file = scenario_file(("llama-3.1-8b", "config.json"))
    command = [sys.executable, "-m", "essim", "run", str(file), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        f"warning: {tmp_path / 'config.json'}:1: num_key_value_heads is absent: 4 taken, "
        "one for each attention head"
    ]
    assert json.loads(done.stdout)["row"]["model"] == tmp_path.name
