"""RocketKV's first stage after prefill, and the page summaries of what it keeps."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from measure.kernels.gpu_router.stepwise.kernels import encode_e5m2

WINDOW, POOL = 32, 63


def window_scores(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Softmax attention of the window's queries, summed over window and group.

    Parameters
    ----------
    queries
        [kv_heads, group, WINDOW, head_dim]: the last prompt queries.
    keys
        [kv_heads, tokens, head_dim].

    Returns
    -------
    FP32 [kv_heads, tokens - WINDOW]: the tokens before the window.
    """
    kv_heads, group, window, dim = queries.shape
    tokens = keys.shape[1]
    flat = queries.reshape(kv_heads, group * window, dim)
    scores = torch.bmm(flat, keys.transpose(1, 2)).float().mul_(dim**-0.5)
    scores = scores.view(kv_heads, group, window, tokens)
    later = torch.ones(window, window, dtype=torch.bool, device=keys.device).triu(1)
    scores[..., tokens - window :].masked_fill_(later, float("-inf"))
    return scores.softmax(dim=-1)[..., : tokens - window].sum(dim=(1, 2))


def select_prompt(queries: torch.Tensor, keys: torch.Tensor, budget: int) -> torch.Tensor:
    """Prompt tokens kept for each KV head, ascending [kv_heads, min(budget, tokens)]."""
    kv_heads, tokens = keys.shape[:2]
    if tokens <= budget:
        return torch.arange(tokens, device=keys.device).expand(kv_heads, -1)
    pooled = torch.nn.functional.max_pool1d(
        window_scores(queries, keys)[None], POOL, stride=1, padding=POOL // 2
    )[0]
    best = pooled.topk(budget - WINDOW, dim=-1).indices.sort(dim=-1).values
    window = torch.arange(tokens - WINDOW, tokens, device=keys.device).expand(kv_heads, -1)
    return torch.cat([best, window], dim=-1)


def compact(pool: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    """Keys or values [kv_heads, tokens, head_dim] at the kept tokens."""
    return pool.gather(1, kept[..., None].expand(-1, -1, pool.shape[-1]))


@triton.jit
def summary_kernel(
    keys, summaries, tokens, row_pages, page_tokens, DIM: tl.constexpr, PAGES: tl.constexpr
):
    """Min and max of ``PAGES`` pages of one KV head, transposed to channel-major."""
    head = tl.program_id(0).to(tl.int64)
    page, channel = tl.program_id(1) * PAGES + tl.arange(0, PAGES), tl.arange(0, DIM)
    low = tl.full([PAGES, DIM], float("inf"), tl.float32)
    high = tl.full([PAGES, DIM], float("-inf"), tl.float32)
    for member in range(0, page_tokens):
        token = page * page_tokens + member
        source = keys + (head * tokens + token[:, None]) * DIM + channel[None, :]
        real = token[:, None] < tokens
        low = tl.minimum(low, tl.load(source, mask=real, other=float("inf")).to(tl.float32))
        high = tl.maximum(high, tl.load(source, mask=real, other=float("-inf")).to(tl.float32))
    to = summaries + (head * 2 * DIM + channel[None, :]) * row_pages + page[:, None]
    real = (page * page_tokens < tokens)[:, None]
    tl.store(to, encode_e5m2(low), mask=real)
    tl.store(to + DIM * row_pages, encode_e5m2(high), mask=real)


def build_summaries(keys: torch.Tensor, summaries: torch.Tensor, page_tokens: int) -> None:
    """Codes [kv_heads, 2 (min, max), head_dim, row_pages] of BF16 keys [kv_heads, tokens, dim]."""
    kv_heads, tokens, dim = keys.shape
    pages = triton.cdiv(tokens, page_tokens)
    summary_kernel[(kv_heads, triton.cdiv(pages, 32))](
        keys, summaries, tokens, summaries.shape[-1], page_tokens, dim, 32, num_warps=4
    )


def prefill_attention(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """Causal attention through torch, [batch, heads, tokens, head_dim] with grouped KV heads."""
    return torch.nn.functional.scaled_dot_product_attention(
        queries, keys, values, is_causal=True, enable_gqa=True
    )
