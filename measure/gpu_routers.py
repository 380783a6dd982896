"""Tables of an NVIDIA GPU: the routers of Quest and exact top-k."""

from __future__ import annotations

import copy
import dataclasses

import torch

from measure.campaign import Bench, Place
from measure.gpu import Launch
from measure.gpu_tables import CACHE, HEADS, SHAPE, gpu_bench, integers, layer_sets
from measure.hashes import selector_hash
from measure.kernels import router_quest
from measure.kernels.attention import random_cache
from measure.kernels.router_exact_topk import ExactTopKRouter

CONTEXTS = (2048, 4096, 8192, 16384, 32768, 65536)
BUDGET_TOKENS, PAGE_TOKENS = 2048, 16


def selector_benches() -> list[Bench]:
    """Return the benches of both routers, for a budget of 2048 tokens."""
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
            slot="attention",
        ),
        gpu_bench("gpu_route_exact_topk", axes, _exact_topk, exact, slot="attention"),
    ]
    return [dataclasses.replace(bench, source_hash=selector_hash()) for bench in benches]


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
