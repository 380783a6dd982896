"""Compare the main flow's kernels with float64 on fresh random inputs; name -> relative error."""

from __future__ import annotations

import numpy as np
import torch

from float64.errors import floats, relative_error
from float64.router import latent, page_summaries, rotate, to_e5m2
from measure.kernels.attention.launch import random_cache
from measure.kernels.flow import gpu as flow
from measure.kernels.flow import projection, stage1
from measure.kernels.numbers import rope_table

NAN = float("nan")


def random(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Standard normal."""
    return torch.randn(shape, dtype=torch.float32).to(dtype)


def check_norm(rows: int, width: int) -> float:
    """RMS norm with residual add."""
    inputs, residual, weight = random(rows, width), random(rows, width), random(width)
    total = floats(inputs) + floats(residual)
    out = torch.full_like(inputs, NAN)
    flow.rms_norm(residual, weight, out, inputs)
    scale = np.sqrt(np.mean(total**2, axis=1, keepdims=True) + 1e-5)
    return max(
        relative_error(floats(out), total / scale * floats(weight)),
        relative_error(floats(residual), total),
    )


def check_rope(batch: int, tokens: int, kv_heads: int, group: int, dim: int) -> float:
    """Rotated queries, and key and value in the cache."""
    cache = random_cache(batch, tokens, kv_heads=kv_heads, dim=dim)
    table = torch.as_tensor(rope_table(tokens, dim), device=cache.keys.device)
    heads = kv_heads * group
    qkv = random(batch, (heads + 2 * kv_heads) * dim)
    queries = torch.full((batch, kv_heads, group, dim), NAN, dtype=torch.bfloat16)
    flow.rope_append(qkv, table, queries, cache)
    parts = floats(qkv).reshape(batch, -1, dim)
    turned = rotate(parts[:, : heads + kv_heads], floats(table)[tokens - 1])
    block, place = cache.table[:, (tokens - 1) // 32].long(), (tokens - 1) % 32
    return max(
        relative_error(floats(queries).reshape(batch, heads, dim), turned[:, :heads]),
        relative_error(floats(cache.keys[block, :, place]), turned[:, heads:]),
        relative_error(floats(cache.values[block, :, place]), parts[:, heads + kv_heads :]),
    )


def check_silu(rows: int, width: int) -> float:
    """SiLU times the other half."""
    gate_up, out = random(rows, 2 * width), torch.full((rows, width), NAN, dtype=torch.bfloat16)
    flow.silu_mul(gate_up, out)
    gate, up = np.split(floats(gate_up), 2, axis=1)
    return relative_error(floats(out), gate / (1 + np.exp(-gate)) * up)


def check_ends(rows: int, vocab: int, width: int) -> float:
    """Embedding and greedy sampling: share of wrong values."""
    table, tokens = random(vocab, width), torch.randint(0, vocab, (rows,), dtype=torch.int32)
    out = torch.full((rows, width), NAN, dtype=torch.bfloat16)
    flow.embed(tokens, table, out)
    logits, best = random(rows, vocab), torch.full((rows,), -1, dtype=torch.int32)
    flow.sample_greedy(logits, best)
    wrong = np.mean(floats(out) != floats(table)[tokens.cpu().numpy()])
    return float(wrong + np.mean(best.cpu().numpy() != floats(logits).argmax(axis=1)))


def check_down(batch: int, width: int, rank: int) -> float:
    """Down-projection with norm."""
    anchors, weight = random(batch, width), random(rank, width)
    out = torch.full((batch, rank), NAN, dtype=torch.bfloat16)
    projection.project_down(anchors, weight, out)
    return relative_error(floats(out), latent(floats(anchors), floats(weight), 1e-5))


def check_query(
    batch: int,
    width: int,
    kv_heads: int,
    group: int,
    dim: int,
    full: bool,
    dtype: torch.dtype = torch.bfloat16,
) -> float:
    """Proxy query from anchors by the whole W_q, or from latents."""
    inputs, weight = (
        random(batch, width, dtype=dtype),
        random(kv_heads * group * dim, width, dtype=dtype),
    )
    context = torch.randint(1, 100, (batch,), dtype=torch.int32)
    table = torch.as_tensor(rope_table(100, dim), device=inputs.device)
    out = torch.full((batch, kv_heads, group, dim), NAN, dtype=dtype)
    x = floats(inputs)
    if full:
        gain = random(width, dtype=dtype)
        projection.project_full(
            inputs, gain, weight, table, context, torch.full_like(inputs, NAN), out
        )
        x = x / np.sqrt(np.mean(x**2, axis=1, keepdims=True) + 1e-5) * floats(gain)
    else:
        projection.project_up(inputs, weight, table, context, out)
    plain = (x @ floats(weight).T).reshape(batch, -1, dim)
    turned = rotate(plain, floats(table)[context.cpu().numpy() - 1][:, None])
    return relative_error(floats(out).reshape(plain.shape), turned)


def check_summary_build(kv_heads: int, tokens: int, dim: int, page_tokens: int) -> float:
    """Share of summary codes that are wrong."""
    keys, pages = random(kv_heads, tokens, dim), -(-tokens // page_tokens)
    out = torch.full((kv_heads, 2, dim, pages + 3), 255, dtype=torch.uint8)
    stage1.build_summaries(keys, out, page_tokens)
    expected = np.stack(
        [
            np.stack([to_e5m2(part).T for part in page_summaries(floats(head), page_tokens)])
            for head in keys
        ]
    )
    return float(np.mean(out[..., :pages].cpu().numpy() != expected))


def check_prefill(kv_heads: int, group: int, tokens: int, dim: int) -> float:
    """Causal attention over a prompt."""
    queries = random(1, kv_heads * group, tokens, dim)
    keys, values = random(1, kv_heads, tokens, dim), random(1, kv_heads, tokens, dim)
    out = floats(stage1.prefill_attention(queries, keys, values))
    grouped = floats(queries).reshape(kv_heads, group, tokens, dim)
    scores = np.einsum("hgqd,hkd->hgqk", grouped, floats(keys)[0]) / np.sqrt(dim)
    scores += np.triu(np.full((tokens, tokens), -np.inf), 1)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    expected = np.einsum("hgqk,hkd->hgqd", weights, floats(values)[0])
    return relative_error(out.reshape(expected.shape), expected)


def check_gemm(rows: int, n: int, k: int, fp8: bool = False) -> float:
    """A GEMM in BF16, or of FP8 codes."""
    kind = torch.float8_e4m3fn if fp8 else torch.bfloat16
    hidden, weight = random(rows, k).to(kind), random(n, k).to(kind)
    out = torch.full((rows, n), NAN, dtype=torch.bfloat16)
    if fp8:
        out = flow.gemm_fp8(hidden, weight, torch.ones(()))
    else:
        flow.gemm(hidden, weight, out)
    return relative_error(floats(out), floats(hidden.float()) @ floats(weight.float()).T)


def check_stage1(kv_heads: int, group: int, tokens: int, budget: int) -> float:
    """Share of kept tokens that float64 would not keep."""
    dim = 64
    queries, keys = random(kv_heads, group, 32, dim), random(kv_heads, tokens, dim)
    kept = stage1.select_prompt(queries.float(), keys.float(), budget).cpu().numpy()
    scores = np.einsum("hgwd,htd->hgwt", floats(queries), floats(keys)) / np.sqrt(dim)
    scores[..., -32:] += np.triu(np.full((32, 32), -np.inf), 1)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mass = (weights / weights.sum(axis=-1, keepdims=True))[..., :-32].sum(axis=(1, 2))
    padded = np.pad(mass, ((0, 0), (31, 31)), constant_values=-np.inf)
    pooled = np.lib.stride_tricks.sliding_window_view(padded, 63, axis=1).max(axis=-1)
    wrong = 0.0
    for head in range(kv_heads):
        bound = np.sort(pooled[head])[-(budget - 32)]
        early = kept[head][kept[head] < tokens - 32]
        wrong += float(np.mean(pooled[head][early] < bound * (1 - 1e-5)))
        wrong += float(len(np.unique(kept[head])) != budget)
    return wrong
