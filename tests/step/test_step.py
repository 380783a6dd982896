"""What a step is made of: order, streams and waits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from essim.engines import finish_des, finish_maxplus
from essim.engines.graph import Graph
from essim.hardware.profile import shipped
from essim.methods.routing import PRESETS as ROUTINGS
from essim.methods.routing import Routing
from essim.methods.selectors.dense import Dense
from essim.methods.selectors.rocketkv import RocketKV
from essim.model.shape import PRESETS, ModelShape
from essim.simulate.plan import load_scenario
from essim.simulate.sweep import Simulator
from essim.step.ops import decode_step, prefill_step

TWO_LAYERS = ModelShape(layers=2, hidden=64, heads=4, kv_heads=2, head_dim=16, ffn=128, vocab=100)
ROCKET = RocketKV(prompt_budget=64, page_tokens=4, top_pages=2)

# `million` is for folders alone.
SCENARIOS = sorted(
    set(shipped("scenarios").glob("*.yaml")) - {shipped("scenarios") / "million.yaml"}
)


def names(ops, stream: str | None = "gpu") -> list[str]:
    return [op.name for op in ops if op.stream == stream]


def waits(ops) -> dict[str, tuple[str, ...]]:
    return {op.name: op.waits for op in ops if op.waits}


def test_dense_is_one_chain() -> None:
    ops = decode_step(TWO_LAYERS, Dense(), Routing(where="cpu", anchor="mid"))
    order = (
        "embed norm1.0 qkv.0 rope.0 attn.0 o.0 norm2.0 gate_up.0 act.0 down.0 "
        "norm1.1 qkv.1 rope.1 attn.1 o.1 norm2.1 gate_up.1 act.1 down.1 norm_final head host"
    )
    assert " ".join(names(ops)) == order
    assert len(ops) == 22
    assert waits(ops) == {}


def test_gpu_target_routes_inline_between_rope_and_attention_but_not_in_layer_0() -> None:
    ops = decode_step(TWO_LAYERS, ROCKET, Routing(where="gpu", anchor="target"))
    assert names(ops)[10:15] == ["norm1.1", "qkv.1", "rope.1", "route.1", "attn.1"]
    assert "route.0" not in names(ops)
    kinds = {op.name: op.kind for op in ops}
    assert (kinds["attn.0"], kinds["attn.1"]) == ("attn_dense", "attn_sparse")
    assert kinds["route.1"] == "gpu_route_stepwise"


def test_cpu_mid_publishes_after_o_proj_and_awaits_before_attention() -> None:
    ops = decode_step(TWO_LAYERS, ROCKET, Routing(where="cpu", anchor="mid"))
    assert " ".join(names(ops)[4:17]) == (
        "attn.0 o.0 proxy_down.1 publish.1 norm2.0 gate_up.0 act.0 down.0 "
        "norm1.1 qkv.1 rope.1 await.1 attn.1"
    )
    assert waits(ops) == {
        "anchor_d2h.1": ("publish.1",),
        "route.1": ("anchor_d2h.1",),
        "index_h2d.1": ("route.1",),
        "await.1": ("index_h2d.1",),
        "key_d2h.1": ("publish_key.1",),
        "update.1": ("key_d2h.1",),
    }
    route = next(op for op in ops if op.name == "route.1")
    assert route.waits_previous == ("update.1",)
    assert names(ops)[-3:] == ["head", "publish_key.1", "host"]


@pytest.mark.parametrize(
    ("anchor", "jobs", "keys"),
    [
        (
            "mid",
            "route.1 update.1 route.2 update.2 route.3 update.3",
            ["publish.2", "publish.3", "publish_key.3"],
        ),
        (
            "in",
            "route.1 route.2 update.1 route.3 update.2 update.3",
            ["publish.3", "publish_key.2", "publish_key.3"],
        ),
        (
            "target",
            "route.1 update.1 route.2 update.2 route.3 update.3",
            ["publish.1", "publish.2", "publish.3"],
        ),
        (
            "mix",
            "route.1 route.2 update.1 route.3 update.2 update.3",
            ["publish.3", "publish_key.2", "publish_key.3"],
        ),
    ],
)
def test_the_cpu_workers_jobs_come_in_order_and_a_key_with_the_next_publish(
    anchor: str, jobs: str, keys: list[str]
) -> None:
    four = TWO_LAYERS.model_copy(update={"layers": 4})
    mix = ["mid", "in", "in"] if anchor == "mix" else None
    ops = decode_step(four, ROCKET, Routing(where="cpu", anchor=anchor, mix=mix))
    assert " ".join(names(ops, "cpu")) == jobs
    assert [waits(ops)[f"key_d2h.{layer}"] for layer in (1, 2, 3)] == [(key,) for key in keys]


def test_in_publishes_at_the_start_of_the_layer_before() -> None:
    ops = decode_step(TWO_LAYERS, ROCKET, Routing(where="cpu", anchor="in"))
    assert names(ops)[:4] == ["embed", "proxy_down.1", "publish.1", "norm1.0"]


def test_the_full_projection_needs_no_down_projection_on_the_gpu() -> None:
    for routing in (
        Routing(where="cpu", anchor="mid", projection_rank=None),
        Routing(where="cpu", anchor="mid", down_projection="cpu"),
        Routing(where="cpu", anchor="target"),
    ):
        assert "proxy_down.1" not in names(decode_step(TWO_LAYERS, ROCKET, routing))


def test_gpu_side_forks_at_the_anchor_joins_before_attention_and_pays_the_slowdown() -> None:
    ops = decode_step(TWO_LAYERS, ROCKET, Routing(where="gpu_side", anchor="mid", kernel="fused"))
    assert waits(ops) == {"proxy.1": ("o.0",), "attn.1": ("route.1",)}
    assert names(ops, "gpu_side") == ["proxy.1", "route.1"]
    assert names(ops)[5:8] == ["o.0", "slowdown.1", "norm2.0"]


def test_prefill_moves_summaries_only_where_routing_is_on_the_cpu() -> None:
    on_cpu = prefill_step(TWO_LAYERS, ROCKET, Routing(where="cpu", anchor="mid"), 65)
    assert names(on_cpu, "d2h") == ["copy.1"]
    assert waits(on_cpu) == {"copy.1": ("summary.1",), "head": ("copy.1",)}
    assert "stage1.0" in names(on_cpu)
    on_gpu = prefill_step(TWO_LAYERS, ROCKET, Routing(where="gpu", anchor="target"), 64)
    assert "stage1.0" not in names(on_gpu)  # 64 tokens are kept: there is nothing to choose
    assert names(on_gpu, "d2h") == []
    dense = prefill_step(TWO_LAYERS, Dense(), Routing(where="gpu", anchor="target"), 65)
    assert not {"stage1.0", "summary.1"} & set(names(dense))


def test_a_layer_has_about_fifteen_ops() -> None:
    ops = decode_step(PRESETS["llama-3.1-8b"], ROCKET, Routing(where="cpu", anchor="mid"))
    assert len(ops) == 541


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*are faster than a smaller one")
@pytest.mark.filterwarnings("ignore:.*no power of two")
@pytest.mark.parametrize("file", SCENARIOS, ids=lambda f: f.stem)
def test_the_engines_agree_on_every_point_of_every_shipped_scenario(file) -> None:
    _, points = load_scenario(file)
    simulator = Simulator()
    seen = set()
    for point in points:
        key = repr(point.model_copy(update={"workload": point.workload.batch}))
        if key in seen:
            continue
        seen.add(key)
        short = point.workload.model_copy(update={"output_tokens": 4})
        run = simulator.decode(point.model_copy(update={"workload": short}))
        np.testing.assert_array_equal(
            finish_des(run.ops, run.durations_ps), finish_maxplus(run.ops, run.durations_ps)
        )


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_an_earlier_anchor_is_never_slower(seed: int, lanes: int) -> None:
    """With the ops, durations and job order of `in`, only what the router waits for is moved."""
    rng = np.random.default_rng(seed)
    model = TWO_LAYERS.model_copy(update={"layers": 5})
    early = decode_step(model, ROCKET, Routing(where="cpu", anchor="in"))
    anchors = {"in": None, "mid": "o.{}", "target": "rope.{}"}
    ends = {}
    durations = [rng.integers(0, 100, lanes) for _ in early]
    for anchor, after in anchors.items():
        # The same list; the router's payload leaves later: after o_proj, or after RoPE.
        ops, late = list(early), {}
        for i, op in enumerate(ops):
            if after and op.kind == "anchor_d2h":
                layer = op.layer
                late[i] = after.format(layer - 1 if anchor == "mid" else layer)
        for i, name in late.items():
            ops[i] = replace(ops[i], waits=(*ops[i].waits, name))
        ends[anchor] = _finish_any_order(ops, durations)
    assert (ends["in"] <= ends["mid"]).all()
    assert (ends["mid"] <= ends["target"]).all()


def _finish_any_order(ops, durations) -> np.ndarray:
    """Finish ops whose waits may name later ones: sort them, keeping each stream's order."""
    placed: list[int] = []
    done: set[str] = set()
    pending = list(range(len(ops)))
    while pending:
        for i in pending:
            stream = ops[i].stream
            first = next(j for j in pending if stream and ops[j].stream == stream) if stream else i
            if first == i and set(ops[i].waits) <= done:
                placed.append(i)
                done.add(ops[i].name)
                pending.remove(i)
                break
        else:
            raise AssertionError("the op list has a cycle")
    ordered = [ops[i] for i in placed]
    rows = [durations[i] for i in placed]
    return finish_maxplus(ordered, rows, [Graph.of(ordered).last_main])[0]


def test_every_preset_builds_a_step_for_every_model() -> None:
    for model in PRESETS.values():
        for fields in ROUTINGS.values():
            mix = ["mid"] * (model.layers - 1) if fields["anchor"] == "mix" else None
            ops = decode_step(model, ROCKET, Routing(**fields, mix=mix))
            assert len([op for op in ops if op.stage == "route"]) == model.layers - 1
