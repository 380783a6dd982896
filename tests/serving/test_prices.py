"""A server's steps cost what their list of ops takes."""

from __future__ import annotations

import numpy as np
import pytest
from h200 import H200, ROOT

from essim.engines import finish_maxplus
from essim.engines.graph import Graph
from essim.errors import PricingError
from essim.methods.routing import Routing, expand_preset
from essim.methods.selectors.dense import Dense
from essim.methods.selectors.rocketkv import RocketKV
from essim.model.shape import PRESETS
from essim.serving import jump
from essim.serving.lines import CELL_TOKENS
from essim.serving.load import Fleet, Limits, Load, Pool, Request
from essim.serving.prices import StepPrices, StepSettings
from essim.simulate.plan import load_scenario
from essim.simulate.sweep import Simulator
from essim.step.kinds import Case, Point
from essim.step.mixed import mixed_step
from essim.step.price import CostModel

LLAMA = PRESETS["llama-3.1-8b"]
ROCKET = RocketKV(prompt_budget=4096, page_tokens=4, top_pages=32, kv_block_tokens=4)
ROUTINGS = ("gpu-target-fused", "gpu_side-mid-fused", "cpu-mid", "cpu-in")


def prices(routing: str, selector=ROCKET, longest: int = 12_288, **settings) -> StepPrices:
    case = Case(LLAMA, selector, Routing(**expand_preset(routing)))
    return StepPrices(H200, case, StepSettings(longest, **settings))


def listed_ps(
    found: StepPrices, batch: int, context: int, size: int, past: int, prompt: int | None
) -> int:
    """Return a mixed step's time by an engine, its list twice in a row."""
    case = found.case
    parts = case.model, case.selector, case.routing
    ops = mixed_step(*parts, decodes=batch > 0, prompt_tokens=prompt)
    costs, rows = CostModel(H200, case), {}
    for kind in {op.kind for op in ops}:
        contexts = np.array([max(context, 1)] * 2, dtype=np.int64)
        point = Point(max(batch, 1), batch + size, contexts)
        if kind == "head":
            point = Point(batch + (prompt is not None), batch + size, contexts)
        if kind in ("stage1_select", "summary_build", "summary_d2h"):
            point = Point(1, prompt or 0, contexts)
        if kind == "attn_chunk":
            rows[kind] = np.full(2, found.chunk_attention_ps(size, past))
        else:
            rows[kind] = np.rint(costs.price(kind, point).mean_s * 1e12).astype(np.int64)
    ends = finish_maxplus(ops, [rows[op.kind] for op in ops], [Graph.of(ops).last_main])
    return int(ends[0, 1])


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize(
    ("batch", "context", "size", "past", "prompt"),
    [
        (0, 0, 512, 0, None),
        (0, 0, 512, 7680, 8192),
        (3, 4096 + 128, 128, 0, None),
        (16, 4096 + 128, 512, 1024, None),
        (16, 4096 + 128, 2048, 8192, 10240),
        (4, 4096 + 128, 32, 0, 32),
    ],
)
def test_a_mixed_step_is_one_list_of_ops(
    routing: str, batch: int, context: int, size: int, past: int, prompt: int | None
) -> None:
    found = prices(routing)
    chunks = [(size, past, prompt or 0)]
    ours = found.chunk_step(batch, context, context, chunks)
    listed = listed_ps(found, batch, context, size, past, prompt)
    # Lines are whole picoseconds a token: each op's is off by less than its cell.
    assert abs(ours - listed) < CELL_TOKENS * len(found.decode_ops)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_one_user_whose_prompt_is_one_chunk_is_a_run(routing: str) -> None:
    base, _ = load_scenario(
        ROOT / "scenarios" / "earlyselect-40k.yaml", ["workload.output_tokens=300"]
    )
    for point in (base.with_routing(routing), base.with_routing("gpu-target").with_dense()):
        found = prices(routing, point.resolved_selector(), 42_000)
        kept = point.resolved_selector().kept_prompt_tokens
        limits = Limits(Pool(4, 1 << 40, kept=kept), max_batch=4, token_budget=1 << 20)
        load = Load([Request(0, 40960, 300)] * 2, users=1)
        record = jump.simulate(load, Fleet(limits), found).records[1]
        simulator = Simulator()
        (row,) = simulator.rows([point.with_routing(routing)])
        prefill_s = (record.first_ps - record.arrival_ps) / 1e12
        decode_s = (record.finish_ps - record.first_ps) / 1e12
        assert prefill_s == pytest.approx(row["prefill_s"], rel=1e-6)
        # The run draws each call of the CPU's router; here all of them take their mean.
        drawn = routing.startswith("cpu") and point.selector.query_conditioned
        assert decode_s == pytest.approx(row["decode_s"], rel=2e-2 if drawn else 1e-5)


def test_chunks_of_a_prompt_sum_to_its_prefill() -> None:
    found = prices("gpu-target-fused", Dense())
    whole = found.chunk_attention_ps(8192, 0)
    parts = sum(found.chunk_attention_ps(512, past) for past in range(0, 8192, 512))
    assert whole == pytest.approx(parts, rel=1e-3)
    assert found.sources["attn_prefill"] == "scaled"


def test_a_chunk_hides_routing() -> None:
    """The anchor exists after the mixed o_proj, so the window holds the chunk's rows, too."""
    found = prices("cpu-mid")
    alone, grows = found.exposed(16, 0).line(4224)
    beside, still = found.exposed(16, 512).line(4224)
    # What stays is what the main stream does itself: the projection, publishing, awaiting. That
    # does not grow with the context.
    assert alone > 5 * beside > 0
    assert grows > still == 0


def test_padding_and_a_graph_for_the_longest_cost() -> None:
    plain = prices("gpu-target-fused").decode_line(17, 4224, 4300)[0]
    padded = prices("gpu-target-fused", graph_batches=(16, 32)).decode_line(17, 4224, 4300)[0]
    roomy = prices("gpu-target-fused", room_tokens=12_288).decode_line(17, 4224, 4300)[0]
    assert padded > plain
    assert roomy > plain
    assert prices("cpu-mid", room_tokens=12_288).decode_line(17, 4224, 4300) == prices(
        "cpu-mid"
    ).decode_line(17, 4224, 4300)


def test_the_longest_context_counts_on_the_gpu_and_the_mean_on_the_cpu() -> None:
    gpu, cpu = prices("gpu-target-fused"), prices("cpu-target")
    assert gpu.decode_line(8, 4224, 12_000)[0] > gpu.decode_line(8, 4224, 4224)[0]
    assert cpu.decode_line(8, 4224, 12_000)[0] == cpu.decode_line(8, 4224, 4224)[0]


def test_eager_steps_wait_for_their_launches() -> None:
    fast, slow = prices("gpu-target-fused"), prices("gpu-target-fused", eager_op_ps=10**9)
    ops = slow.main_ops
    assert slow.chunk_step(1, 100, 100, [(32, 0, 0)]) == ops * 10**9
    assert fast.chunk_step(1, 100, 100, [(32, 0, 0)]) < ops * 10**9
    assert slow.decode_line(1, 100, 100) == fast.decode_line(1, 100, 100)


def test_latent_attention_is_refused() -> None:
    sliding = LLAMA.model_copy(update={"mixers": ["sliding"] * 32, "window_tokens": 4096})
    with pytest.raises(PricingError, match="no price yet"):
        mixed_step(sliding, Dense(), Routing(where="gpu", anchor="target"), decodes=True)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_line_says_what_the_next_steps_cost(routing: str) -> None:
    found = prices(routing)
    first, growth, steps = found.decode_line(8, 4230, 4300)
    for i in range(steps):
        assert found.decode_line(8, 4230 + i, 4300 + i)[0] == first + growth * i
