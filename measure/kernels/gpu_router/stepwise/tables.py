"""The table of the stepwise router."""

from __future__ import annotations

from measure.harness.campaign import Bench, Place
from measure.harness.gpu import Launch
from measure.kernels.gpu_router.stepwise import router as router_stepwise
from measure.tables.gpu.bench import (
    JUMPS,
    ROUTER,
    ROUTER_AXES,
    SHAPE,
    TOP_PAGES,
    gpu_bench,
    integers,
)
from measure.tables.gpu.layer import LAYERS


def benches() -> list[Bench]:
    """Return the bench of the router with its updates."""
    # Its top-k is a radix over all pages, however many are wanted.
    holds_for = ROUTER | {"top_pages": ["{}..{}".format(*TOP_PAGES)]}
    return [
        gpu_bench(
            "gpu_route_stepwise",
            ROUTER_AXES,
            _stepwise,
            holds_for,
            dtype="e5m2",
            slot="route",
            jumps=JUMPS,
        )
    ]


def _stepwise(place: Place) -> tuple[list[Launch], int]:
    """Return stepwise routers on summaries in rotation, and the bytes of one scan."""
    batch, tokens = integers(place, "batch", "context_tokens")
    moved = batch * SHAPE.kv_heads * ((tokens - 1) // 4) * 256
    first = router_stepwise.random_router(batch, tokens)
    return [router_stepwise.random_router(batch, tokens, like=first) for _ in range(LAYERS)], moved
