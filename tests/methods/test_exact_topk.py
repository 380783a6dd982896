"""Exact top-k: every key is read, V of the chosen only, and never on the CPU."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from essim.hardware.profile import find_profile, load_profile
from essim.methods.routing import Routing
from essim.methods.selectors.exact_topk import ExactTopK
from essim.model.shape import PRESETS
from essim.simulate.derivation import derivation, facts, largest_batches
from essim.simulate.plan import load_scenario
from essim.simulate.sweep import Simulator
from essim.step.kinds import KINDS, Case, Point
from essim.step.ops import decode_step, prefill_step

LLAMA = PRESETS["llama-3.1-8b"]
TOP = ExactTopK(top_tokens=2048)
INLINE = Routing(where="gpu", anchor="target")
EARLY = Routing(where="gpu_side", anchor="mid")
ROCKETKV = "kind: rocketkv, prompt_budget: 4096, page_tokens: 4, top_pages: 32, kv_block_tokens: 4"


def at(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int64)


def rows(scenario_file, *overrides: str, more: str = "") -> list[dict]:
    file = scenario_file((ROCKETKV, "kind: exact_topk, top_tokens: 2048"), more=more)
    _, points = load_scenario(file, overrides)
    return Simulator().rows(points)


def test_it_attends_to_the_top_tokens() -> None:
    assert TOP.attended_tokens(at(50, 2048, 40960)).tolist() == [50, 2048, 2048]
    assert TOP.kept_prompt_tokens(40960) == 40960
    assert TOP.summary_bytes_per_token_layer(LLAMA) == 0.0
    assert TOP.channels(32, 128) == 128
    assert TOP.index_bytes(LLAMA, at(50, 40960)).tolist() == [8 * 50 * 4, 8 * 2048 * 4]


def test_it_reads_all_keys_and_v_of_the_chosen() -> None:
    point = Point(3, 3, at(32768))
    case = Case(LLAMA, TOP, INLINE)
    route, attention = (
        KINDS[kind].work(case, point) for kind in ("gpu_route_stepwise", "attn_sparse")
    )
    assert route.byte_count.tolist() == [3 * 32768 * 2048.0]
    assert route.flops.tolist() == [3 * 2 * 32 * 32768 * 128.0]
    assert route.launches == 4
    assert attention.byte_count.tolist() == [3 * 2048 * 2048.0]
    # A proxy's scores are not the real query's: the chosen keys are read again.
    early = KINDS["attn_sparse"].work(Case(LLAMA, TOP, EARLY), point)
    assert early.byte_count.tolist() == [3 * 2048 * 4096.0]


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_it_never_saves_more_than_half_the_reads(context: int, top: int) -> None:
    for routing in (INLINE, EARLY):
        case = Case(LLAMA, ExactTopK(top_tokens=top), routing)
        mean = case.mean_read_tokens(at(context))[0]
        assert context / 2 <= mean <= 1.5 * context
    assert (
        Case(LLAMA, ExactTopK(top_tokens=top), INLINE).mean_read_tokens(at(context))[0] <= context
    )


def test_it_has_no_summaries_to_build_or_update() -> None:
    for where in (INLINE, EARLY):
        kinds = {op.kind for op in prefill_step(LLAMA, TOP, where, 40960)}
        assert not kinds & {"stage1_select", "summary_build", "summary_d2h"}
    kinds = [op.kind for op in decode_step(LLAMA, TOP, EARLY)]
    assert kinds.count("gpu_route_stepwise") == kinds.count("gpu_proxy") == 31


def test_the_cpu_is_refused_by_name_in_its_row(scenario_file) -> None:
    on_gpu, on_cpu = rows(scenario_file, more="sweep: {routing: [gpu_side-mid, cpu-mid]}\n")
    assert on_gpu["status"] == "ok"
    assert on_gpu["top_tokens"] == 2048
    assert on_cpu["status"] == "infeasible"
    assert on_cpu["reason"].startswith("exact_topk scores every cached key")
    assert on_cpu["decode_tokens_per_s"] is None


def test_a_cpu_baseline_leaves_no_gain_and_says_why(scenario_file) -> None:
    more = "compare: {baseline: cpu-target}\n"
    (row,) = rows(scenario_file, "routing=gpu-target", more=more)
    assert row["status"] == "ok"
    assert row["decode_gain_frac"] is None
    assert row["reason"].startswith("no gain, since the baseline does not run: exact_topk scores")


def test_its_memory_has_no_summary_and_one_largest_batch(scenario_file) -> None:
    file = scenario_file((ROCKETKV, "kind: exact_topk, top_tokens: 2048"))
    base, _ = load_scenario(file, ["routing=gpu-target"])
    profile = load_profile(find_profile(base.hardware, Path()))
    assert set(largest_batches(base, profile)) == {"GPU"}
    texts = [*facts(base, profile, None), *(str(line) for line in derivation(base, profile))]
    assert texts[0].startswith("Largest batch with the KV on the GPU: ")
    assert not [text for text in texts if "stage-1" in text or "summary pool" in text]


def test_the_oracle_reads_more_than_quest_but_less_than_dense(scenario_file) -> None:
    overrides = ("routing=gpu-target", "workload.input_tokens=32768")
    (oracle,) = rows(scenario_file, *overrides)
    quest = "selector={kind: quest, budget_tokens: 2048, per: kv_head}"
    (quest_row,) = rows(scenario_file, *overrides, quest)
    assert quest_row["mean_read_tokens"] < oracle["mean_read_tokens"] < 32768 + 15
    assert oracle["read_ratio"] == pytest.approx(1.83, abs=0.01)
