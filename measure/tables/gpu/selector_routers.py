"""Tables of an NVIDIA GPU: the routers of Quest and exact top-k, Quest's summaries of a prompt."""

from __future__ import annotations

import copy
import dataclasses

import torch

from measure.harness.campaign import Bench, Place
from measure.harness.gpu import Launch, cold_sets
from measure.kernels.attention.launch import random_cache
from measure.kernels.gpu_router.exact_topk.router import ExactTopKRouter
from measure.kernels.gpu_router.quest import router as router_quest
from measure.kernels.gpu_router.quest.summaries import build_summaries
from measure.tables.gpu.routing import CACHE, HEADS, PROMPTS, SHAPE, gpu_bench, integers, layer_sets

CONTEXTS = (2048, 4096, 8192, 16384, 32768, 65536)
BUDGET_TOKENS, PAGE_TOKENS, BLOCK_PAGES = 2048, 16, 8


def selector_benches() -> list[Bench]:
    """Return the benches of both routers, for a budget of 2048 tokens, and of the summaries."""
    axes = {"batch": (1, 2, 4, 8, 16, 32), "context_tokens": CONTEXTS}
    top_pages = BUDGET_TOKENS // PAGE_TOKENS
    quest = HEADS | {
        "selector": ["quest"],
        "page_tokens": [PAGE_TOKENS],
        "top_pages": [top_pages],
        "summary_dtype": ["bf16"],
    }
    exact = CACHE | {"selector": ["exact_topk"], "top_tokens": [BUDGET_TOKENS]}
    benches = [
        gpu_bench(
            "gpu_route_quest",
            axes,
            _quest,
            quest,
            keys={"per": ("query_head", "kv_head")},
            slot="route",
        ),
        gpu_bench("gpu_route_exact_topk", axes, _exact_topk, exact, slot="route"),
    ]
    return [*benches, _summary_bench()]


def _summary_bench() -> Bench:
    """Return the bench of Quest's page summaries over the tokens of a prompt."""
    holds_for = CACHE | {
        "selector": ["quest"],
        "page_tokens": [PAGE_TOKENS],
        "summary_dtype": ["bf16"],
    }
    return gpu_bench("summary_build_quest", {"rows": PROMPTS}, _summaries, holds_for)


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
        top=BUDGET_TOKENS // PAGE_TOKENS - 1,
        shared=place["per"] == "kv_head",
    )
    pages = (tokens - 1) // PAGE_TOKENS
    moved = batch * pages * SHAPE.kv_heads * 2 * SHAPE.dim * 2
    others = (
        router_quest.random_router(batch, tokens, page_tokens=PAGE_TOKENS, like=first)
        for _ in range(layer_sets(moved) - 1)
    )
    return [first, *others], moved


def _exact_topk(place: Place) -> tuple[list[Launch], int]:
    """Return exact top-k routers on keys in rotation, and the bytes of one scan."""
    batch, tokens = integers(place, "batch", "context_tokens")
    group = SHAPE.heads // SHAPE.kv_heads
    query = torch.randn(batch, SHAPE.kv_heads, group, SHAPE.dim).bfloat16()
    first = ExactTopKRouter(query, random_cache(batch, tokens), tokens, BUDGET_TOKENS)
    moved = batch * tokens * SHAPE.kv_heads * SHAPE.dim * 2
    return [first, *(_elsewhere(first) for _ in range(layer_sets(moved) - 1))], moved


def _elsewhere(router: ExactTopKRouter) -> ExactTopKRouter:
    """Return a router with everything the same but where its keys lie in memory."""
    other = copy.copy(router)
    other.cache = dataclasses.replace(router.cache, keys=router.cache.keys.clone())
    return other
