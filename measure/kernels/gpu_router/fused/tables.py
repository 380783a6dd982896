"""The table of the fused router."""

from __future__ import annotations

from measure.harness.campaign import Bench, Place
from measure.harness.gpu import Launch
from measure.kernels.gpu_router.fused import router as router_fused
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
    axes = ROUTER_AXES | {"top_pages": TOP_PAGES}
    holds_for = ROUTER | {"channels": [32]}
    return [
        gpu_bench(
            "gpu_route_fused", axes, _fused, holds_for, dtype="e5m2", slot="route", jumps=JUMPS
        )
    ]


def _fused(place: Place) -> tuple[list[Launch], int]:
    """Return fused routers on summaries in rotation, and the bytes of one scan."""
    batch, tokens, top = integers(place, "batch", "context_tokens", "top_pages")
    moved = batch * SHAPE.kv_heads * ((tokens - 1) // 4) * 32
    first = router_fused.random_router(batch, tokens, top=top)
    return [router_fused.random_router(batch, tokens, like=first) for _ in range(LAYERS)], moved
