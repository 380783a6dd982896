"""Deployments, metrics and plans on a machine that tests know."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from h200 import H200, ROOT

from essim.errors import InputError
from essim.serving import report
from essim.serving.deployment import deploy, serve
from essim.serving.keys import Asked, Slo, load_asked
from essim.serving.load import Fleet, Limits, Load, Pool, Request
from essim.serving.metrics import by_batches, kept_share, latency_rows, request_rows, seen
from essim.serving.plan import Planner
from essim.serving.saving import sentences
from essim.serving.traffic import offered
from essim.simulate.scenario import find_scenario

# A replica with few batches to price.
SMALL = "server={replicas: 1, max_batch: 16, token_budget: 512}"


def asked_of(*overrides: str) -> Asked:
    return load_asked(find_scenario("chat-service"), ["traffic.requests=120", *overrides])


def served(asked: Asked, **options):
    offer = offered(asked.traffic, ROOT, seed=0)
    deployment = deploy(asked, H200, max(r.input_tokens for r in offer.requests))
    assert deployment.reason == ""
    return deployment, offer, serve(deployment, offer, **options)


def test_a_deployments_numbers_follow_from_its_requests() -> None:
    asked = asked_of("server.replicas=1", "traffic.rate=10")
    deployment, offer, found = served(asked)
    own = seen(found, asked.slo)
    row = report.deployment_row(deployment, offer, found, own)
    rows = request_rows(found, own)
    made = sum(r.output_tokens for r in offer.requests)
    end = max(r["finish_s"] for r in rows) - rows[0]["arrival_s"]
    assert row["output_tokens_per_s"] == pytest.approx(made / end)
    assert row["tokens_per_s_per_gpu"] == row["output_tokens_per_s"]
    span = rows[-1]["arrival_s"] - rows[0]["arrival_s"]
    counted = [r for r in rows if r["arrival_s"] - rows[0]["arrival_s"] >= 0.1 * span]
    assert [r for r in rows if r["counted"]] == counted
    assert row["kept_frac"] == np.mean([r["keeps"] for r in counted])
    for one in rows:
        assert one["ttft_s"] == pytest.approx(one["first_token_s"] - one["arrival_s"])
        assert one["e2e_s"] == pytest.approx(one["finish_s"] - one["arrival_s"])
    tpot = latency_rows(found, own)[1]
    assert tpot["p50_s"] == pytest.approx(np.nanmedian([r["tpot_s"] for r in counted]))
    moments = report.over_time(found, deployment)
    assert {key: moments[-1][key] for key in ("waiting", "prefilling", "decoding", "kv_frac")} == {
        "waiting": 0,
        "prefilling": 0,
        "decoding": 0,
        "kv_frac": 0,
    }
    slices = [e for e in report.trace(found)["traceEvents"] if e["ph"] == "X"]
    assert sum(e["dur"] for e in slices) / 1e6 == pytest.approx(found.outcomes[0].busy_ps[0] / 1e12)


def test_both_engines_serve_a_scenario_alike() -> None:
    asked = asked_of("traffic.requests=40", SMALL, "server.replicas=2", "routing=cpu-mid")
    _, _, fast = served(asked)
    _, _, slow = served(asked, engine="des")
    assert fast.records == slow.records
    assert report.exposed_frac(fast) == report.exposed_frac(slow)


def test_a_request_keeps_all_limits_or_none() -> None:
    asked = asked_of("server.replicas=1", "traffic.rate=20")
    _, _, found = served(asked)
    shares = {
        name: kept_share(found, slo)
        for name, slo in {
            "ttft": Slo(ttft_s=0.06),
            "tpot": Slo(tpot_s=0.0075),
            "both": Slo(ttft_s=0.06, tpot_s=0.0075),
        }.items()
    }
    assert 0 < shares["both"] < min(shares["ttft"], shares["tpot"]) < 1
    for slo in (Slo(ttft_s=0.06, tpot_s=0.0075), Slo(e2e_s=2)):
        own = seen(found, slo)
        assert kept_share(found, slo) == own.keeps[own.counted].mean()
    # A request of one token has no TPOT: it keeps any limit of it.
    one = asked_of(SMALL, "traffic.requests=60", "traffic.rate=5", "traffic.output_tokens=1")
    _, _, short = served(one)
    assert kept_share(short, Slo(tpot_s=1e-9)) == 1.0
    assert kept_share(short, Slo(ttft_s=10)) == 1.0
    # A request's ITL is at its own quantile: all but one gap in a hundred may be longer.
    limits = [
        Slo.model_validate({"itl_s": {"limit_s": 0.02, "quantile": q}}) for q in (0.5, 0.9, 1.0)
    ]
    kept = [kept_share(found, slo) for slo in limits]
    assert kept == sorted(kept, reverse=True)
    assert kept[0] > kept[-1]


def test_batch_means() -> None:
    values = [np.array([float(i // 10)]) for i in range(200)]
    # Twenty batches of 0, 1, ..., 19: mean 9.5, standard error sqrt(35) / sqrt(20).
    low, high = by_batches(values, "mean")
    assert (low, high) == pytest.approx((9.5 - 2.093 * 35**0.5 / 20**0.5, 9.5 + 2.093 * 1.75**0.5))
    assert by_batches(values[:39], "mean") == (None, None)


def test_overload_is_said_instead_of_latencies() -> None:
    asked = asked_of(SMALL, "traffic.rate=500", "traffic.requests=600")
    deployment, offer, found = served(asked)
    row = report.deployment_row(deployment, offer, found, seen(found, asked.slo))
    assert row["kept_frac"] is None
    assert row["goodput_per_s"] is None
    (said,) = report.verdict(row, asked.slo, found.bad)
    assert said.startswith("Overload: the queue grows by ")
    calm = asked_of("server.replicas=1", "traffic.rate=5")
    deployment, offer, found = served(calm)
    row = report.deployment_row(deployment, offer, found, seen(found, calm.slo))
    assert row["queue_growth_per_s"] is None
    assert row["kept_frac"] == 1.0


def test_the_pool_is_what_weights_and_activations_leave() -> None:
    own = deploy(asked_of(), H200, 8192)
    memory, model = own.memory, own.point.model
    # 16-bit rows of 4096: residual and normed twice, and three times the MLP's width; logits.
    activations = 2048 * (2 * 4096 + 3 * 14336) * 2 + 128 * 128256 * 4
    scores = 32 * 32 * 8192 * 4
    assert memory.activation_bytes == activations + scores
    assert memory.weight_bytes == model.weight_bytes()
    # A block of four tokens: K and V, and min and max in a byte each of a page, of 32 layers.
    assert memory.block_bytes == 4 * 131072 + 2 * 1024 * 32
    held = memory.weight_bytes + memory.activation_bytes + memory.reserve_bytes + memory.pool_bytes
    assert held == H200.spec.gpu.memory_bytes.value
    assert own.pool.gpu_blocks == memory.pool_bytes // memory.block_bytes


def test_summaries_on_the_cpu_are_the_hosts_and_its_replicas_share_it() -> None:
    alone = deploy(asked_of("routing=cpu-mid"), H200, 8192)
    assert alone.memory.block_bytes == 4 * 131072
    assert alone.memory.host_block_bytes == 2 * 1024 * 32
    two = deploy(asked_of("routing=cpu-mid", "server.replicas_per_host=2"), H200, 8192)
    assert two.pool.host_blocks == pytest.approx(alone.pool.host_blocks / 2, rel=1e-2)
    three = deploy(asked_of("routing=cpu-mid", "server.replicas_per_host=3"), H200, 8192)
    assert three.reason == "24 router threads of its replicas on a host of 16 cores"


def test_an_evicting_selector_holds_the_whole_prompt_until_its_last_chunk() -> None:
    kept = lambda tokens: min(tokens, 8)  # noqa: E731
    copied, in_place = Pool(4, 100, kept=kept), Pool(4, 100, kept=kept, in_place=True)
    assert copied.prefill_blocks(32, 0) == 8 + 2
    assert in_place.prefill_blocks(32, 0) == 8
    # Computed again after a preemption: six tokens more, of which none is evicted.
    assert copied.prefill_blocks(32, 6) == 10 + 4
    assert Pool(4, 100).prefill_blocks(32, 0) == 8


def test_disaggregated_prompts_cross_the_link_one_after_another() -> None:
    keys = "{policy: disaggregated, prefill_replicas: 1, max_batch: 64, link_bytes_per_s: 1e9}"
    asked = asked_of(f"server={keys}", "traffic.rate=3", "traffic.requests=30")
    _, _, found = served(asked)
    before, after = found.outcomes
    kv = 131072 / 1e9
    for i, record in enumerate(found.records):
        times = found.token_ps(i)
        assert len(times) == record.request.output_tokens
        assert (times[0], times[-1]) == (record.first_ps, record.finish_ps)
        kept = min(record.request.input_tokens, 4096)
        if len(times) > 1:
            assert times[1] - times[0] > round(kept * kv * 1e12)
    faster = asked_of(
        f"server={keys.replace('1e9', '1e12')}", "traffic.rate=3", "traffic.requests=30"
    )
    _, _, near = served(faster)
    assert all(a.first_ps == b.first_ps for a, b in zip(found.records, near.records, strict=True))
    assert sum(r.finish_ps for r in near.records) < sum(r.finish_ps for r in found.records)
    assert before.steps != after.steps


def test_a_preempted_request_is_computed_again() -> None:
    """Two of 8 + 8 tokens in a pool of 24: the later one gives way and comes back."""
    from stubs import Linear

    from essim.serving import jump

    limits = Limits(Pool(1, 24), max_batch=2, token_budget=100, max_prefills=2)
    load = Load([Request(0, 8, 9), Request(0, 8, 9)])
    out = jump.simulate(load, Fleet(limits), Linear(step=10))
    first, second = out.records
    assert (first.preemptions, second.preemptions) == (0, 1)
    # Both tokens come each 10 ps until 24 blocks are taken: 8 + 4 of each, four ticks after 10.
    assert out.token_ps(0).tolist() == [10 * i for i in range(1, 10)]
    assert out.token_ps(1).tolist() == [10, 20, 30, 40, 50, 100, 110, 120, 130]


def planned(*overrides: str) -> tuple[Planner, list, list]:
    asked = asked_of("traffic.requests=150", "traffic.rate=60", *overrides)
    offer = offered(asked.traffic, ROOT, seed=0)
    planner = Planner(asked, offer)
    return planner, *planner.rows()


VARY = "plan.vary={routing: [gpu-target, gpu-target-fused], server.max_batch: [8, 64]}"


@pytest.mark.slow
def test_a_plan_finds_the_fewest_replicas_that_keep_the_promise() -> None:
    planner, rows, points = planned(VARY, "slo={tpot_s: 0.008, ttft_s: 1}")
    assert [row["status"] for row in rows] == ["ok", "ok", "no", "no"]
    best = rows[0]
    asked = asked_of("traffic.requests=150", "traffic.rate=60", "slo={tpot_s: 0.008, ttft_s: 1}")
    batch = best["deployment"].split()[-1]
    for replicas, keeps in ((best["gpus"], True), (best["gpus"] - 1, False)):
        changed = asked.with_(
            [
                ("routing", best["routing"]),
                ("server.max_batch", int(batch)),
                ("server.replicas", replicas),
            ]
        )
        _, _, found = served(changed)
        assert (kept_share(found, asked.slo) >= 0.95) == keeps
    assert {point["routing"] for point in points} == {"gpu-target", "gpu-target-fused"}
    said = sentences(rows, planner.offer, planner.asked)
    assert said[0].startswith("At 54.1 requests a second, gpu-target-fused, max_batch 64 keeps")
    assert len(said) == 2


@pytest.mark.slow
def test_a_plan_prices_tokens_where_a_price_is_given() -> None:
    _, rows, _ = planned("plan={price_per_hour: {h200-sxm: 3.6}}")
    (row,) = rows
    assert row["deployment"] == "as it stands"
    per_s = row["tokens_per_s_per_gpu"]
    assert row["cost_per_million_tokens"] == pytest.approx(1000 / per_s)


def test_a_plan_needs_a_promise_and_an_open_loop() -> None:
    for override, said in (
        ("slo={}", "a plan needs a promise"),
        (
            "traffic={arrivals: closed, users: 2, input_tokens: 8, output_tokens: 8}",
            "a plan needs requests that arrive by themselves",
        ),
    ):
        asked = load_asked(find_scenario("chat-service"), [override])
        with pytest.raises(InputError, match=said):
            Planner(asked, offered(asked.traffic, Path(), 0))


def test_a_saving_is_undecided_where_the_prices_allow_either() -> None:
    base = {
        "deployment": "gpu-target",
        "routing": "gpu-target",
        "selector": "rocketkv",
        "hardware": "h",
        "status": "ok",
        "gpus": 4,
        "gpus_low": 4,
        "gpus_high": 4,
        "rate_per_gpu": 1.0,
        "bound_by": "TTFT",
        "cost_per_million_tokens": None,
    }
    early = base | {"routing": "cpu-mid", "gpus": 3, "gpus_low": 3, "gpus_high": 3}
    asked = asked_of()
    offer = offered(asked.traffic, ROOT, seed=0)
    assert (
        sentences([early, base], offer, asked)[1]
        == "cpu-mid needs 3 GPUs, gpu-target 4: it saves 1."
    )
    unsure = early | {"gpus_high": 5}
    assert sentences([unsure, base], offer, asked)[1].endswith(
        "undecided, since prices allow 3 to 5 against 4 to 4."
    )
    same = base | {"routing": "cpu-mid"}
    assert sentences([same, base], offer, asked)[1].endswith("it saves none.")
    assert "No deployment" in sentences([base | {"status": "no"}], offer, asked)[0]
