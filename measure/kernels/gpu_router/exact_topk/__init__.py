"""Exact top-k's router."""

from __future__ import annotations

from measure.kernels.gpu_router import stepwise

# With Quest's router: tables that are there have one hash of both.
SOURCES = (
    *("gpu_router/exact_topk/router.py", "gpu_router/quest/router.py"),
    *("gpu_router/select.py", stepwise.KERNELS),
)
GPU_TABLES = {"gpu_route_exact_topk": SOURCES}
