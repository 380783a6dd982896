"""The table of exact top-k's router."""

from __future__ import annotations

import copy
import dataclasses

import torch

from measure.harness.campaign import Bench, Place
from measure.harness.gpu import Launch
from measure.kernels.attention.launch import random_cache
from measure.kernels.gpu_router.exact_topk.router import ExactTopKRouter
from measure.tables.gpu.bench import (
    CACHE,
    SELECTED_TOKENS,
    SELECTOR_AXES,
    SHAPE,
    gpu_bench,
    integers,
    layer_sets,
)


def benches() -> list[Bench]:
    """Return the bench of the router."""
    holds_for = CACHE | {"selector": ["exact_topk"], "top_tokens": [SELECTED_TOKENS]}
    return [gpu_bench("gpu_route_exact_topk", SELECTOR_AXES, _exact_topk, holds_for, slot="route")]


def _exact_topk(place: Place) -> tuple[list[Launch], int]:
    """Return exact top-k routers on keys in rotation, and the bytes of one scan."""
    batch, tokens = integers(place, "batch", "context_tokens")
    group = SHAPE.heads // SHAPE.kv_heads
    query = torch.randn(batch, SHAPE.kv_heads, group, SHAPE.dim).bfloat16()
    first = ExactTopKRouter(query, random_cache(batch, tokens), tokens, SELECTED_TOKENS)
    moved = batch * tokens * SHAPE.kv_heads * SHAPE.dim * 2
    return [first, *(_elsewhere(first) for _ in range(layer_sets(moved) - 1))], moved


def _elsewhere(router: ExactTopKRouter) -> ExactTopKRouter:
    """Return a router with everything the same but where its keys lie in memory."""
    other = copy.copy(router)
    other.cache = dataclasses.replace(router.cache, keys=router.cache.keys.clone())
    return other
