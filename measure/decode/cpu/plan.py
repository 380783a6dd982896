"""The campaign of a machine without a GPU: the model and selector of ``essim measure`` there."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from essim.errors import AbsentError
from essim.methods.routing import Early
from measure.decode.cpu.loop import CpuDecode
from measure.decode.shared.cells import WARM_UP_STEPS, Cell, Plan, grid
from measure.decode.shared.loop import Settings
from measure.decode.shared.modes import CPU_MODES, check_mode
from measure.decode.shared.weights import Weights
from measure.harness.hashes import decode_hash
from measure.harness.machine import thread_count
from measure.tables.cpu.machine import PLAN

# In for the last third of the target layers, as the published shortcut for 32 layers has it.
MIX: tuple[Early, ...] = tuple(
    "mid" if layer <= PLAN.model.layers * 5 // 8 else "in" for layer in range(1, PLAN.model.layers)
)


def make_plan(modes: Sequence[str] | None, quick: bool, steps: int | None) -> Plan:
    """Return the default campaign: 198 cells, 24 if quick.

    Raises
    ------
    AbsentError
        If there is only one core, or a mode needs a GPU.
    """
    for mode in modes or ():
        check_mode(mode, gpu=False)
    if thread_count() < 2:
        raise AbsentError(
            "one core cannot play the main stream and the router at once",
            "Give this process two cores or more",
        )
    points = ((1, 4), (512, 2048), (64,)) if quick else ((1, 2, 4), PLAN.contexts, (32, 64))
    cells = grid(modes or CPU_MODES, *points)
    steps = steps or (16 if quick else 32)
    threads = PLAN.threads[0]
    return Plan(
        cells=cells,
        make_run=functools.partial(make_run, steps=steps, threads=threads),
        steps=steps,
        dtype="fp32",
        source_hash=decode_hash(),
        facts={
            "model": PLAN.model.name,
            "selector": PLAN.selector.model_dump(mode="json"),
            "rank": PLAN.rank,
            "channels": PLAN.channels,
            "router_threads": threads,
            "mix": list(MIX),
            "seed": PLAN.seed,
        },
        trace_step=functools.partial(trace_step, threads=threads),
    )


def make_run(cell: Cell, *, steps: int, threads: int, trace: bool = False) -> CpuDecode:
    """Return a run of a cell; weights are shared between runs."""
    pages = {"top_pages": cell.attended_tokens // PLAN.page_tokens}
    settings = Settings(
        model=PLAN.model,
        selector=PLAN.selector.model_copy(update={} if cell.mode == "dense" else pages),
        mode=cell.mode,
        batch=cell.batch,
        capacity_tokens=cell.position_tokens + steps,
        rank=PLAN.rank,
        channels=PLAN.channels,
        threads=threads,
        mix=MIX if cell.mode == "cpu-mix" else None,
        seed=PLAN.seed,
        trace=trace,
    )
    return CpuDecode(settings, weights())


def trace_step(cell: Cell, *, threads: int) -> dict[str, Any]:
    """Return a cell's step in the Chrome trace format, after a few to warm up."""
    return traced_step(cell, make_run(cell, steps=WARM_UP_STEPS, threads=threads, trace=True))


def traced_step(cell: Cell, run: CpuDecode) -> dict[str, Any]:
    """Return a run's step in the Chrome trace format, after a few to warm up; close the run."""
    with run:
        run.set_position(cell.position_tokens)
        run.steps(WARM_UP_STEPS)
        return run.chrome_trace()


@functools.cache
def weights() -> Weights:
    """The plan's weights, made once."""
    return Weights.random(PLAN.model, PLAN.seed)
