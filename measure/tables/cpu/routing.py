"""Tables of routing on a CPU: inline as torch operations, and the C++ router with its hand-over."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from measure.harness.campaign import Bench, Place, Ready, grid, held_out
from measure.harness.hashes import table_hash
from measure.harness.router_timing import LATENT, sample, sample_updates
from measure.kernels.cpu_router.abi import Pages, RouterShape
from measure.kernels.cpu_router.router import Router
from measure.kernels.flow import cpu as flow
from measure.kernels.numbers import rope_table
from measure.tables.cpu.flow import attention_conditions
from measure.tables.cpu.plan import Plan, flow_bench, random, rotation

# Held out are places at a usual number of threads, and some between numbers.
_USUAL_THREADS, _THREADS_HELD_OUT = 8, 8
# Enough calls for a 99th percentile, and as many as warming up may take.
_ROUTER_CALLS, _WARM_UP_CALLS = 2000, 500


def routing_benches(plan: Plan) -> list[Bench]:
    """Return the tables of routing and of what it adds to the main stream."""
    return [_inline(plan), _proxy_down(plan), *router_benches(plan)]


def router_benches(plan: Plan) -> list[Bench]:
    """Return the tables of the C++ router alone."""
    return [_cpu_route(plan), _cpu_update(plan)]


def _conditions(plan: Plan) -> dict[str, list[int | str]]:
    pages: dict[str, list[int | str]] = {"page_tokens": [plan.page_tokens]}
    top: int | str = f"{plan.top_pages}..{plan.most_pages}" if plan.most_pages else plan.top_pages
    pages |= {"top_pages": [top], "channels": [plan.channels]}
    heads = attention_conditions(plan)
    del heads["kv_dtype"]
    return heads | pages | {"selector": ["rocketkv"]}


def _inline(plan: Plan) -> Bench:
    """Summary update and stage-2 selection as torch operations: the inline baseline."""
    m, page = plan.model, plan.page_tokens

    def prepare(place: Place) -> Ready:
        batch, tokens = int(place["batch"]), int(place["context_tokens"])
        pages = (tokens - 1) // page
        moved = batch * pages * 2 * m.kv_width

        def make() -> Callable[[], object]:
            query = random(batch, m.heads, m.head_dim)
            keys = random(batch, m.kv_heads, (pages + 1) * page, m.head_dim)
            summary, key = flow.build_summary(keys, page), keys[:, :, -1]

            def route() -> object:
                flow.update_summary(summary, key, tokens - 1, page)
                return flow.route(query, summary, pages, plan.top_pages, plan.channels)

            return route

        return Ready(rotation(make, moved), moved)

    axes = {"batch": plan.batches, "context_tokens": plan.contexts}
    return flow_bench("gpu_route_stepwise", plan, axes, prepare, _conditions(plan))


def _proxy_down(plan: Plan) -> Bench:
    """norm1 of the next layer and the first low-rank factor."""
    m = plan.model

    def prepare(place: Place) -> Ready:
        batch, moved = int(place["batch"]), plan.rank * m.hidden * 4

        def make() -> Callable[[], object]:
            x, gain, down = random(batch, m.hidden), random(m.hidden), random(plan.rank, m.hidden)
            return lambda: flow.gemm(flow.rms_norm(x, gain), down).bfloat16()

        return Ready(rotation(make, moved), moved)

    holds = {"hidden": [plan.model.hidden], "projection_rank": [plan.rank]}
    return flow_bench("proxy_down", plan, {"batch": plan.batches}, prepare, holds)


def router_shape(plan: Plan, batch: int, tokens: int) -> RouterShape:
    """Return the C++ router's sizes for a batch and a context."""
    pages = Pages(plan.page_tokens, plan.top_pages, plan.channels)
    return RouterShape.of(plan.model, batch, tokens, pages, plan.rank)


def filled_router(plan: Plan, threads: int, batch: int, tokens: int) -> Router:
    """Return a running router whose layers hold noise."""
    router = Router(router_shape(plan, batch, tokens), threads)
    router.set_rope(rope_table(tokens, plan.model.head_dim))
    router.randomize(plan.seed)
    return router


def _router_bench(
    table: str,
    plan: Plan,
    axes: dict[str, tuple[int, ...]],
    prepare: Callable[[Place], Ready],
    reference: str,
) -> Bench:
    held = {name: ticks for name, ticks in axes.items() if name != "threads"}
    between = held_out(plan.seed, axes)[:_THREADS_HELD_OUT] if len(plan.threads) > 1 else ()
    usual = min(plan.threads, key=lambda count: abs(count - _USUAL_THREADS))
    heldout = *({"threads": usual} | dict(at) for at in held_out(plan.seed, held)), *between
    conditions = _conditions(plan) | {"projection_rank": [0, plan.rank], "summary_dtype": ["fp8"]}
    return Bench(
        table=table,
        axes=tuple(axes),
        points=grid(**axes),
        heldout=heldout,
        prepare=prepare,
        dtype="e5m2",
        source_hash=table_hash(table, "CPU"),
        reference=reference,
        holds_for=conditions | {"down_projection": ["none", "gpu"]},
    )


def _cpu_route(plan: Plan) -> Bench:
    m = plan.model
    axes = {"threads": plan.threads, "batch": plan.batches, "context_tokens": plan.contexts}
    sampled: dict[tuple[int, ...], npt.NDArray[np.float64]] = {}

    def prepare(place: Place) -> Ready:
        threads, batch, tokens = at = tuple(int(place[axis]) for axis in axes)
        if at not in sampled:
            # Filling a router takes longer than timing it, so all its contexts are timed in one.
            alike = [(threads, batch, int(other["context_tokens"])) for other in places(at[:2])]
            calls = _WARM_UP_CALLS + _ROUTER_CALLS
            with filled_router(plan, threads, batch, max(plan.contexts)) as router:
                sampled.update({to: sample(router, LATENT, to[-1], 20e-6, calls) for to in alike})
        seconds = iter(sampled.pop(at))
        pages = (tokens - 1) // plan.page_tokens
        weights = plan.rank * m.q_width * 2
        moved = weights + batch * m.kv_heads * pages * plan.channels
        return Ready(lambda: float(next(seconds)), moved, _ROUTER_CALLS)

    def places(of: tuple[int, ...]) -> list[Place]:
        every = (*bench.points, *bench.heldout)
        return [place for place in every if (place["threads"], place["batch"]) == of]

    reference = (
        "C++ router with room for the longest context, from the request word to the answer word, "
        "20 us idle before each call"
    )
    bench = _router_bench("cpu_route", plan, axes, prepare, reference)
    return bench


def _cpu_update(plan: Plan) -> Bench:
    m = plan.model

    def prepare(place: Place) -> Ready:
        threads, batch = int(place["threads"]), int(place["batch"])
        tokens = plan.contexts[0]
        with filled_router(plan, threads, batch, tokens) as router:
            seconds = iter(sample_updates(router, tokens, 20e-6, _WARM_UP_CALLS + _ROUTER_CALLS))
        return Ready(lambda: float(next(seconds)), batch * m.kv_width * 4, _ROUTER_CALLS)

    axes = {"threads": plan.threads, "batch": plan.batches}
    reference = (
        "C++ router, from the request word to the answer word, a route between two updates, over "
        "all places of a page"
    )
    return _router_bench("cpu_update", plan, axes, prepare, reference)


def hand_over_s(plan: Plan, calls: int = 2000) -> tuple[float, float]:
    """Return mean seconds of publishing a latent, and of taking an answer that is there."""
    m, tokens = plan.model, plan.contexts[0]
    latent = torch.zeros(1, plan.rank, dtype=torch.bfloat16)
    where = np.array([tokens - 1], np.int32), np.array([tokens], np.int32)
    publish, take = [], []
    with filled_router(plan, plan.threads[0], 1, tokens) as router:
        for call in range(calls):
            start = time.perf_counter()
            ticket = router.post(
                call % m.layers, "latent", latent.view(torch.uint16).numpy(), *where
            )
            published = time.perf_counter()
            time.sleep(0.0)
            while not router.answered(ticket):
                pass
            answered = time.perf_counter()
            router.collect(ticket)
            publish.append(published - start)
            take.append(time.perf_counter() - answered)
    return float(np.mean(publish)), float(np.mean(take))
