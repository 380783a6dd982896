"""Work of a mixture of experts: a router, and grouped GEMMs over the experts that tokens reach.

Uniform routing is assumed: `Moe.distinct_experts` are read, each once. Skewed routing reads fewer.
"""

from __future__ import annotations

from essim.model.shape import Moe, dtype_bytes
from essim.step.kinds.case import Case, Kind, Point, Pricer, Work


def _moe(case: Case) -> Moe:
    if case.model.moe is None:
        raise ValueError(f"{case.model.name} has no experts")
    return case.model.moe


def _router(case: Case, point: Point) -> Work:
    """Scores of all experts in 16 bits, and the best of them."""
    _moe(case)
    n, k = case.model.gemm_shape("router")
    return Work(
        "moe_router",
        axes={"rows": point.rows},
        byte_count=1.0 * (n * k + point.rows * (n + k)) * case.model.activation_bytes,
        flops=2.0 * n * k * point.rows,
        launches=2,
    )


def _grouped(name: str) -> Pricer:
    """Return the work of one matrix of every expert reached, and of the shared ones."""

    def work(case: Case, point: Point) -> Work:
        model, moe, rows = case.model, _moe(case), point.rows
        (n, k), shared = model.gemm_shape(f"expert_{name}"), model.gemm_shape(f"shared_{name}")
        alone = shared[0] * shared[1]
        dtypes = [model.matrix_dtype(f"{kind}_{name}") for kind in ("expert", "shared")]
        routed = moe.distinct_experts(rows) * n * k * dtype_bytes(dtypes[0])
        weights = routed + alone * dtype_bytes(dtypes[1])
        moved = rows * (moe.experts_per_token * (n + k) + (sum(shared) if alone else 0))
        return Work(
            f"moe_{name}",
            axes={"rows": rows},
            keys={"n": n, "k": k, "dtype": dtypes[0]},
            byte_count=weights + moved * model.activation_bytes,
            flops=2.0 * rows * (moe.experts_per_token * n * k + alone),
            launches=2 if alone else 1,
            dtype=dtypes[0],
        )

    return work


def _moe_act(case: Case, point: Point) -> Work:
    moe = _moe(case)
    width = moe.experts_per_token * moe.ffn + moe.shared_ffn
    touched = point.rows * (2 + case.model.gated_mlp) * width
    moved = 1.0 * touched * case.model.activation_bytes
    return Work("moe_act", axes={"rows": point.rows}, byte_count=moved)


EXPERT_KINDS = {
    "moe_router": Kind(_router),
    "moe_gate_up": Kind(_grouped("gate_up")),
    "moe_act": Kind(_moe_act),
    "moe_down": Kind(_grouped("down")),
}
