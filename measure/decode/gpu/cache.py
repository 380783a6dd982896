"""The paged KV cache of a decode run on a GPU, and the page summaries of its GPU routers."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from essim.errors import InputError
from essim.model.shape import ModelShape
from measure.decode.shared.kv_cache import THETA, check_room
from measure.kernels.attention.launch import PagedCache
from measure.kernels.flow import cpu as flow
from measure.kernels.flow import stage1

# The fused router reads its rows of pages in steps of so many.
ROW_PAGES = 128
# Pages a block of the stepwise router's summaries.
BLOCK_PAGES = 8
# A KV block is a page, so that a chosen page is read alone; dense attention likes larger ones.
KV_BLOCK_TOKENS, DENSE_BLOCK_TOKENS = 4, 32


def block_tokens(mode: str) -> int:
    """Return the tokens of a KV block of a mode's cache."""
    return DENSE_BLOCK_TOKENS if mode == "dense" else KV_BLOCK_TOKENS


class PagedKVCache:
    """Keys and values of every layer in BF16, blocks in random order, one block table for all.

    Attributes
    ----------
    context
        int32 [batch] on the GPU: cached tokens, the newest included; a step counts it up.
    evicted
        int32 [1] on the GPU: prompt tokens that are gone.
    cos_sin
        FP32 [capacity, 2, D/2]: of the RoPE position that each slot has.
    rope
        Cosines and sines of all positions, [positions, D/2] each.
    """

    def __init__(
        self, model: ModelShape, batch: int, capacity_tokens: int, block_tokens: int
    ) -> None:
        self.model, self.capacity_tokens = model, -(-capacity_tokens // block_tokens) * block_tokens
        check_room(model, self.capacity_tokens)
        blocks = self.capacity_tokens // block_tokens
        # The same blocks in every run of these sizes, so that runs with one seed hold one cache.
        order = torch.Generator("cuda").manual_seed(0)
        table = torch.randperm(batch * blocks, generator=order).reshape(batch, blocks).int()
        self.context = torch.ones(batch, dtype=torch.int32)
        self.evicted = torch.zeros(1, dtype=torch.int32)
        shape = (batch * blocks, model.kv_heads, block_tokens, model.head_dim)
        self.layers = [
            PagedCache(
                torch.zeros(shape, dtype=torch.bfloat16),
                torch.zeros(shape, dtype=torch.bfloat16),
                table,
                self.context,
            )
            for _ in range(model.layers)
        ]
        self.rope = _rope(model.max_context_tokens, model.head_dim)
        self.cos_sin = torch.zeros(self.capacity_tokens, 2, model.head_dim // 2)
        self.tokens = self.evicted_tokens = 0
        self.place(1, 0)

    def place(self, tokens: int, evicted_tokens: int) -> None:
        """Say how many tokens are cached and how many prompt tokens were evicted.

        Raises
        ------
        InputError
            If there is no room for one more token.
        """
        check_room(self.model, self.capacity_tokens, tokens, evicted_tokens)
        self.tokens, self.evicted_tokens = tokens, evicted_tokens
        self.context.fill_(tokens)
        self.evicted.fill_(evicted_tokens)
        end = min(evicted_tokens + self.capacity_tokens, self.model.max_context_tokens)
        for part, table in enumerate(self.rope):
            self.cos_sin[: end - evicted_tokens, part] = table[evicted_tokens:end]

    def fill_noise(self, generator: torch.Generator) -> None:
        """Fill every slot with unit noise."""
        for layer in self.layers:
            for part in (layer.keys, layer.values):
                part.normal_(generator=generator)

    def write(self, layer: int, sequence: int, keys: Tensor, values: Tensor) -> None:
        """Put a prompt's keys and values [G, tokens, D] into the first slots of a sequence."""
        own = self.layers[layer]
        slots = torch.arange(keys.shape[1])
        block, inside = own.table[sequence, slots // own.block_tokens], slots % own.block_tokens
        for pool, part in ((own.keys, keys), (own.values, values)):
            pool[block.long(), :, inside] = part.transpose(0, 1).to(pool.dtype)

    def keys(self, layer: int) -> Tensor:
        """Post-RoPE keys [b, G, tokens, D]."""
        return self._gathered(self.layers[layer].keys)

    def values(self, layer: int) -> Tensor:
        """Values [b, G, tokens, D]."""
        return self._gathered(self.layers[layer].values)

    def _gathered(self, pool: Tensor) -> Tensor:
        table = self.layers[0].table.long()
        found = pool[table].permute(0, 2, 1, 3, 4)
        return found.reshape(*found.shape[:2], -1, found.shape[-1])[:, :, : self.tokens]


@cache
def _rope(positions: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [positions, D/2] on the GPU, made once."""
    with torch.device("cpu"):
        cos, sin = flow.rope_table(positions, head_dim, THETA)
    return cos.cuda(), sin.cuda()


def planes(keys: Tensor, capacity_tokens: int, page_tokens: int) -> Tensor:
    """Summaries for the fused router, codes [b, G, 2, D, row_pages], from keys [b, G, tokens, D].

    The last page may be open.
    """
    batch, kv_heads, _, dim = keys.shape
    pages = -(-capacity_tokens // page_tokens)
    row = (pages // ROW_PAGES + 1) * ROW_PAGES
    codes = torch.zeros(batch, kv_heads, 2, dim, row, dtype=torch.uint8)
    for sequence in range(batch):
        stage1.build_summaries(keys[sequence].contiguous(), codes[sequence], page_tokens)
    return codes


def paged(codes: Tensor, table: Tensor) -> Tensor:
    """The same for the stepwise router: codes [blocks, G, block_pages, 2, D] by a block table."""
    batch, kv_heads, _, dim, row = codes.shape
    blocks = table.shape[1]
    pages = codes.permute(0, 4, 1, 2, 3)[:, : blocks * BLOCK_PAGES]
    if pages.shape[1] < blocks * BLOCK_PAGES:
        raise InputError(f"{row} pages do not fill {blocks} blocks of {BLOCK_PAGES}")
    pool = torch.zeros(batch * blocks, kv_heads, BLOCK_PAGES, 2, dim, dtype=torch.uint8)
    ordered = pages.reshape(batch, blocks, BLOCK_PAGES, kv_heads, 2, dim).transpose(2, 3)
    pool[table.reshape(-1).long()] = ordered.reshape(pool.shape)
    return pool
