"""The table of what a router beside the main stream costs it."""

from __future__ import annotations

from collections.abc import Sequence

from measure.harness.campaign import Bench, Place, Ready, grid, held_out
from measure.harness.hashes import table_hash
from measure.kernels.chain import Chain, Shape
from measure.tables.gpu.bench import (
    CONTEXTS,
    JUMPS,
    ROUTER,
    SHAPE,
    TOP_PAGES,
    UNITS,
    in_a_layer,
    integers,
)
from measure.tables.gpu.layer import LAYERS, Sampler, difference, release, replays


def side_stream_bench() -> Bench:
    """Return what a router beside the main stream costs it, per routed layer of a whole step."""
    shape = Shape(layers=LAYERS + 1, vocab=2048)
    axes = {"batch": (1, 2, 4, 8, 16), "context_tokens": CONTEXTS, "top_pages": TOP_PAGES}
    steps: dict[tuple[int, ...], tuple[Chain, Sampler]] = {}

    def prepare(place: Place) -> Ready:
        batch, tokens, top = at = tuple(integers(place, *axes))
        if at not in steps:
            steps.clear()
            release()
            chain = Chain(shape, batch, tokens, top_pages=top)
            steps[at] = chain, replays(chain.launches())
        chain, plain = steps[at]
        chain.routing, chain.kernel = "side", str(place["kernel"])
        beside = replays(chain.launches())
        chain.routing = "none"
        return in_a_layer(difference(beside, plain, LAYERS, 5))

    kernels = ("stepwise", "fused")

    def both(places: Sequence[Place]) -> tuple[Place, ...]:
        return tuple({"kernel": kernel} | dict(place) for place in places for kernel in kernels)

    return Bench(
        table="gpu_side_slowdown",
        keys=("kernel",),
        axes=tuple(axes),
        points=both(grid(**axes)),
        heldout=both(held_out(0, axes, UNITS)),
        prepare=prepare,
        dtype="bf16",
        source_hash=table_hash("gpu_side_slowdown", "GPU"),
        reference="a step with the router on a second stream minus the step without, per routed "
        "layer; rank-128 proxy on the second stream, forked after o_proj",
        holds_for=ROUTER | {"anchor": ["mid"], "projection_rank": [SHAPE.rank], "channels": [32]},
        jumps=JUMPS,
    )
