"""Tables of the proxy projection on a GPU: both factors, the whole W_q, the first factor alone."""

from __future__ import annotations

from functools import partial

import torch

from measure.harness.campaign import Bench, Place
from measure.harness.gpu import Launch, cold_sets
from measure.kernels.flow import projection
from measure.kernels.numbers import rope_table
from measure.tables.gpu.bench import BATCHES, HEADS, SHAPE, gpu_bench


def proxy_benches() -> list[Bench]:
    """Return what an early query takes on the GPU, and what its latent does."""

    def proxy(place: Place) -> tuple[list[Launch], int]:
        if place["projection_rank"] == "full":
            return _full_proxies(int(place["batch"]))
        return _proxies(int(place["batch"]), down_only=False)

    def down(place: Place) -> tuple[list[Launch], int]:
        return _proxies(int(place["batch"]), down_only=True)

    batch, ranks = {"batch": BATCHES}, (SHAPE.rank, "full")
    whole = HEADS | {"hidden": [SHAPE.hidden], "projection_rank": ranks}
    weights = {"hidden": [SHAPE.hidden], "projection_rank": [SHAPE.rank]}
    return [
        gpu_bench("gpu_proxy", batch, proxy, whole, keys={"projection_rank": ranks}),
        gpu_bench("proxy_down", batch, down, weights, slot="anchor"),
    ]


def _proxies(batch: int, *, down_only: bool) -> tuple[list[Launch], int]:
    """Return the proxy projection of rank 128, or its first factor alone, on rotating weights."""
    table = torch.as_tensor(rope_table(4096, SHAPE.dim)).cuda()
    anchor = torch.randn(batch, SHAPE.hidden).bfloat16()
    latents = torch.randn(batch, SHAPE.rank).bfloat16()
    context = torch.full((batch,), 4096, dtype=torch.int32)
    group = SHAPE.heads // SHAPE.kv_heads
    query = torch.empty(batch, SHAPE.kv_heads, group, SHAPE.dim).bfloat16()
    moved = SHAPE.rank * SHAPE.hidden * 2 * (1 if down_only else 2)

    def one(down: torch.Tensor, up: torch.Tensor) -> Launch:
        def launch() -> None:
            projection.project_down(anchor, down, latents)
            if not down_only:
                projection.project_up(latents, up, table, context, query)

        return launch

    launches = [
        one(
            torch.randn(SHAPE.rank, SHAPE.hidden).bfloat16(),
            torch.randn(SHAPE.heads * SHAPE.dim, SHAPE.rank).bfloat16(),
        )
        for _ in range(cold_sets(moved))
    ]
    return launches, moved


def _full_proxies(batch: int) -> tuple[list[Launch], int]:
    """Return the proxy projection by the whole W_q, on rotating weights."""
    table = torch.as_tensor(rope_table(4096, SHAPE.dim)).cuda()
    anchor, normed = (torch.randn(batch, SHAPE.hidden).bfloat16() for _ in range(2))
    gain, context = torch.ones(SHAPE.hidden).bfloat16(), torch.full((batch,), 4096).int()
    group, width = SHAPE.heads // SHAPE.kv_heads, SHAPE.heads * SHAPE.dim
    query = torch.empty(batch, SHAPE.kv_heads, group, SHAPE.dim).bfloat16()
    moved = width * SHAPE.hidden * 2
    weights = [torch.randn(width, SHAPE.hidden).bfloat16() for _ in range(cold_sets(moved))]

    def launch(weight: torch.Tensor) -> None:
        projection.project_full(anchor, gain, weight, table, context, normed, query)

    return [partial(launch, weight) for weight in weights], moved
