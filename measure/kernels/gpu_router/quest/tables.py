"""Tables of Quest's router and of its summaries of a prompt."""

from __future__ import annotations

import torch

from measure.harness.campaign import Bench, Place
from measure.harness.gpu import Launch, cold_sets
from measure.kernels.gpu_router.quest import router as router_quest
from measure.kernels.gpu_router.quest.summaries import build_summaries
from measure.tables.gpu.bench import (
    CACHE,
    HEADS,
    PROMPTS,
    SELECTED_TOKENS,
    SELECTOR_AXES,
    SHAPE,
    gpu_bench,
    integers,
    layer_sets,
)

PAGE_TOKENS, BLOCK_PAGES = 16, 8
TOP_PAGES = SELECTED_TOKENS // PAGE_TOKENS


def benches() -> list[Bench]:
    """Return the benches of the router, by query and by KV head, and of the summaries."""
    pages = {"selector": ["quest"], "page_tokens": [PAGE_TOKENS], "summary_dtype": ["bf16"]}
    per = {"per": ("query_head", "kv_head")}
    routed = HEADS | pages | {"top_pages": [TOP_PAGES]}
    return [
        gpu_bench("gpu_route_quest", SELECTOR_AXES, _quest, routed, keys=per, slot="route"),
        gpu_bench("summary_build_quest", {"rows": PROMPTS}, _summaries, CACHE | pages),
    ]


def _summaries(place: Place) -> tuple[list[Launch], int]:
    """Return builds of a prompt's summaries in rotation, and the bytes of one."""
    (tokens,) = integers(place, "rows")
    pages = -(-tokens // PAGE_TOKENS)
    blocks = -(-pages // BLOCK_PAGES)
    moved = (tokens + 2 * pages) * SHAPE.kv_heads * SHAPE.dim * 2
    table = torch.randperm(blocks).int()

    def one() -> Launch:
        keys = torch.randn(SHAPE.kv_heads, tokens, SHAPE.dim).bfloat16()
        pool = torch.empty(blocks, SHAPE.kv_heads, BLOCK_PAGES, 2, SHAPE.dim, dtype=torch.bfloat16)
        return lambda: build_summaries(keys, pool, table, PAGE_TOKENS)

    # Eight at least: what a replay takes to begin is spread over its launches.
    return [one() for _ in range(max(8, cold_sets(moved)))], moved


def _quest(place: Place) -> tuple[list[Launch], int]:
    """Return Quest routers on summaries in rotation, and the bytes of one scan."""
    batch, tokens = integers(place, "batch", "context_tokens")
    first = router_quest.random_router(
        batch,
        tokens,
        page_tokens=PAGE_TOKENS,
        top=TOP_PAGES - 1,
        shared=place["per"] == "kv_head",
    )
    pages = (tokens - 1) // PAGE_TOKENS
    moved = batch * pages * SHAPE.kv_heads * 2 * SHAPE.dim * 2
    others = (
        router_quest.random_router(batch, tokens, page_tokens=PAGE_TOKENS, like=first)
        for _ in range(layer_sets(moved) - 1)
    )
    return [first, *others], moved
