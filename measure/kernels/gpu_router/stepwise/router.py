"""GPU routing as separate kernels, shaped like TensorRT-LLM's RocketKV backend.

Summary update; paged scoring (one program a sequence and KV head, serial over pages, reads min and
max of every channel); softmax; group reduction; top-k; page-offset gather. Where fewer than all
channels are asked for, a filter comes first. Summaries are paged like the KV cache:
uint8 e5m2 codes [blocks, kv_heads, block_pages, 2 (min, max), head_dim].
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton

from measure.kernels.gpu_router.stepwise.kernels import (
    filter_kernel,
    offset_kernel,
    reduce_kernel,
    score_kernel,
    softmax_kernel,
    top_kernel,
    update_kernel,
)

SCORE_PAGES, SCORE_WARPS, SCORE_STAGES = 128, 8, 3
"""Pages an iteration of the scoring loop takes, warps and depth of its pipeline."""


@dataclass
class StepwiseRouter:
    """State of one layer's router and its intermediate results.

    Attributes
    ----------
    queries, keys
        BF16 [batch, kv_heads, group, head_dim] and [batch, kv_heads, head_dim], after RoPE.
    pool
        Summaries, see the module.
    table
        int32 [batch, table_blocks]: blocks of each sequence.
    context
        int32 [batch]: tokens in the cache, the current one included.
    row_pages
        Capacity in pages.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    pool: torch.Tensor
    table: torch.Tensor
    context: torch.Tensor
    page_tokens: int
    row_pages: int
    top: int
    channels: int

    def __post_init__(self) -> None:
        batch, kv_heads, group, dim = self.queries.shape
        pairs = batch * kv_heads
        scores = (pairs * group, self.row_pages)
        self.filtered = torch.empty_like(self.queries)
        self.scales = torch.full((pairs * group,), dim**-0.5)
        self.scores = torch.full(scores, float("nan"))
        self.probabilities = torch.full(scores, float("nan"))
        self.sums = torch.full((pairs, self.row_pages), float("nan"))
        self.indices = torch.full((batch, kv_heads, self.top), -1, dtype=torch.int32)
        self.offsets = torch.full_like(self.indices, -7)

    def steps(self) -> dict[str, Callable[[], object]]:
        """The kernels in order, by name; each launches on the current stream."""
        batch, kv_heads, group, dim = self.queries.shape
        blocks, block_pages = self.table.shape[1], self.pool.shape[2]
        pairs, tokens, row = (batch, kv_heads), self.page_tokens, self.row_pages
        wide = max(16, triton.next_power_of_2(row))
        scanned = self.queries
        steps: dict[str, Callable[[], object]] = {}
        if self.channels < dim:
            scanned = self.filtered
            steps["filter"] = lambda: filter_kernel[(batch * kv_heads,)](
                self.queries, self.filtered, self.scales, self.channels, group, dim, num_warps=8
            )
        steps["update"] = lambda: update_kernel[pairs](
            self.keys,
            self.pool,
            self.table,
            self.context,
            kv_heads,
            blocks,
            tokens,
            block_pages,
            dim,
        )
        steps["score"] = lambda: score_kernel[pairs](
            scanned,
            self.scales,
            self.pool,
            self.table,
            self.context,
            self.scores,
            kv_heads,
            blocks,
            tokens,
            row,
            group,
            dim,
            block_pages,
            SCORE_PAGES,
            num_warps=SCORE_WARPS,
            num_stages=SCORE_STAGES,
        )
        steps["softmax"] = lambda: softmax_kernel[(kv_heads * group, batch)](
            self.scores,
            self.probabilities,
            self.context,
            kv_heads * group,
            tokens,
            row,
            min(wide, 1024),
        )
        steps["reduce"] = lambda: reduce_kernel[pairs](
            self.probabilities,
            self.sums,
            self.context,
            kv_heads,
            tokens,
            row,
            group,
            min(wide, 1024),
        )
        steps["top"] = lambda: top_kernel[pairs](
            self.sums,
            self.indices,
            self.context,
            kv_heads,
            tokens,
            row,
            self.top,
            wide,
            num_warps=8 if wide <= 4096 else 16,
        )
        steps["offsets"] = lambda: offset_kernel[(kv_heads, batch)](
            self.indices,
            self.table,
            self.offsets,
            self.context,
            kv_heads,
            blocks,
            tokens,
            self.top,
            block_pages,
            triton.next_power_of_2(self.top),
        )
        return steps

    def __call__(self) -> None:
        """Launch all kernels on the current stream."""
        for step in self.steps().values():
            step()

    def scan(self) -> None:
        """Launch the route alone."""
        for name, step in self.steps().items():
            if name != "update":
                step()

    def update(self) -> None:
        """Launch the update by the current token's keys alone."""
        self.steps()["update"]()

    def retarget(self, queries: torch.Tensor) -> None:
        """Route from other queries from now on."""
        self.queries = queries

    @property
    def bytes_read(self) -> int:
        """Bytes of summaries a scan reads at capacity."""
        batch, kv_heads, _, dim = self.queries.shape
        return int(batch * kv_heads * dim) * self.row_pages * 2


def random_router(
    batch: int,
    context_tokens: int,
    *,
    kv_heads: int = 8,
    group: int = 4,
    dim: int = 128,
    page_tokens: int = 4,
    block_pages: int = 8,
    top: int = 32,
    channels: int = 32,
    like: StepwiseRouter | None = None,
) -> StepwiseRouter:
    """A router on fresh random queries, keys and summaries, blocks in random order.

    With ``like`` only the summaries are new.
    """
    pages = (context_tokens - 1) // page_tokens + 1
    blocks = -(-pages // block_pages)
    spread = torch.rand(dim) * 2 + 0.25
    middle = torch.randn(batch * blocks, kv_heads, block_pages, dim) * spread
    half = torch.rand(middle.shape)
    pool = torch.stack([middle - half, middle + half], dim=3).to(torch.float8_e5m2)
    if like is not None:
        other = copy.copy(like)
        other.pool = pool.view(torch.uint8)
        return other
    return StepwiseRouter(
        torch.randn(batch, kv_heads, group, dim).bfloat16(),
        torch.randn(batch, kv_heads, dim).bfloat16(),
        pool.view(torch.uint8),
        torch.randperm(batch * blocks).reshape(batch, blocks).int(),
        torch.full((batch,), context_tokens, dtype=torch.int32),
        page_tokens,
        pages,
        top,
        channels,
    )
