"""Every selector: what it reads and moves by hand, what early routing means to it, a row each."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from essim.cli import listing
from essim.errors import InputError
from essim.methods.routing import Routing
from essim.methods.selectors import SELECTORS, Selector
from essim.model.shape import PRESETS
from essim.simulate.plan import load_scenario
from essim.simulate.sweep import Simulator
from essim.step.kinds import KINDS, Case, Point
from essim.step.ops import decode_step, prefill_step

LLAMA = PRESETS["llama-3.1-8b"]
ROCKETKV = (
    "{kind: rocketkv, prompt_budget: 4096, page_tokens: 4, top_pages: 32, kv_block_tokens: 4}"
)
CLASSES = {
    "A": "basiskv cis compkv cpe double_sparsity exact_topk flex_bs hshare infllm infllm_v2 loki "
    "prism quest rabitqcache residualkv rocketkv sparq",
    "B": "louver vestigekv",
    "C": "core dense h2o kap psaw snapkv twinkv",
    "D": "compactattention etf flashprefill quoka",
}
# One for all: the profile is read once.
SIMULATOR = Simulator()
ALL = [(kind, letter) for letter, kinds in CLASSES.items() for kind in kinds.split()]


def of(kind: str, **settings) -> Selector:
    return SELECTORS[kind].model_validate({"kind": kind, **SELECTORS[kind].usual, **settings})


def at(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int64)


def bytes_a_token(kind: str) -> float:
    return of(kind).summary_bytes_per_token_layer(LLAMA)


def scenario(scenario_file, kind: str, *overrides: str):
    usual = ", ".join(f"{k}: {v}" for k, v in SELECTORS[kind].usual.items())
    text = f"{{kind: {kind}{', ' if usual else ''}{usual}}}"
    return load_scenario(scenario_file(), (f"selector={text}", "routing=gpu-target", *overrides))


def test_every_system_has_its_class() -> None:
    assert {kind: SELECTORS[kind].route_class() for kind in SELECTORS} == dict(ALL)


@pytest.mark.parametrize(("kind", "letter"), ALL)
def test_every_system_has_a_row_and_refuses_what_makes_no_sense(
    scenario_file, kind: str, letter: str
) -> None:
    long = ("hardware=h200-sxm", "workload.input_tokens=65536", "workload.batch=4")
    base, _ = scenario(scenario_file, kind, *long)
    (row,) = SIMULATOR.rows([base])
    assert row["status"] == "ok"
    assert row["step_s"] > 0
    early = (*long, "routing=gpu_side-mid")
    if letter in "CD" and kind != "dense":
        with pytest.raises(InputError, match=rf"anchor mid with selector {kind}: "):
            scenario(scenario_file, kind, *early)
        assert row["exposed_routing_s"] == 0
    else:
        base, _ = scenario(scenario_file, kind, *early)
        (beside,) = SIMULATOR.rows([base])
        assert beside["status"] == "ok"
        assert beside["routing"] == ("none" if kind == "dense" else "gpu_side-mid")


@pytest.mark.parametrize(("kind", "letter"), ALL)
def test_nothing_is_attended_to_twice_and_work_grows_with_the_context(
    kind: str, letter: str
) -> None:
    selector = of(kind)
    context = at(1, 7, 100, 4096, 40000, 200000)
    attended = selector.attended_tokens(context)
    assert ((attended >= 1) & (attended <= context)).all()
    assert (selector.read_tokens(LLAMA, context) <= context).all()
    work = selector.route_work(LLAMA, context, None)
    for moved in (work.read_bytes, work.flops):
        assert (np.diff(np.broadcast_to(moved, context.shape)) >= 0).all()


def test_class_c_is_dense_attention_over_what_it_keeps() -> None:
    inline = Routing(where="gpu", anchor="target")
    for kind, kept in {"h2o": 2048, "core": 2112, "kap": 1100, "psaw": 10000}.items():
        selector = of(kind)
        assert selector.attended_tokens(at(20000)).tolist() == [kept]
        point = Point(2, 2, at(20000))
        work = KINDS["attn_kept"].work(Case(LLAMA, selector, inline), point)
        assert work.byte_count.tolist() == [2 * kept * 4096]
        attention = {op.kind for op in decode_step(LLAMA, selector, inline) if op.stage == "attn"}
        assert attention == ({"attn_kept", "attn_dense"} if kind == "psaw" else {"attn_kept"})
    assert of("snapkv").kept_prompt_tokens(40960) == 4096
    assert of("twinkv").kept_prompt_tokens(40960) == 20480
    assert of("h2o").cached_tokens(40960) == 2048


def test_bytes_of_each_method_beside_the_cache() -> None:
    """Of a token in a layer of Llama-3.1-8B, whose K and V take 4096 bytes."""
    assert {
        kind: bytes_a_token(kind) for kind in SELECTORS if bytes_a_token(kind)
    } == pytest.approx(
        {
            "basiskv": 8 * (64 + 16) * 2 / 16,
            "cis": 8 * 16 * 2,
            "compkv": 3 * 2048 / 16,
            "cpe": 256,
            "double_sparsity": 256,
            "flex_bs": 256,
            "h2o": 32 * 4,
            "hshare": 256,
            "infllm": 32 * 128 * 2 / 128,
            "infllm_v2": 2048 * (1 / 16 + 1 / 64),
            "louver": 2048 / 4 + 8 * 8,
            "quest": 2 * 2048 / 16,
            "rabitqcache": 8 * 26,
            "rocketkv": 2 * 1024 / 4,
            "sparq": 2048,
            "vestigekv": 8 * (2 * 128 + 2),
        }
    )


def test_scans_read_their_share_of_a_key() -> None:
    """At 32,768 tokens of 8 KV heads, 4 query heads each."""
    tokens = at(32768)
    reads = {kind: of(kind).route_work(LLAMA, tokens, None) for kind in ("loki", "sparq")}
    for work in reads.values():
        assert work.read_bytes.tolist() == pytest.approx([32768 * 8 * 16 * 2], rel=1e-3)
        assert work.phases[1].flops.tolist() == [2.0 * 32 * 32768 * 16]
    assert reads["loki"].weight_bytes == 8 * 128 * 128 * 2
    louver = of("louver").route_work(LLAMA, tokens, None)
    assert louver.read_bytes.tolist() == [32768 * (512 + 64)]
    assert louver.launches == 1
    prism = of("prism").route_work(LLAMA, tokens, None)
    assert prism.device_s.tolist() == pytest.approx([8 * 13e-9])
    assert of("prism").traffic_ratio(65536) == 16


def test_shared_choices_cost_their_share() -> None:
    tokens = at(32768)
    whole = of("double_sparsity").route_work(LLAMA, tokens, None)
    assert of("hshare").retrieval_frac() == 0.375
    settings = {"per_steps": 2, "layers_frac": 0.75, "heads_frac": 0.75}
    assert of("hshare", **settings).retrieval_frac() == 0.28125
    half = of("hshare").route_work(LLAMA, tokens, None)
    assert half.read_bytes.tolist() == pytest.approx((0.375 * whole.read_bytes).tolist())
    # Labels each step, and five kernels of a retrieval in three steps of eight.
    assert (whole.launches, half.launches) == (6, 1 + 0.375 * 5)
    assert of("cis").retrieval_frac() == pytest.approx(0.164)
    assert "16.4%" in of("cis").assumes()


def test_infllm_keeps_its_cache_on_the_host(scenario_file) -> None:
    selector = of("infllm")
    assert selector.fetched_bytes(LLAMA, at(65536)).tolist() == pytest.approx([204.8 * 4096])
    ops = {
        op.name: op for op in decode_step(LLAMA, selector, Routing(where="gpu", anchor="target"))
    }
    assert ops["fetch.1"].waits == ("route.1",)
    assert "fetch.1" in ops["attn.1"].waits
    assert "fetch.0" not in ops
    base, _ = scenario(scenario_file, "infllm", "workload.input_tokens=65536")
    (row,) = Simulator().rows([base])
    assert row["kv_bytes"] == (32 * 128 + 128 + 4096) * 131072
    assert row["summary_cpu_bytes"] >= 65536 * 131072


def test_prefill_methods_thin_the_prompt_and_decode_densely() -> None:
    inline = Routing(where="gpu", anchor="target")
    quoka = of("quoka")
    kinds = [op.kind for op in prefill_step(LLAMA, quoka, inline, 32768)]
    assert kinds.count("prefill_select") == kinds.count("attn_prefill_sparse") == 32
    attention = {op.kind for op in decode_step(LLAMA, quoka, inline) if op.stage == "attn"}
    assert attention == {"attn_dense"}
    assert of("etf").prefill_density(1000) == 0.875
    assert of("flashprefill").prefill_density(12800) == pytest.approx(0.4575)


def test_a_sweep_over_routings_has_what_routes_nothing_once(scenario_file) -> None:
    more = f"sweep: {{selector: [{ROCKETKV}, {{kind: snapkv}}], routing: [gpu-target, cpu-mid]}}\n"
    _, points = load_scenario(scenario_file(more=more))
    found = [(p.selector.kind, p.routing.name) for p in points]
    assert found == [
        *(("rocketkv", "gpu-target"), ("rocketkv", "cpu-mid"), ("snapkv", "gpu-target"))
    ]


def test_keys_in_the_cache_are_not_scored_on_the_cpu(scenario_file) -> None:
    base, _ = scenario(scenario_file, "loki", "routing=cpu-mid")
    (row,) = Simulator().rows([base])
    assert (row["status"], row["reason"]) == (
        "infeasible",
        "the keys that loki scores lie in the KV cache",
    )


def test_a_row_says_what_it_assumes_and_what_an_early_query_loses(scenario_file) -> None:
    base, _ = scenario(scenario_file, "louver", "hardware=h200-sxm", "routing=gpu_side-mid")
    (row,) = SIMULATOR.rows([base])
    assert row["assumes"] == (
        "17.5% of tokens pass the threshold (published: 15 to 20 %); routed early it loses its "
        "guarantee: an early query's scores bound no token's own"
    )
    base, _ = scenario(scenario_file, "snapkv", "hardware=h200-sxm")
    assert SIMULATOR.rows([base])[0]["assumes"] is None


def test_the_list_says_class_needs_memory_and_prices() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        entries = {entry["name"]: entry for entry in listing.selectors()}
    assert {k: entries["quest"][k] for k in ("class", "chooses", "needs", "bytes_per_token")} == {
        "class": "A",
        "chooses": "page",
        "needs": "query",
        "bytes_per_token": "8,192",
    }
    sources = {name: entry["router_price"] for name, entry in entries.items()}
    assert sources["quest"] == sources["rocketkv"] == "measured on h200-sxm"
    assert sources["loki"] == "transferred"
    assert sources["h2o"] == "none needed"
