"""Tables of the main flow on a CPU: embedding, norms, RoPE, activation, GEMMs, attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from measure.harness.campaign import Bench, Place, Ready, grid, held_out
from measure.harness.hashes import table_hash
from measure.kernels.flow import cpu as flow
from measure.tables.cpu.plan import Plan, flow_bench, random, rotation

_ELEMENT_BYTES = 4


def flow_benches(plan: Plan) -> list[Bench]:
    """Return every table of the main flow: decode and prefill."""
    return [
        *_row_benches(plan),
        *_end_benches(plan),
        _gemm_bench(plan),
        _attn_dense(plan),
        _attn_sparse(plan),
        *_prefill_benches(plan),
    ]


def _row_benches(plan: Plan) -> list[Bench]:
    """Return the tables of ops that work on rows of activations."""
    m = plan.model
    rows, gain = {"rows": (*plan.batches, *plan.prompts)}, random(m.hidden)
    angles = flow.rope_table(64, m.head_dim)

    def norm(count: int) -> Callable[[], object]:
        x, residual = random(count, m.hidden), random(count, m.hidden)
        return lambda: flow.rms_norm(residual.add_(x, alpha=1e-3), gain)

    def act(count: int) -> Callable[[], object]:
        x = random(count, 2 * m.ffn)
        return lambda: flow.silu_mul(x)

    def rope(count: int) -> Callable[[], object]:
        qkv = random(count, m.q_width + 2 * m.kv_width)
        keys, values = (random(count, m.kv_heads, 64, m.head_dim) for _ in range(2))
        return lambda: flow.rope_append(qkv, angles, keys, values, 33)

    heads = {"heads": [m.heads], "kv_heads": [m.kv_heads], "head_dim": [m.head_dim]}
    width = m.q_width + 2 * m.kv_width
    return [
        _rows_bench("norm", plan, rows, norm, 3 * m.hidden, {"hidden": [m.hidden]}),
        _rows_bench("rope", plan, rows, rope, 2 * width, heads),
        _rows_bench("act", plan, rows, act, 3 * m.ffn, {"ffn": [m.ffn]}),
    ]


def _end_benches(plan: Plan) -> list[Bench]:
    """Return the tables of both ends of a step, on one matrix."""
    m = plan.model
    table, hidden = random(m.vocab, m.hidden), {"hidden": [m.hidden]}

    def embed(count: int) -> Callable[[], object]:
        tokens = torch.randint(0, m.vocab, (count,))
        return lambda: table[tokens]

    def head(count: int) -> Callable[[], object]:
        x = random(count, m.hidden)
        return lambda: flow.gemm(x, table).argmax(-1)

    rows = {"rows": (*plan.batches, *plan.prompts)}
    return [
        _rows_bench("embed", plan, rows, embed, 2 * m.hidden, hidden),
        _rows_bench(
            "head",
            plan,
            {"rows": plan.batches},
            head,
            row_elements=0,
            holds_for=hidden | {"vocab": [m.vocab]},
            fixed_elements=m.vocab * m.hidden,
        ),
    ]


def _rows_bench(
    table: str,
    plan: Plan,
    axes: dict[str, tuple[int, ...]],
    make: Callable[[int], Callable[[], object]],
    row_elements: int,
    holds_for: Mapping[str, Sequence[int | str]],
    fixed_elements: int = 0,
) -> Bench:
    def prepare(place: Place) -> Ready:
        count = int(place["rows"])
        moved = (count * row_elements + fixed_elements) * _ELEMENT_BYTES
        return Ready(rotation(lambda: make(count), moved), moved)

    return flow_bench(table, plan, axes, prepare, holds_for)


def _gemm_bench(plan: Plan) -> Bench:
    """Return the GEMM table: every weight shape of the model over rows."""
    rows = (*plan.batches, *plan.prompts)
    shapes = dict.fromkeys(plan.model.gemm_shape(x) for x in ("qkv", "o", "gate_up", "down"))

    def prepare(place: Place) -> Ready:
        n, k, count = (int(place[axis]) for axis in ("n", "k", "rows"))

        def make() -> Callable[[], object]:
            weight, x = random(n, k), random(count, k)
            return lambda: flow.gemm(x, weight)

        moved = (n * k + count * (n + k)) * _ELEMENT_BYTES
        return Ready(rotation(make, moved), moved)

    def every_shape(places: Sequence[Place]) -> tuple[Place, ...]:
        return tuple({"n": n, "k": k} | dict(place) for n, k in shapes for place in places)

    return Bench(
        table="gemm",
        keys=("n", "k"),
        axes=("rows",),
        points=every_shape(grid(rows=rows)),
        heldout=every_shape(held_out(plan.seed, {"rows": rows})),
        prepare=prepare,
        dtype="fp32",
        source_hash=table_hash("gemm", "CPU"),
        reference="torch.mm on the main stream's cores, weights in rotation",
        holds_for={"weight_dtype": ["fp32"]},
    )


def attention_conditions(plan: Plan) -> dict[str, list[int | str]]:
    """Return the settings that tables of attention and routing were measured with."""
    m = plan.model
    sizes: dict[str, list[int | str]] = {"heads": [m.heads], "kv_heads": [m.kv_heads]}
    return sizes | {"head_dim": [m.head_dim], "kv_dtype": ["fp32"]}


def _attn_dense(plan: Plan) -> Bench:
    m = plan.model

    def prepare(place: Place) -> Ready:
        batch, tokens = int(place["batch"]), int(place["context_tokens"])
        moved = batch * tokens * 2 * m.kv_width * _ELEMENT_BYTES

        def make() -> Callable[[], object]:
            query = random(batch, m.heads, m.head_dim)
            keys, values = (random(batch, m.kv_heads, tokens, m.head_dim) for _ in range(2))
            return lambda: flow.attend(query, keys, values, tokens)

        return Ready(rotation(make, moved), moved)

    axes = {"batch": plan.batches, "context_tokens": plan.contexts}
    return flow_bench("attn_dense", plan, axes, prepare, attention_conditions(plan))


def _attn_sparse(plan: Plan) -> Bench:
    m, page, cached = plan.model, plan.page_tokens, max(plan.contexts)

    def prepare(place: Place) -> Ready:
        batch, selected = int(place["batch"]), int(place["selected_tokens"])
        moved = batch * selected * 2 * m.kv_width * _ELEMENT_BYTES

        def make() -> Callable[[], object]:
            query = random(batch, m.heads, m.head_dim)
            keys, values = (random(batch, m.kv_heads, cached, m.head_dim) for _ in range(2))
            order = torch.rand(batch, m.kv_heads, cached // page - 1).argsort(-1)
            pages = order[..., : selected // page]
            return lambda: flow.attend_pages(query, keys, values, pages, page, cached)

        whole = 2 * batch * cached * m.kv_width * _ELEMENT_BYTES
        return Ready(rotation(make, whole), moved)

    axes = {"batch": plan.batches, "selected_tokens": plan.selected}
    holds = attention_conditions(plan) | {"page_tokens": [page], "kv_block_tokens": [page]}
    return flow_bench("attn_sparse", plan, axes, prepare, holds)


def _prefill_benches(plan: Plan) -> list[Bench]:
    """Return the tables of a prefill: causal attention, stage 1, summaries."""
    m, page, budget = plan.model, plan.page_tokens, plan.selector.prompt_budget or 0
    rows = {"rows": plan.prompts}
    holds = attention_conditions(plan)

    def cache(tokens: int) -> torch.Tensor:
        return random(1, m.kv_heads, tokens, m.head_dim)

    def attention(tokens: int) -> Callable[[], object]:
        query = random(1, m.heads, tokens, m.head_dim)
        keys, values = cache(tokens), cache(tokens)
        return lambda: flow.prefill_attention(query, keys, values)

    def stage1(tokens: int) -> Callable[[], object]:
        query = random(1, m.heads, flow.WINDOW_TOKENS, m.head_dim)
        keys, values = cache(tokens), cache(tokens)

        def select() -> object:
            kept = flow.stage1_select(query, keys, min(budget, tokens))
            return flow.compact(keys, kept), flow.compact(values, kept)

        return select

    def summary(tokens: int) -> Callable[[], object]:
        keys = cache(tokens)
        return lambda: flow.build_summary(keys, page)

    tables = (
        ("attn_prefill", attention, holds),
        ("stage1_select", stage1, holds | {"prompt_budget": [budget]}),
        ("summary_build", summary, holds | {"page_tokens": [page]}),
    )
    return [
        _rows_bench(name, plan, rows, make, 2 * m.kv_width, conditions)
        for name, make, conditions in tables
    ]
