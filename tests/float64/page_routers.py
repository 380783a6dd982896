"""Compare the GPU routers with the float64 reference on their own random inputs."""

from __future__ import annotations

import numpy as np
import torch

from float64.errors import floats, routed_error, updated_summary
from measure.kernels.gpu_router.fused.router import FusedRouter
from measure.kernels.gpu_router.stepwise.router import StepwiseRouter


def paged_summaries(router: StepwiseRouter) -> torch.Tensor:
    """The pool in order of pages: [batch, kv_heads, 2, pages, head_dim]."""
    gathered = router.pool[router.table.long()]
    batch, blocks, kv_heads, block_pages, _, dim = gathered.shape
    ordered = gathered.permute(0, 2, 4, 1, 3, 5)
    return ordered.reshape(batch, kv_heads, 2, blocks * block_pages, dim)


def check_summaries(
    before: torch.Tensor,
    after: torch.Tensor,
    keys: torch.Tensor,
    context: torch.Tensor,
    page_tokens: int,
) -> float:
    """Share of summary codes that are wrong; before, after [batch, kv_heads, 2, pages, dim]."""
    expected = before.cpu().numpy().copy()
    for row, tokens in enumerate(context.tolist()):
        page = (tokens - 1) // page_tokens
        for head in range(expected.shape[1]):
            expected[row, head, :, page] = updated_summary(
                expected[row, head, :, page],
                floats(keys[row, head]),
                (tokens - 1) % page_tokens == 0,
            )
    return float(np.mean(expected != after.cpu().numpy()))


def check_selection(
    queries: torch.Tensor,
    summaries: torch.Tensor,
    indices: torch.Tensor,
    context: torch.Tensor,
    page_tokens: int,
    channels: int,
) -> float:
    """Worst `routed_error`; summaries [batch, kv_heads, 2, pages, dim] in e5m2 codes."""
    codes, chosen, worst = summaries.cpu().numpy(), indices.cpu().numpy(), 0.0
    for row, tokens in enumerate(context.tolist()):
        pages = (tokens - 1) // page_tokens
        for head in range(codes.shape[1]):
            low, high = codes[row, head, :, :pages]
            worst = max(
                worst,
                routed_error(floats(queries[row, head]), low, high, chosen[row, head], channels),
            )
    return worst


def check_stepwise(router: StepwiseRouter) -> dict[str, float]:
    """Run once; errors of the update, the selection and the offsets."""
    before = paged_summaries(router).clone()
    router.indices.fill_(-1)
    router.offsets.fill_(-7)
    router()
    after = paged_summaries(router)
    pages, block_pages = router.indices.long(), router.pool.shape[2]
    rows = torch.arange(len(router.table))[:, None, None]
    blocks = router.table.long()[rows, pages.clamp(min=0) // block_pages]
    offsets = torch.where(pages < 0, -1, blocks * block_pages + pages % block_pages)
    return {
        "summaries": check_summaries(
            before, after, router.keys, router.context, router.page_tokens
        ),
        "selection": check_selection(
            router.queries,
            after,
            router.indices,
            router.context,
            router.page_tokens,
            router.channels,
        ),
        "offsets": float((offsets != router.offsets).float().mean()),
    }


def check_fused(router: FusedRouter) -> dict[str, float]:
    """Run once; errors of the update and the selection."""
    before = router.summaries.transpose(3, 4).clone()
    router.indices.fill_(-7)
    router()
    torch.cuda.synchronize()
    after = router.summaries.transpose(3, 4)
    errors = {
        "selection": check_selection(
            router.queries,
            before,
            router.indices,
            router.context,
            router.page_tokens,
            router.channels,
        )
    }
    if router.keys is not None:
        errors["summaries"] = check_summaries(
            before, after, router.keys, router.context, router.page_tokens
        )
    return errors
