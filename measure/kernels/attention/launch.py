"""Attention of a decode step: dense with split KV, and sparse over selected pages.

One program takes all heads of a KV head, so that keys and values are read once. The cache of a
sequence is paged: [blocks, kv_heads, block_tokens, head_dim] each for keys and values, with a block
table [batch, table_blocks]. Splits are joined by a second kernel, as in flash-decoding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from essim.errors import InputError
from measure.kernels.attention.kernels import dense_kernel, join_kernel, sparse_kernel

SMS = 132
LOG2E = 1.4426950408889634


@dataclass
class PagedCache:
    """Keys and values of one layer.

    keys, values [blocks, kv_heads, block_tokens, head_dim]; table int32 [batch, table_blocks];
    context int32 [batch], the current token included.
    """

    keys: torch.Tensor
    values: torch.Tensor
    table: torch.Tensor
    context: torch.Tensor

    @property
    def block_tokens(self) -> int:
        """Tokens a block."""
        return int(self.keys.shape[2])


@dataclass
class Attention:
    """Decode attention over a cache; sparse where ``indices`` are given.

    Attributes
    ----------
    queries
        BF16 [batch, kv_heads, group, head_dim].
    splits
        Programs a (sequence, KV head); the second kernel runs where there are several.
    indices
        int32 [batch, kv_heads, top], -1 for none; the tail page is added.
    """

    queries: torch.Tensor
    cache: PagedCache
    splits: int
    indices: torch.Tensor | None = None
    page_tokens: int = 4
    tokens_step: int = 64
    num_warps: int = 4
    num_stages: int = 3

    def __post_init__(self) -> None:
        batch, kv_heads, group, dim = self.queries.shape
        if self.tokens_step % self.cache.block_tokens and self.indices is not None:
            raise InputError("attention: the step must be a multiple of the block")
        parts = (batch * kv_heads, self.splits, group)
        self.result = torch.full_like(self.queries, float("nan"))
        self.partial = torch.empty((*parts, dim), dtype=torch.float32)
        self.stats = torch.empty((*parts, 2), dtype=torch.float32)

    def __call__(self) -> None:
        """Launch on the current stream."""
        batch, kv_heads, group, dim = self.queries.shape
        cache, pairs, scale = self.cache, batch * kv_heads, dim**-0.5 * LOG2E
        rest = (kv_heads, cache.table.shape[1], self.splits, scale)
        outputs = (self.result, self.partial, self.stats)
        inputs = (self.queries, cache.keys, cache.values, cache.table, cache.context)
        shape = (group, dim, cache.block_tokens, self.tokens_step, self.splits > 1)
        if self.indices is None:
            dense_kernel[(pairs, self.splits)](
                *inputs,
                *outputs,
                *rest,
                *shape,
                num_warps=self.num_warps,
                num_stages=self.num_stages,
            )
        else:
            sparse_kernel[(pairs, self.splits)](
                *inputs,
                self.indices,
                *outputs,
                *rest,
                self.indices.shape[-1],
                self.page_tokens,
                *shape,
                num_warps=self.num_warps,
                num_stages=2,
            )
        if self.splits > 1:
            join_kernel[(pairs, group)](
                self.partial,
                self.stats,
                self.result,
                self.splits,
                group,
                dim,
                triton.next_power_of_2(self.splits),
                num_warps=2,
            )


def dense_attention(queries: torch.Tensor, cache: PagedCache, tokens: int) -> Attention:
    """Dense attention, tuned for ``tokens``: at least two steps a program, few waves over the SMs.

    Steps are short while sequences alone do not fill the SMs; what joins more than 64 splits takes
    longer than they save.
    """
    pairs = queries.shape[0] * queries.shape[1]
    step, waves = (64, 4) if pairs <= SMS else (128, 2)
    splits = max(1, min(waves * SMS // pairs, -(-tokens // (2 * step)), 64))
    return Attention(queries, cache, splits, tokens_step=step)


def sparse_attention(
    queries: torch.Tensor, cache: PagedCache, indices: torch.Tensor, page_tokens: int = 4
) -> Attention:
    """Sparse attention, tuned: one step where the tokens fit and SMs are idle, else splits."""
    pairs, block = queries.shape[0] * queries.shape[1], cache.block_tokens
    slots = (indices.shape[-1] + 1) * block
    if slots <= 256 and pairs <= SMS:
        step = max(64, triton.next_power_of_2(slots))
        return Attention(queries, cache, 1, indices, page_tokens, step, 8)
    splits = max(1, min(8, 4 * SMS // pairs, slots // 128))
    return Attention(queries, cache, splits, indices, page_tokens, 128, 4)


def random_cache(
    batch: int,
    tokens: int,
    *,
    kv_heads: int = 8,
    dim: int = 128,
    block_tokens: int = 32,
    contiguous: bool = False,
    dtype: torch.dtype = torch.bfloat16,
) -> PagedCache:
    """A cache of random tokens whose blocks lie in random order, or in order."""
    blocks = -(-tokens // block_tokens)
    shape = (batch * blocks, kv_heads, block_tokens, dim)
    order = torch.arange(batch * blocks) if contiguous else torch.randperm(batch * blocks)
    return PagedCache(
        torch.randn(shape, dtype=dtype),
        torch.randn(shape, dtype=dtype),
        order.reshape(batch, blocks).int(),
        torch.full((batch,), tokens, dtype=torch.int32),
    )


def random_pages(batch: int, kv_heads: int, pages: int, top: int) -> torch.Tensor:
    """Different random pages for each KV head, int32 [batch, kv_heads, top], -1 for none."""
    order = torch.rand(batch, kv_heads, pages).argsort(dim=-1)[..., :top].int()
    return torch.nn.functional.pad(order, (0, top - order.shape[-1]), value=-1).contiguous()
