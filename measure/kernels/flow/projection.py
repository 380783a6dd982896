"""The proxy query on the GPU: ``RoPE(W_q . norm1(anchor))``, W_q whole or as two factors.

The down-projection [rank, hidden] has the norm's gain folded in and computes its scale itself.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from measure.kernels.flow import gpu as flow


@triton.jit
def down_kernel(
    anchors, weight, latents, width, rank, batch, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """One row of the down-projection for ``ROWS`` sequences, with the norm."""
    out, lane = tl.program_id(0), tl.arange(0, BLOCK)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    real = (row < batch)[:, None] & (lane < width)[None, :]
    line = tl.load(weight + out * width + lane, mask=lane < width, other=0.0).to(tl.float32)
    anchor = tl.load(anchors + row[:, None] * width + lane[None, :], mask=real, other=0.0)
    anchor = anchor.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(anchor * anchor, 1) / width + eps)
    value = tl.sum(anchor * line[None, :], 1) * scale
    tl.store(latents + row * rank + out, value.to(latents.dtype.element_ty), mask=row < batch)


def project_down(
    anchors: torch.Tensor, weight: torch.Tensor, latents: torch.Tensor, eps: float = 1e-5
) -> None:
    """``latents`` BF16 [batch, rank] from ``anchors`` BF16 [batch, width]; weight [rank, width]."""
    batch, width = anchors.shape
    rank, rows = weight.shape[0], min(4, triton.next_power_of_2(batch))
    down_kernel[(rank, triton.cdiv(batch, rows))](
        anchors,
        weight,
        latents,
        width,
        rank,
        batch,
        eps,
        rows,
        triton.next_power_of_2(width),
        num_warps=4 if rows < 4 else 8,
    )


@triton.jit
def query_kernel(
    latents,
    weight,
    cos_sin,
    context,
    queries,
    batch,
    heads,
    RANK: tl.constexpr,
    DIM: tl.constexpr,
    PAIRS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """``PAIRS`` rotated pairs of channels of one head, for all sequences."""
    head, part = tl.program_id(0), tl.program_id(1)
    pair, row, lane = tl.arange(0, PAIRS), tl.arange(0, ROWS), tl.arange(0, RANK)
    real = row < batch
    value = tl.load(latents + row[:, None] * RANK + lane[None, :], mask=real[:, None], other=0.0)
    first = (head * DIM + part * PAIRS + pair) * RANK
    low = tl.dot(value, tl.load(weight + first[None, :] + lane[:, None]))
    high = tl.dot(value, tl.load(weight + first[None, :] + DIM // 2 * RANK + lane[:, None]))
    position = tl.load(context + row, mask=real, other=1) - 1
    turn = position[:, None] * DIM + part * PAIRS + pair[None, :]
    cos, sin = tl.load(cos_sin + turn), tl.load(cos_sin + turn + DIM // 2)
    to = queries + (row[:, None] * heads + head) * DIM + part * PAIRS + pair[None, :]
    kind = queries.dtype.element_ty
    tl.store(to, (low * cos - high * sin).to(kind), mask=real[:, None])
    tl.store(to + DIM // 2, (high * cos + low * sin).to(kind), mask=real[:, None])


def project_up(
    latents: torch.Tensor,
    weight: torch.Tensor,
    cos_sin: torch.Tensor,
    context: torch.Tensor,
    queries: torch.Tensor,
) -> None:
    """Proxy queries BF16 [batch, kv_heads, group, head_dim] from latents.

    Parameters
    ----------
    latents
        BF16 [batch, rank]; the rank is a power of two.
    weight
        [heads * head_dim, rank].
    cos_sin
        FP32 [positions, 2, head_dim / 2].
    context
        int32 [batch]: the query stands at position context - 1.
    """
    batch, rank = latents.shape
    dim = queries.shape[-1]
    heads = weight.shape[0] // dim
    query_kernel[(heads, dim // 32)](
        latents,
        weight,
        cos_sin,
        context,
        queries,
        batch,
        heads,
        rank,
        dim,
        16,
        max(16, triton.next_power_of_2(batch)),
        num_warps=4,
    )


@triton.jit
def rotate_kernel(queries, cos_sin, context, heads, DIM: tl.constexpr):
    """Rotate one head of one sequence in place."""
    row, head, half = tl.program_id(0), tl.program_id(1), tl.arange(0, DIM // 2)
    turn = cos_sin + (tl.load(context + row) - 1) * DIM + half
    cos, sin = tl.load(turn), tl.load(turn + DIM // 2)
    at = queries + (row * heads + head) * DIM + half
    low, high = tl.load(at).to(tl.float32), tl.load(at + DIM // 2).to(tl.float32)
    kind = queries.dtype.element_ty
    tl.store(at, (low * cos - high * sin).to(kind))
    tl.store(at + DIM // 2, (high * cos + low * sin).to(kind))


def project_full(
    anchors: torch.Tensor,
    gain: torch.Tensor,
    weight: torch.Tensor,
    cos_sin: torch.Tensor,
    context: torch.Tensor,
    normed: torch.Tensor,
    queries: torch.Tensor,
) -> None:
    """The same with the whole W_q [heads * head_dim, hidden]: norm, GEMM and rotation.

    ``gain`` [hidden] is the norm's; ``normed`` [batch, hidden] is overwritten, ``anchors`` are not.
    """
    batch, dim = len(anchors), queries.shape[-1]
    flow.rms_norm(anchors, gain, normed)
    flow.gemm(normed, weight, queries.view(batch, -1))
    heads = weight.shape[0] // dim
    rotate_kernel[(batch, heads)](queries, cos_sin, context, heads, dim, num_warps=1)
