"""Quest: pages, bytes and routing work by hand, and what a scenario with it gives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from firstday import FIRST_DAY
from hypothesis import given
from hypothesis import strategies as st

from essim.errors import InputError
from essim.hardware.profile import load_profile
from essim.methods.routing import Routing
from essim.methods.selectors.quest import Quest
from essim.model.shape import PRESETS
from essim.simulate.memory import memory
from essim.simulate.plan import load_scenario
from essim.simulate.sweep import Simulator
from essim.step.kinds import KINDS, Case, Point
from essim.step.ops import decode_step, prefill_step
from essim.step.price import SOURCES, CostModel
from reports.verdict import run_verdict

LLAMA = PRESETS["llama-3.1-8b"]
PROFILE = load_profile(FIRST_DAY)
INLINE = Routing(where="gpu", anchor="target")
ROCKETKV = (
    "selector: {kind: rocketkv, prompt_budget: 4096, page_tokens: 4, top_pages: 32, "
    "kv_block_tokens: 4}"
)


def at(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int64)


def quest_file(scenario_file, fields: str, more: str = "") -> Path:
    return scenario_file((ROCKETKV, f"selector: {{kind: quest, {fields}}}"), more=more)


def rows(file: Path, *overrides: str) -> list[dict]:
    _, points = load_scenario(file, overrides)
    return Simulator().rows(points)


def test_a_budget_is_tokens_or_pages() -> None:
    resolved = Quest(budget_tokens=64).resolve(1000, 10, 128)
    assert (resolved.top_pages, resolved.page_tokens, resolved.budget_tokens) == (4, 16, None)
    same = Quest(top_pages=4)
    context = np.arange(1, 300)
    assert (Quest(budget_tokens=64).attended_tokens(context) == same.attended_tokens(context)).all()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "give one of budget_tokens and top_pages"),
        ({"budget_tokens": 64, "top_pages": 4}, "give one of budget_tokens and top_pages"),
        ({"budget_tokens": 100}, r"budget_tokens \(100\) must be a multiple of page_tokens \(16\)"),
        ({"top_pages": 4, "kv_block_tokens": 24}, "must be a multiple of page_tokens"),
        ({"top_pages": 4, "summary_dtype": "fp7"}, "unknown dtype 'fp7'"),
        ({"top_pages": 4, "dense_layer_count": 0}, "greater than or equal to 1"),
        ({"top_pages": 4, "per": "head"}, "'query_head' or 'kv_head'"),
    ],
)
def test_impossible_settings_are_refused(fields, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Quest(**fields)


def test_the_last_page_is_one_of_the_chosen() -> None:
    """64 pages of 16 at 4,097 tokens: 63 whole pages and the one token of the last."""
    selector = Quest(top_pages=64)
    assert selector.attended_tokens(at(4096, 4097, 4098, 4112)).tolist() == [1024, 1009, 1010, 1024]
    assert selector.selected_tokens(at(4097)).tolist() == [1008]
    assert Quest(top_pages=1).attended_tokens(at(16, 17)).tolist() == [16, 1]


@pytest.mark.parametrize("per", ["query_head", "kv_head"])
def test_a_context_below_the_budget_reads_what_dense_reads(per: str) -> None:
    selector = Quest(budget_tokens=64, per=per).resolve(50, 1, 128)
    assert -(-50 // selector.page_tokens) == selector.top_pages == 4
    assert selector.attended_tokens(at(50)).tolist() == [50]
    assert selector.read_tokens(LLAMA, at(50)).tolist() == [50.0]
    case = Case(LLAMA, selector, INLINE)
    point = Point(2, 2, at(50))
    sparse, dense = KINDS["attn_sparse"].work(case, point), KINDS["attn_dense"].work(case, point)
    assert sparse.byte_count.tolist() == dense.byte_count.tolist() == [2 * 50 * 4096.0]


def test_query_heads_that_choose_for_themselves_read_up_to_a_group_more() -> None:
    shared, own = Quest(top_pages=64, per="kv_head"), Quest(top_pages=64)
    assert shared.read_tokens(LLAMA, at(40961)).tolist() == [1009.0]
    # 4 query heads a KV head: 4 x 63 pages, and the last page once.
    assert own.read_tokens(LLAMA, at(40961)).tolist() == [4 * 1008 + 1.0]
    assert own.attended_tokens(at(40961)).tolist() == [1009]
    assert own.read_tokens(LLAMA, at(2000)).tolist() == [2000.0]


@given(
    st.integers(1, 30000),
    st.integers(1, 32),
    st.integers(1, 64),
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["query_head", "kv_head"]),
)
def test_reads_lie_between_what_is_attended_and_the_whole_cache(
    context, page, top, factor, per
) -> None:
    selector = Quest(top_pages=top, page_tokens=page, kv_block_tokens=page * factor, per=per)
    attended = selector.attended_tokens(at(context))[0]
    read = selector.read_tokens(LLAMA, at(context))[0]
    group = 4 if per == "query_head" else 1
    assert attended <= min(context, top * page)
    assert attended - 1e-6 <= read <= min(context, group * top * page * factor) + 1e-6


def test_bytes_and_work_of_llama() -> None:
    selector = Quest(budget_tokens=2048)
    per_token = LLAMA.layers * selector.summary_bytes_per_token_layer(LLAMA)
    assert per_token == 8 * 1024
    assert per_token / LLAMA.kv_bytes_per_token() == 0.0625
    work = selector.route_work(LLAMA, at(32768, 32769), 32)
    # Min and max of 8 x 128 channels in 16 bits, whatever channels the routing asks for.
    assert work.read_bytes.tolist() == [2048 * 4096, 2049 * 4096]
    assert work.flops.tolist() == [2 * 32 * 2048 * 128, 2 * 32 * 2049 * 128]
    assert selector.channels(32, 128) == 128
    assert selector.index_bytes(LLAMA, at(33, 32768)).tolist() == [32 * 3 * 4, 32 * 127 * 4]
    shared = Quest(budget_tokens=2048, per="kv_head")
    assert shared.index_bytes(LLAMA, at(32768)).tolist() == [8 * 127 * 4]
    assert (
        Quest(budget_tokens=2048, summary_dtype="fp8").summary_bytes_per_token_layer(LLAMA) == 128
    )


def test_nothing_is_evicted_and_prefill_only_builds_summaries(scenario_file) -> None:
    selector = Quest(budget_tokens=2048, dense_layer_count=2)
    assert selector.kept_prompt_tokens(40960) == 40960
    small = LLAMA.model_copy(update={"layers": 3})
    on_cpu = Routing(where="cpu", anchor="mid")
    kinds = [op.kind for op in prefill_step(small, selector, on_cpu, 40960)]
    assert "stage1_select" not in kinds
    assert kinds.count("summary_build") == kinds.count("summary_d2h") == 1
    base, _ = load_scenario(quest_file(scenario_file, "budget_tokens: 2048"))
    need = memory(base, PROFILE)
    # 40960 + 15 tokens in blocks of 16.
    assert need.kv_bytes == 40976 * 131072
    assert need.summary_cpu_bytes == 40976 * 8192
    assert need.activation_bytes == 40960 * (2 * 4096 + 3 * 14336) * 2 + 128256 * 4


def test_the_first_layers_are_dense() -> None:
    ops = decode_step(LLAMA, Quest(top_pages=128, dense_layer_count=2), INLINE)
    attention = [op.kind for op in ops if op.kind.startswith("attn")]
    assert attention == ["attn_dense"] * 2 + ["attn_sparse"] * 30
    assert len([op for op in ops if op.kind == "gpu_route_stepwise"]) == 30


def test_more_dense_layers_than_layers_are_refused(scenario_file) -> None:
    file = quest_file(scenario_file, "top_pages: 4, dense_layer_count: 33")
    with pytest.raises(InputError, match=r"33 dense layers, but llama-3\.1-8b has 32"):
        load_scenario(file)


def test_dense_layers_limit_the_read_ratio(scenario_file) -> None:
    """2 of 32 layers read all 32,768 tokens: 3,968 on average, 8.26x and not 16x."""
    fields = "budget_tokens: 2048, per: kv_head, dense_layer_count: 2"
    overrides = ("workload.input_tokens=32768", "workload.output_tokens=1")
    (row,) = rows(quest_file(scenario_file, fields), *overrides)
    assert row["mean_read_tokens"] == 3968
    assert row["read_ratio"] == pytest.approx(8.258, abs=5e-4)
    assert (row["budget_tokens"], row["top_pages"], row["per"]) == (2048, 128, "kv_head")
    assert row["dense_layer_count"] == 2


def test_layers_with_a_window_count_for_nothing_in_the_read_ratio() -> None:
    """Of 4 layers 0 and 3 attend fully: 0 is dense, 3 reads 127 pages of 16 and the last."""
    mixers = ["full", "sliding", "sliding", "full"]
    model = LLAMA.model_copy(update={"layers": 4, "mixers": mixers, "window_tokens": 512})
    case = Case(model, Quest(budget_tokens=2048, per="kv_head"), INLINE)
    assert case.mean_read_tokens(at(32768)).tolist() == [(32768 + 2048) / 2]


def test_no_rocketkv_table_prices_quest() -> None:
    """Not even with the pages and blocks those tables were measured with."""
    selector = Quest(top_pages=32, page_tokens=4)
    point = Point(1, 1, at(4096))
    tables = {
        "attn_sparse": INLINE,
        "gpu_route_stepwise": INLINE,
        "gpu_route_fused": Routing(where="gpu", anchor="target", kernel="fused"),
        "gpu_side_slowdown": Routing(where="gpu_side", anchor="mid"),
        "cpu_route": Routing(where="cpu", anchor="mid"),
    }
    for kind, routing in tables.items():
        assert kind in PROFILE.tables
        price = CostModel(PROFILE, Case(LLAMA, selector, routing)).price(kind, point)
        # A CPU router waits for memory as the one that was measured does.
        expected = {"attn_sparse": "extrapolated", "cpu_route": "transferred"}
        assert SOURCES[price.rank[0]] == expected.get(kind, "roofline")


def test_routing_costs_its_bytes_and_two_launches() -> None:
    point = Point(4, 4, at(32768))
    selector = Quest(budget_tokens=2048)
    found = CostModel(PROFILE, Case(LLAMA, selector, INLINE)).price("gpu_route_stepwise", point)
    update = 2048 + 2 * 4096
    assert found.mean_s[0] == pytest.approx(4 * (2048 * 4096 + update) / 4.3e12 + 2 * 2e-6)


def test_below_the_budget_routing_is_pure_overhead_and_said_to_be(scenario_file) -> None:
    file = quest_file(scenario_file, "budget_tokens: 64")
    overrides = ("workload.input_tokens=35", "model=smollm2-135m", "routing=gpu-target")
    (row,) = rows(file, *overrides)
    assert row["attended_tokens"] == row["mean_read_tokens"] == 50
    assert row["read_ratio"] == 1.0
    assert row["exposed_routing_s"] > 0
    base, _ = load_scenario(file, overrides)
    assert run_verdict(row, base.compare.baseline).endswith(
        "the whole cache all the same: routing is pure overhead."
    )
    (longer,) = rows(file, *overrides, "workload.input_tokens=200")
    base, _ = load_scenario(file, [*overrides, "workload.input_tokens=200"])
    assert "pure overhead" not in run_verdict(longer, base.compare.baseline)


def test_sparse_loses_below_break_even_and_wins_above(scenario_file) -> None:
    """On the H200 whose kernels were measured."""
    file = quest_file(scenario_file, "budget_tokens: 2048")
    overrides = ("routing=gpu-target", "hardware=h200-sxm")
    short, long = (
        rows(file, *overrides, f"workload.input_tokens={tokens}")[0] for tokens in (2048, 65536)
    )
    assert short["gain_over_dense_frac"] < 0 < long["gain_over_dense_frac"]


def test_swept_budgets_are_told_apart(scenario_file) -> None:
    file = quest_file(
        scenario_file, "budget_tokens: 2048", "sweep: {selector.budget_tokens: [1024, 4096]}\n"
    )
    small, large = rows(file)
    assert (small["budget_tokens"], large["budget_tokens"]) == (1024, 4096)
    assert small["read_ratio"] > large["read_ratio"]
