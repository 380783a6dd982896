"""Quest's router and page summaries."""

from __future__ import annotations

from measure.kernels.gpu_router import exact_topk, stepwise

GPU_TABLES = {
    "gpu_route_quest": exact_topk.SOURCES,
    "summary_build_quest": ("gpu_router/quest/summaries.py", stepwise.KERNELS),
}
