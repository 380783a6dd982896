"""Work of the main flow: embedding, GEMMs, norms, attention, LM head."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from essim.model.shape import ModelShape, dtype_bytes
from essim.step.kinds.case import Case, Point, Pricer, Work


def _gemm(name: str) -> Pricer:
    def work(case: Case, point: Point) -> Work:
        model = case.model
        n, k = model.gemm_shape(name)
        dtype = model.matrix_dtype(name)
        weights = n * k * dtype_bytes(dtype)
        return Work(
            "gemm",
            axes={"rows": point.rows},
            keys={"n": n, "k": k, "dtype": dtype},
            byte_count=weights + point.rows * (n + k) * model.activation_bytes,
            flops=2.0 * n * k * point.rows,
            dtype=dtype,
        )

    return work


def _elementwise(table: str, width: Callable[[ModelShape], int]) -> Pricer:
    """Return the work of a memory-bound op that touches `width` activations a row."""

    def work(case: Case, point: Point) -> Work:
        moved = point.rows * width(case.model) * case.model.activation_bytes
        return Work(table, axes={"rows": point.rows}, byte_count=moved)

    return work


def _act(case: Case, point: Point) -> Work:
    """Activation of the MLP, times the gate where there is one."""
    model = case.model
    moved = point.rows * (2 + model.gated_mlp) * model.ffn * model.activation_bytes
    table = "act" if model.gated_mlp else "act_plain"
    return Work(table, axes={"rows": point.rows}, byte_count=moved)


def _rope_width(model: ModelShape) -> int:
    if model.mla is None:
        return 2 * (model.q_width + 2 * model.kv_width)
    return 2 * (model.heads * model.mla.rope_dim + model.mla.latent_width)


def _head(case: Case, point: Point) -> Work:
    """LM head and sampling; in prefill only the last token of a sequence needs it."""
    n, k = case.model.gemm_shape("head")
    weights = n * k * case.model.activation_bytes
    rows = point.batch
    return Work(
        "head",
        axes={"rows": rows},
        byte_count=weights + rows * (2.0 * n + k) * case.model.activation_bytes,
        flops=2.0 * n * k * rows,
        launches=2,
    )


def _attn_dense(case: Case, point: Point) -> Work:
    model, tokens = case.model, point.context_tokens * float(point.batch)
    return Work(
        "attn_dense",
        axes={"batch": point.batch, "context_tokens": point.context_tokens},
        byte_count=tokens * model.kv_bytes_per_token_layer(),
        flops=4.0 * tokens * model.q_width,
        launches=2,
    )


def _attn_window(case: Case, point: Point) -> Work:
    """Dense attention over the last tokens: the dense kernel at that context."""
    seen = point.context_tokens + point.evicted_tokens
    held = np.minimum(seen, case.model.window_tokens or 0)
    return _attn_dense(case, Point(point.batch, point.rows, held))


def _attn_sparse(case: Case, point: Point) -> Work:
    model, selector, context = case.model, case.selector, point.context_tokens
    conditions = selector.table_conditions()
    read_one = case.read_tokens(context)
    read = read_one * point.batch
    attended = selector.attended_tokens(context) * float(point.batch)
    return Work(
        "attn_sparse",
        axes={"batch": point.batch, "selected_tokens": selector.selected_tokens(context)},
        keys={name: conditions.get(name, 1) for name in ("page_tokens", "kv_block_tokens")},
        byte_count=read * model.kv_bytes_per_token_layer(),
        flops=4.0 * attended * model.q_width,
        stand_in_tokens=np.rint(read_one),
    )


def constant(name: str, launches: int) -> Pricer:
    """Return the work of an op whose time is a constant of the profile."""
    return lambda case, point: Work(name, launches=launches, device="constant")


LAYER_KINDS: dict[str, Pricer] = {
    "embed": _elementwise("embed", lambda m: 2 * m.hidden),
    "norm": _elementwise("norm", lambda m: 3 * m.hidden),
    "rope": _elementwise("rope", _rope_width),
    "act": _act,
    "gemm_qkv": _gemm("qkv"),
    "gemm_q_b": _gemm("q_b"),
    "gemm_kv_b": _gemm("kv_b"),
    "gemm_o": _gemm("o"),
    "gemm_gate_up": _gemm("gate_up"),
    "gemm_down": _gemm("down"),
    "head": _head,
    "host": constant("host", 0),
    "attn_dense": _attn_dense,
    "attn_window": _attn_window,
    "attn_sparse": _attn_sparse,
}
