"""Work of the main flow: embedding, GEMMs, norms, attention, LM head."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from essim.model.shape import ModelShape, dtype_bytes
from essim.step.kinds.case import Case, Kind, Point, Pricer, Work, kernel_dtype


def _gemm(name: str) -> Pricer:
    def work(case: Case, point: Point) -> Work:
        model = case.model
        n, k = model.gemm_shape(name)
        dtype = model.matrix_dtype(name)
        weights = n * k * dtype_bytes(dtype)
        return Work(
            "gemm",
            axes={"rows": point.rows},
            keys={"n": n, "k": k, "dtype": kernel_dtype(dtype)},
            byte_count=weights + point.rows * (n + k) * model.activation_bytes,
            flops=2.0 * n * k * point.rows,
            dtype=kernel_dtype(dtype),
            gemm=(n, k),
            family="gemm",
        )

    return work


def _elementwise(table: str, width: Callable[[ModelShape], int]) -> Pricer:
    """Return the work of a memory-bound op that touches `width` activations a row."""

    def work(case: Case, point: Point) -> Work:
        elements = width(case.model)
        moved = point.rows * elements * case.model.activation_bytes
        axes = {"rows": point.rows, "hidden": case.model.hidden}
        units = ("rows", float(elements))
        return Work(table, axes=axes, byte_count=moved, units=units, family="elementwise")

    return work


def _act(case: Case, point: Point) -> Work:
    """Activation of the MLP, times the gate where there is one."""
    model = case.model
    moved = point.rows * (2 + model.gated_mlp) * model.ffn * model.activation_bytes
    table = "act" if model.gated_mlp else "act_plain"
    axes, units = {"rows": point.rows, "ffn": model.ffn}, ("rows", float(model.ffn))
    return Work(table, axes=axes, byte_count=moved, units=units, family="elementwise")


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
        gemm=(n, k),
        family="gemm",
    )


def _attn_dense(case: Case, point: Point) -> Work:
    model, tokens = case.model, 1.0 * point.context_tokens * point.batch
    return Work(
        "attn_dense",
        axes={"batch": point.batch, "context_tokens": point.context_tokens},
        byte_count=tokens * model.kv_bytes_per_token_layer(),
        flops=4.0 * tokens * model.q_width,
        launches=2,
        units=("batch", float(model.kv_heads)),
        family="attention",
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
    attended = 1.0 * selector.attended_tokens(context) * point.batch
    return Work(
        "attn_sparse",
        axes={"batch": point.batch, "selected_tokens": selector.selected_tokens(context)},
        keys={name: conditions.get(name, 1) for name in ("page_tokens", "kv_block_tokens")},
        byte_count=read * model.kv_bytes_per_token_layer(),
        flops=4.0 * attended * model.q_width,
        units=("batch", float(model.kv_heads)),
        family="attention",
        stand_in_tokens=np.rint(read_one),
    )


def _host(case: Case, point: Point) -> Work:
    """What the host does between steps: a number of the profile, zero without one."""
    return Work("host", launches=0, device="constant")


LAYER_KINDS = {
    "embed": Kind(_elementwise("embed", lambda m: 2 * m.hidden)),
    "norm": Kind(_elementwise("norm", lambda m: 3 * m.hidden)),
    "rope": Kind(_elementwise("rope", _rope_width)),
    "act": Kind(_act, tables=("act", "act_plain")),
    **{
        f"gemm_{name}": Kind(_gemm(name), tables=("gemm",))
        for name in ("qkv", "q_b", "kv_b", "o", "gate_up", "down")
    },
    "head": Kind(_head),
    "host": Kind(_host, tables=(), constant=True),
    "attn_dense": Kind(_attn_dense, "attention"),
    "attn_window": Kind(_attn_window, "attention", tables=("attn_dense",)),
    "attn_sparse": Kind(_attn_sparse, "attention"),
}
