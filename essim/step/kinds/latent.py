"""Work of multi-head latent attention (MLA), in its absorbed form when decoding.

Absorbed, a query is taken into the latent space and attends to the cached latents themselves: all
heads read the same latent once. A prefill expands the latents to K and V of every head instead.
"""

from __future__ import annotations

from essim.model.shape import Mla, dtype_bytes
from essim.step.kinds.case import Case, Kind, Point, Pricer, Work


def _mla(case: Case) -> Mla:
    if case.model.mla is None:
        raise ValueError(f"{case.model.name} has no multi-head latent attention")
    return case.model.mla


def _absorb(part: str) -> Pricer:
    """Return the work of one small matrix a head: the query into, or the output out of, latents."""

    def work(case: Case, point: Point) -> Work:
        model, mla = case.model, _mla(case)
        width = mla.nope_dim if part == "q" else mla.v_dim
        weights = model.heads * width * mla.kv_rank
        moved = point.rows * model.heads * (width + mla.kv_rank) * model.activation_bytes
        return Work(
            f"mla_absorb_{part}",
            axes={"rows": point.rows},
            byte_count=1.0 * (weights * dtype_bytes(model.matrix_dtype("kv_b")) + moved),
            flops=2.0 * weights * point.rows,
            dtype=model.matrix_dtype("kv_b"),
        )

    return work


def _attn_mla(case: Case, point: Point) -> Work:
    model, mla = case.model, _mla(case)
    tokens = 1.0 * point.context_tokens * point.batch
    return Work(
        "attn_mla",
        axes={"batch": point.batch, "context_tokens": point.context_tokens},
        byte_count=tokens * model.kv_bytes_per_token_layer(),
        flops=2.0 * tokens * model.heads * (mla.latent_width + mla.kv_rank),
        launches=2,
    )


def _attn_prefill_mla(case: Case, point: Point) -> Work:
    model, mla, tokens = case.model, _mla(case), float(point.rows)
    widths = model.head_dim + mla.v_dim
    return Work(
        "attn_prefill_mla",
        axes={"rows": point.rows},
        byte_count=2.0 * tokens * model.heads * widths * model.activation_bytes,
        flops=tokens * tokens * model.heads * widths,
    )


LATENT_KINDS = {
    "mla_absorb_q": Kind(_absorb("q")),
    "mla_absorb_v": Kind(_absorb("v")),
    "attn_mla": Kind(_attn_mla, "attention"),
    "attn_prefill_mla": Kind(_attn_prefill_mla, "attention"),
}
