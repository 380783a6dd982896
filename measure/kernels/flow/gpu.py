"""The main flow of a decode step besides attention: norms, RoPE, activation, GEMMs, the ends.

Every function launches on the current stream and writes into tensors that it is given or returns a
new one; hidden states are BF16 [rows, width].
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from measure.kernels.attention.launch import PagedCache


@triton.jit
def norm_kernel(
    inputs, residual, weight, out, width, eps, HAS_INPUT: tl.constexpr, BLOCK: tl.constexpr
):
    """Add the input to the residual stream, in place, and RMS-normalise the sum."""
    row, lane = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    real = lane < width
    at = row * width + lane
    value = tl.load(residual + at, mask=real, other=0.0).to(tl.float32)
    if HAS_INPUT:
        value += tl.load(inputs + at, mask=real, other=0.0).to(tl.float32)
        tl.store(residual + at, value.to(residual.dtype.element_ty), mask=real)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / width + eps)
    gain = tl.load(weight + lane, mask=real, other=0.0).to(tl.float32)
    tl.store(out + at, (value * scale * gain).to(out.dtype.element_ty), mask=real)


def rms_norm(
    residual: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    inputs: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> None:
    """``residual += inputs``; ``out`` = its RMS norm times ``weight`` [width]."""
    rows, width = residual.shape
    norm_kernel[(rows,)](
        residual if inputs is None else inputs,
        residual,
        weight,
        out,
        width,
        eps,
        inputs is not None,
        triton.next_power_of_2(width),
        num_warps=8,
    )


@triton.jit
def rope_kernel(
    qkv,
    cos_sin,
    queries,
    keys,
    values,
    table,
    context,
    table_blocks,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
):
    """Rotate queries and the new key, and append key and value to the paged cache."""
    row, head = tl.program_id(0), tl.program_id(1)
    position = tl.load(context + row) - 1
    half = tl.arange(0, DIM // 2)
    source = qkv + (row * (HEADS + 2 * KV_HEADS) + head).to(tl.int64) * DIM + half
    low = tl.load(source).to(tl.float32)
    high = tl.load(source + DIM // 2).to(tl.float32)
    if head < HEADS + KV_HEADS:
        cos = tl.load(cos_sin + position * DIM + half)
        sin = tl.load(cos_sin + position * DIM + DIM // 2 + half)
        low, high = low * cos - high * sin, high * cos + low * sin
    block = tl.load(table + row * table_blocks + position // BLOCK_TOKENS).to(tl.int64)
    if head < HEADS:
        target = queries + (row * HEADS + head) * DIM + half
        tl.store(target, low.to(queries.dtype.element_ty))
        tl.store(target + DIM // 2, high.to(queries.dtype.element_ty))
    else:
        own = (head - HEADS) % KV_HEADS
        at = ((block * KV_HEADS + own) * BLOCK_TOKENS + position % BLOCK_TOKENS) * DIM + half
        if head < HEADS + KV_HEADS:
            tl.store(keys + at, low.to(keys.dtype.element_ty))
            tl.store(keys + at + DIM // 2, high.to(keys.dtype.element_ty))
        else:
            tl.store(values + at, low.to(values.dtype.element_ty))
            tl.store(values + at + DIM // 2, high.to(values.dtype.element_ty))


def rope_append(
    qkv: torch.Tensor, cos_sin: torch.Tensor, queries: torch.Tensor, cache: PagedCache
) -> None:
    """Rotate and append.

    Parameters
    ----------
    qkv
        BF16 [batch, (heads + 2 kv_heads) * head_dim].
    cos_sin
        FP32 [positions, 2, head_dim / 2].
    queries
        BF16 [batch, kv_heads, group, head_dim], written.
    cache
        Its ``context`` counts the token that is appended.
    """
    batch, kv_heads, group, dim = queries.shape
    heads = kv_heads * group
    rope_kernel[(batch, heads + 2 * kv_heads)](
        qkv,
        cos_sin,
        queries,
        cache.keys,
        cache.values,
        cache.table,
        cache.context,
        cache.table.shape[1],
        heads,
        kv_heads,
        dim,
        cache.block_tokens,
        num_warps=1,
    )


@triton.jit
def silu_kernel(gate_up, out, width, BLOCK: tl.constexpr):
    """SiLU of the gate times the other half."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = lane < width
    gate = tl.load(gate_up + row * 2 * width + lane, mask=real, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + lane, mask=real, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * width + lane, value.to(out.dtype.element_ty), mask=real)


def silu_mul(gate_up: torch.Tensor, out: torch.Tensor) -> None:
    """``out`` [rows, ffn] from ``gate_up`` [rows, 2 * ffn]: gates first."""
    rows, width = out.shape
    block = 512
    silu_kernel[(rows, triton.cdiv(width, block))](gate_up, out, width, block, num_warps=4)


@triton.jit
def embed_kernel(tokens, table, out, width, BLOCK: tl.constexpr):
    """Copy a row of the embedding table."""
    row, lane = tl.program_id(0), tl.arange(0, BLOCK)
    token = tl.load(tokens + row).to(tl.int64)
    value = tl.load(table + token * width + lane, mask=lane < width)
    tl.store(out + row * width + lane, value, mask=lane < width)


def embed(tokens: torch.Tensor, table: torch.Tensor, out: torch.Tensor) -> None:
    """``out`` [rows, width] = ``table`` [vocab, width] at ``tokens`` int32 [rows]."""
    width = table.shape[1]
    embed_kernel[(len(tokens),)](tokens, table, out, width, triton.next_power_of_2(width))


@triton.jit
def best_part_kernel(logits, best, where, vocab, parts, BLOCK: tl.constexpr):
    """Largest logit of a part of a row, and its place."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lane = part * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(logits + row * vocab + lane, mask=lane < vocab, other=float("-inf"))
    value = value.to(tl.float32)
    top = tl.max(value, 0)
    tl.store(best + row * parts + part, top)
    tl.store(where + row * parts + part, tl.min(tl.where(value == top, lane, vocab), 0))


@triton.jit
def best_kernel(best, where, tokens, parts, vocab, BLOCK: tl.constexpr):
    """Place of the largest of the parts' maxima (ties: the lowest; all NaN: the last token)."""
    row, lane = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(best + row * parts + lane, mask=lane < parts, other=float("-inf"))
    place = tl.load(where + row * parts + lane, mask=lane < parts, other=vocab)
    first = tl.min(tl.where(value == tl.max(value, 0), place, vocab), 0)
    tl.store(tokens + row, tl.minimum(first, vocab - 1))


def sample_greedy(logits: torch.Tensor, tokens: torch.Tensor, block: int = 2048) -> None:
    """``tokens`` int32 [rows] = argmax of ``logits`` [rows, vocab]."""
    rows, vocab = logits.shape
    parts = triton.cdiv(vocab, block)
    best = torch.empty((rows, parts), dtype=torch.float32)
    where = torch.empty((rows, parts), dtype=torch.int32)
    best_part_kernel[(rows, parts)](logits, best, where, vocab, parts, block)
    best_kernel[(rows,)](best, where, tokens, parts, vocab, triton.next_power_of_2(parts))


def gemm(hidden: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """``out`` [rows, n] = ``hidden`` [rows, k] times ``weight`` [n, k] transposed, in BF16."""
    torch.mm(hidden, weight.t(), out=out)


def gemm_fp8(hidden: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The same in FP8 e4m3 with one scale a tensor (FP32, on the GPU), to BF16."""
    result: torch.Tensor = torch._scaled_mm(
        hidden, weight.t(), scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16
    )
    return result
