"""The main flow of a decode layer as torch operations, on whatever device their tensors are.

Shapes: b sequences, H query heads in G groups (one KV head each), D head dimension, S cached
tokens, p tokens a page, N pages, k chosen pages. A cache is [b, G, capacity, D].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d, scaled_dot_product_attention, silu

# RocketKV stage 1: the last prompt queries that score the others, and the pooling over positions.
WINDOW_TOKENS = 32
POOL_TOKENS = 63
SUMMARY_DTYPE = torch.float8_e5m2


def gemm(x: Tensor, weight: Tensor) -> Tensor:
    """Return x W^T for x [rows, k] and W [n, k]."""
    return torch.mm(x, weight.t())


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    """Return the RMS norm of each row of x [rows, hidden]."""
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)


def silu_mul(gate_up: Tensor) -> Tensor:
    """Return silu(gate) * up for rows [gate | up]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return silu(gate) * up


def rope_table(positions: int, head_dim: int, theta: float = 10000.0) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [positions, D/2] in float32 (Llama's rotary embedding)."""
    frequencies = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = torch.arange(positions, dtype=torch.float64)[:, None] * frequencies
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [..., D] half against half by cos and sin [..., D/2]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def rope_append(
    qkv: Tensor, rope: tuple[Tensor, Tensor], keys: Tensor, values: Tensor, position: int
) -> Tensor:
    """Rotate queries and keys of one token a sequence and append K and V to the cache.

    Parameters
    ----------
    qkv
        [b, (H + 2G) D].
    keys, values
        Caches, written at `position`.

    Returns
    -------
    Tensor
        Rotated queries [b, H, D].
    """
    batch, kv_heads, _, head_dim = keys.shape
    heads = qkv.view(batch, -1, head_dim)
    cos, sin = (part[position] for part in rope)
    query_heads = heads.shape[1] - 2 * kv_heads
    turned = rotate(heads[:, : query_heads + kv_heads], cos.to(qkv.dtype), sin.to(qkv.dtype))
    keys[:, :, position] = turned[:, query_heads:]
    values[:, :, position] = heads[:, query_heads + kv_heads :]
    return turned[:, :query_heads]


def attend(query: Tensor, keys: Tensor, values: Tensor, tokens: int) -> Tensor:
    """Return decode attention over the first `tokens` of the cache: [b, H, D] -> [b, H D]."""
    out = scaled_dot_product_attention(
        query[:, :, None], keys[:, :, :tokens], values[:, :, :tokens], enable_gqa=True
    )
    return out.reshape(query.shape[0], -1)


def attend_pages(
    query: Tensor, keys: Tensor, values: Tensor, pages: Tensor, page_tokens: int, tokens: int
) -> Tensor:
    """Return decode attention over chosen pages [b, G, k] and the tail page."""
    batch, kv_heads, _, head_dim = keys.shape
    first_tail = (tokens - 1) // page_tokens * page_tokens
    offsets = torch.arange(page_tokens, device=pages.device)
    chosen = (pages.long()[..., None] * page_tokens + offsets).flatten(2)
    tail = torch.arange(first_tail, tokens, device=pages.device).expand(batch, kv_heads, -1)
    at = torch.cat((chosen[..., : min(chosen.shape[-1], first_tail)], tail), dim=-1)
    index = at[..., None].expand(-1, -1, -1, head_dim)
    out = scaled_dot_product_attention(
        query[:, :, None], keys.gather(2, index), values.gather(2, index), enable_gqa=True
    )
    return out.reshape(batch, -1)


def build_summary(keys: Tensor, page_tokens: int) -> Tensor:
    """Return element-wise min and max of every whole page: [b, G, N, 2, D] in e5m2."""
    batch, kv_heads, tokens, head_dim = keys.shape
    pages = keys[:, :, : tokens // page_tokens * page_tokens]
    pages = pages.view(batch, kv_heads, -1, page_tokens, head_dim)
    return torch.stack((pages.amin(3), pages.amax(3)), dim=3).to(SUMMARY_DTYPE)


def update_summary(summary: Tensor, key: Tensor, position: int, page_tokens: int) -> None:
    """Widen the page of `position` by a new key [b, G, D]; a page's first key replaces it."""
    page = position // page_tokens
    low = high = key
    if position % page_tokens:
        known = summary[:, :, page].to(key.dtype)
        low, high = torch.minimum(known[:, :, 0], key), torch.maximum(known[:, :, 1], key)
    summary[:, :, page] = torch.stack((low, high), dim=2).to(SUMMARY_DTYPE)


def route(query: Tensor, summary: Tensor, pages: int, top_pages: int, channels: int) -> Tensor:
    """Choose pages of one layer (RocketKV's hybrid sparse attention, stage 2).

    Parameters
    ----------
    query
        [b, H, D], after RoPE.
    summary
        [b, G, N, 2, D]; the first `pages` are scored.

    Returns
    -------
    Tensor
        Page indices [b, G, min(k, pages)], best first.
    """
    batch, kv_heads, _, _, head_dim = summary.shape
    grouped = query.view(batch, kv_heads, -1, head_dim)
    weight = grouped.abs().sum(2)
    best = weight.topk(channels, dim=-1).indices
    wanted = best[:, :, None].expand(-1, -1, grouped.shape[2], -1)
    chosen = grouped.gather(3, wanted)
    maximum = grouped.sum(2).gather(2, best) > 0
    bounds = summary[:, :, :pages].to(query.dtype)
    index = best[:, :, None, None].expand(-1, -1, pages, 2, -1)
    low, high = bounds.gather(4, index).unbind(3)
    side = torch.where(maximum[:, :, None], high, low)
    scores = torch.matmul(chosen, side.transpose(2, 3))
    kept = chosen.abs().sum(3) / grouped.abs().sum(3)
    scale = torch.rsqrt(head_dim * kept)[..., None]
    shares = torch.softmax(scores.float() * scale.float(), dim=-1).sum(2)
    return shares.topk(min(top_pages, pages), dim=-1).indices


def stage1_select(query: Tensor, keys: Tensor, budget: int) -> Tensor:
    """Return the prompt tokens to keep, ascending [b, G, budget] (RocketKV, stage 1).

    The last 32 queries [b, H, 32, D] score all earlier keys [b, G, S, D]; scores are summed over
    the queries and the group, max-pooled over positions, and the best stay beside the window.
    """
    batch, kv_heads, tokens, head_dim = keys.shape
    grouped = query.view(batch, kv_heads, -1, head_dim)
    before = tokens - WINDOW_TOKENS
    scores = torch.matmul(grouped, keys[:, :, :before].transpose(2, 3)) / math.sqrt(head_dim)
    mass = torch.softmax(scores.float(), dim=-1).sum(2)
    pooled = max_pool1d(mass, POOL_TOKENS, stride=1, padding=POOL_TOKENS // 2)
    best = pooled.topk(min(budget - WINDOW_TOKENS, before), dim=-1).indices.sort(dim=-1).values
    window = torch.arange(before, tokens, device=keys.device).expand(batch, kv_heads, -1)
    return torch.cat((best, window), dim=-1)


def compact(cache: Tensor, kept: Tensor) -> Tensor:
    """Return a cache's kept tokens [b, G, kept, D]."""
    return cache.gather(2, kept[..., None].expand(-1, -1, -1, cache.shape[-1]))


def prefill_attention(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return causal attention over the whole prompt: [b, H, S, D] in, [b, S, H D] out."""
    out = scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=True)
    return out.transpose(1, 2).flatten(2)
