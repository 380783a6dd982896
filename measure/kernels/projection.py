"""The proxy query on the GPU: ``RoPE(W_q . norm1(anchor))``, W_q whole or as two factors.

The norm's gain is folded into the weights [n, k]; its scale is computed in the same kernel.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def down_kernel(anchors, weight, latents, width, rank, batch, eps, BLOCK: tl.constexpr):
    """One row of the down-projection for all sequences, with the norm."""
    row, lane = tl.program_id(0), tl.arange(0, BLOCK)
    real = lane < width
    line = tl.load(weight + row * width + lane, mask=real, other=0.0).to(tl.float32)
    for sequence in range(0, batch):
        anchor = tl.load(anchors + sequence * width + lane, mask=real, other=0.0).to(tl.float32)
        scale = 1.0 / tl.sqrt(tl.sum(anchor * anchor, 0) / width + eps)
        value = tl.sum(anchor * line, 0) * scale
        tl.store(latents + sequence * rank + row, value.to(latents.dtype.element_ty))


def project_down(
    anchors: torch.Tensor, weight: torch.Tensor, latents: torch.Tensor, eps: float = 1e-5
) -> None:
    """``latents`` BF16 [batch, rank] from ``anchors`` BF16 [batch, width]; weight [rank, width]."""
    batch, width = anchors.shape
    rank = weight.shape[0]
    down_kernel[(rank,)](anchors, weight, latents, width, rank, batch, eps,
                         triton.next_power_of_2(width), num_warps=4)


@triton.jit
def query_kernel(inputs, weight, cos_sin, context, queries, width, batch, heads, eps,
                 NORM: tl.constexpr, DIM: tl.constexpr, PAIRS: tl.constexpr, ROWS: tl.constexpr,
                 STEP: tl.constexpr):
    """``PAIRS`` rotated pairs of channels of one head, for all sequences."""
    head, part = tl.program_id(0), tl.program_id(1)
    pair, row, lane = tl.arange(0, PAIRS), tl.arange(0, ROWS), tl.arange(0, STEP)
    first = (head * DIM + part * PAIRS + pair) * width
    low = tl.zeros([ROWS, PAIRS], tl.float32)
    high = tl.zeros([ROWS, PAIRS], tl.float32)
    squares = tl.zeros([ROWS], tl.float32)
    real = row < batch
    for start in range(0, width, STEP):
        at = start + lane
        value = tl.load(inputs + row[:, None] * width + at[None, :], mask=real[:, None], other=0.0)
        one = tl.load(weight + first[None, :] + at[:, None])
        two = tl.load(weight + first[None, :] + DIM // 2 * width + at[:, None])
        low += tl.dot(value, one)
        high += tl.dot(value, two)
        if NORM:
            squares += tl.sum(value.to(tl.float32) * value.to(tl.float32), 1)
    if NORM:
        scale = 1.0 / tl.sqrt(squares / width + eps)
        low, high = low * scale[:, None], high * scale[:, None]
    position = tl.load(context + row, mask=real, other=1) - 1
    turn = position[:, None] * DIM + part * PAIRS + pair[None, :]
    cos, sin = tl.load(cos_sin + turn), tl.load(cos_sin + turn + DIM // 2)
    to = queries + (row[:, None] * heads + head) * DIM + part * PAIRS + pair[None, :]
    kind = queries.dtype.element_ty
    tl.store(to, (low * cos - high * sin).to(kind), mask=real[:, None])
    tl.store(to + DIM // 2, (high * cos + low * sin).to(kind), mask=real[:, None])


def project_query(
    inputs: torch.Tensor, weight: torch.Tensor, cos_sin: torch.Tensor, context: torch.Tensor,
    queries: torch.Tensor, *, norm: bool, eps: float = 1e-5,
) -> None:
    """Proxy queries BF16 [batch, kv_heads, group, head_dim].

    Parameters
    ----------
    inputs
        Anchors [batch, hidden] with ``norm``, else latents [batch, rank].
    weight
        [heads * head_dim, hidden or rank].
    cos_sin
        FP32 [positions, 2, head_dim / 2].
    context
        int32 [batch]: the query stands at position context - 1.
    """
    batch, width = inputs.shape
    dim = queries.shape[-1]
    heads = weight.shape[0] // dim
    query_kernel[(heads, dim // 32)](
        inputs, weight, cos_sin, context, queries, width, batch, heads, eps, norm, dim, 16,
        max(16, triton.next_power_of_2(batch)), min(width, 256), num_warps=4, num_stages=4)
