"""The update of channel-major page summaries by new keys, where no route does it."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from measure.kernels.gpu_router.stepwise.kernels import decode_e5m2, encode_e5m2


@triton.jit
def widen_kernel(keys, summaries, context, row_pages, page_tokens, KV_HEADS, DIM: tl.constexpr):
    """Take the newest key of a (sequence, KV head) into its page's min and max codes."""
    pair, channel = tl.program_id(0), tl.arange(0, DIM)
    token = tl.load(context + pair // KV_HEADS) - 1
    opens = token % page_tokens == 0
    code = encode_e5m2(tl.load(keys + pair * DIM + channel))
    at = summaries + (pair.to(tl.int64) * 2 * DIM + channel) * row_pages + token // page_tokens
    low, high = tl.load(at), tl.load(at + DIM * row_pages)
    value = decode_e5m2(code)
    tl.store(at, tl.where(opens | (value < decode_e5m2(low)), code, low))
    tl.store(at + DIM * row_pages, tl.where(opens | (value > decode_e5m2(high)), code, high))


def widen(
    keys: torch.Tensor, summaries: torch.Tensor, context: torch.Tensor, page_tokens: int
) -> None:
    """Update summaries by the newest keys.

    Parameters
    ----------
    keys
        BF16 [batch, kv_heads, head_dim].
    summaries
        e5m2 codes [batch, kv_heads, 2 (min, max), head_dim, row_pages].
    context
        int32 [batch], the newest token included.
    """
    batch, kv_heads, dim = keys.shape
    widen_kernel[(batch * kv_heads,)](
        keys, summaries, context, summaries.shape[-1], page_tokens, kv_heads, dim, num_warps=4
    )
