"""The real run of a scenario's points on this machine, for ``essim validate``."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from essim.errors import EssimError, InputError
from essim.methods.selectors.rocketkv import RocketKV
from essim.results.column import Row
from essim.results.reading import read_json
from essim.simulate.scenario import Scenario
from measure.decode.cpu import plan as cpu_plan
from measure.decode.cpu.loop import CpuDecode
from measure.decode.main import write_provenance
from measure.decode.shared import cells
from measure.decode.shared.cells import WARM_UP_STEPS, Cell, Plan, Run
from measure.decode.shared.loop import Settings
from measure.decode.shared.modes import check_mode
from measure.decode.shared.weights import Weights, check_shape
from measure.harness.machine import thread_count
from measure.harness.table import Progress

SEED = 0


def measure_points(
    points: Sequence[Scenario],
    folder: Path,
    command: str,
    tell: Callable[[str, Progress], None],
    traces: bool,
) -> tuple[list[Scenario], list[Row]]:
    """Time every point that this machine's loop can run, into ``folder/decode.csv``; maybe traces.

    Returns
    -------
    tuple
        The points that were timed, and a row with the reason for each of the others.

    Raises
    ------
    InputError
        If no point can run, two are one cell of the run, their numbers of steps differ, or the
        folder holds a run with other settings.
    """
    gpu = torch.cuda.is_available()
    why = {id(point): why_not(point, gpu) for point in points}
    runnable = [point for point in points if not why[id(point)]]
    refused: list[Row] = [
        {"side": "predicted", **vars_of(cell_of(point)), "reason": why[id(point)]}
        for point in points
        if why[id(point)]
    ]
    if not runnable:
        reasons = "; ".join(dict.fromkeys(why.values()))
        raise InputError("no point of the scenario can run here", f"Reasons: {reasons}")
    plan = (gpu_plan_of if gpu else cpu_plan_of)(runnable)
    file = folder / "provenance.json"
    _check_same(file, plan)
    write_provenance(file, plan, command)
    cells.run(plan, folder / "decode.csv", lambda progress: tell("decode steps", progress))
    if traces:
        cells.write_traces(plan, folder)
    return runnable, refused


def why_not(point: Scenario, gpu: bool) -> str:
    """Return why the loop cannot run a point, or an empty string."""
    load, routing, selector = point.workload, point.routing, point.resolved_selector()
    routed = selector.query_conditioned
    kept = selector.kept_prompt_tokens(load.input_tokens)
    try:
        check_mode(point.mode, gpu=gpu)
        check_shape(point.model)
    except EssimError as error:
        return error.message
    on_cpu = routed and routing.where == "cpu"
    threads, cores = routing.cpu_threads, thread_count()
    refusals = {
        f"the loop has no selector {selector.kind}": routed and not isinstance(selector, RocketKV),
        "one output token has no decode step": load.output_tokens < 2,
        f"the cache holds {WARM_UP_STEPS} tokens or fewer": kept <= WARM_UP_STEPS,
        "the cache ends at the model's context": kept + load.output_tokens
        > point.model.max_context_tokens,
        "early routing needs a projection_rank here, and down_projection: gpu": routing.early
        and (routing.projection_rank is None or routing.down_projection != "gpu"),
        f"{threads} router threads and the main stream on {cores} cores": on_cpu
        and threads >= cores,
        "the loop's summaries are in fp8": isinstance(selector, RocketKV)
        and selector.summary_dtype != "fp8",
    }
    refusals |= _gpu_refusals(point) if gpu else _cpu_refusals(point)
    return next((reason for reason, holds in refusals.items() if holds), "")


def _cpu_refusals(point: Scenario) -> dict[str, bool]:
    model = point.model
    return {"the loop without a GPU is in fp32": {model.weight_dtype, model.kv_dtype} != {"fp32"}}


def _gpu_refusals(point: Scenario) -> dict[str, bool]:
    """Return what the GPU loop was compiled for and a point does not have."""
    plan: Any = importlib.import_module("measure.decode.gpu.plan")
    selector, routing = point.resolved_selector(), point.routing
    settings = (plan.RANK, plan.CHANNELS)
    refusals = {f"the loop on a GPU is of {plan.MODEL.name}": point.model != plan.MODEL}
    if isinstance(selector, RocketKV):
        on_cpu, threads = routing.where == "cpu", min(8, max(1, thread_count() - 1))
        fused = not on_cpu and routing.kernel == "fused"
        refusals |= {
            f"the loop on a GPU has {threads} router threads here": on_cpu
            and routing.cpu_threads != threads,
            "the loop on a GPU has the published mix alone": point.mode == "cpu-mix"
            and _mix(point) != list(plan.MIX),
            "the fused router chooses at most 64 pages": fused and (selector.top_pages or 0) > 64,
        }
        pages = (selector.page_tokens, selector.kv_block_tokens or selector.page_tokens)
        refusals |= {
            f"the loop on a GPU has pages and KV blocks of {plan.PAGE_TOKENS} tokens": pages
            != (plan.PAGE_TOKENS, plan.KV_BLOCK_TOKENS),
            f"the loop on a GPU has rank and channels {settings}": (
                routing.projection_rank,
                routing.channels,
            )
            != settings,
        }
    return refusals


def cell_of(point: Scenario) -> Cell:
    """Return a point's cell; the loop starts with what is kept of the prompt."""
    selector, load = point.resolved_selector(), point.workload
    kept = selector.kept_prompt_tokens(load.input_tokens)
    pages = (getattr(selector, "page_tokens", None) or 0) * (getattr(selector, "top_pages", 0) or 0)
    return Cell(point.mode, load.batch, kept, pages if selector.query_conditioned else kept)


def vars_of(cell: Cell) -> Row:
    """Return a cell under the names of the run's CSV."""
    return dict(zip(cells.AXES, (*vars(cell).values(),), strict=False))


def gpu_plan_of(points: Sequence[Scenario]) -> Plan:
    """Return the GPU's campaign with these points as its cells."""
    make_plan: Any = importlib.import_module("measure.decode.gpu.plan").make_plan
    steps, wanted = _cells(points)
    plan: Plan = make_plan(None, quick=True, steps=steps)
    return replace(plan, cells=tuple(wanted), facts=plan.facts | _selector(points))


def cpu_plan_of(points: Sequence[Scenario]) -> Plan:
    """Return a campaign of these points on a machine without a GPU."""
    steps, wanted = _cells(points)
    runs = CpuRuns(wanted, Weights.random(points[0].model, SEED), steps)
    routing = points[0].routing
    return replace(
        cpu_plan.make_plan(None, quick=True, steps=steps),
        cells=tuple(wanted),
        make_run=runs.run,
        trace_step=runs.trace_step,
        facts={
            "model": points[0].model.name,
            "shape": points[0].model.model_dump(mode="json"),
            "rank": routing.projection_rank,
            "channels": routing.channels,
            "router_threads": routing.cpu_threads,
            "mix": next((_mix(p) for p in points if p.mode == "cpu-mix"), None),
            "seed": SEED,
        }
        | _selector(points),
    )


def _selector(points: Sequence[Scenario]) -> dict[str, object]:
    """Return what provenance says of the points' selector: that of the first that routes."""
    routed = next((p.resolved_selector() for p in points if p.mode != "dense"), None)
    return {"selector": routed and routed.model_dump(mode="json")}


@dataclass(frozen=True)
class CpuRuns:
    """Makes the runs of points without a GPU; weights are shared between them."""

    points: dict[Cell, Scenario]
    weights: Weights
    steps: int

    def run(self, cell: Cell) -> AbstractContextManager[Run]:
        """Return a cell's run."""
        return self._made(cell)

    def trace_step(self, cell: Cell) -> dict[str, Any]:
        """Return a cell's step in the Chrome trace format, after a few to warm up."""
        return cpu_plan.traced_step(cell, self._made(cell, trace=True))

    def _made(self, cell: Cell, *, trace: bool = False) -> CpuDecode:
        point = self.points[cell]
        routing, selector = point.routing, point.resolved_selector()
        if not isinstance(selector, RocketKV):  # dense: nothing of it is used
            selector = RocketKV(prompt_budget=cell.position_tokens, page_tokens=1, top_pages=1)
        settings = Settings(
            model=point.model,
            selector=selector,
            mode=cell.mode,
            batch=cell.batch,
            capacity_tokens=cell.position_tokens + max(self.steps, WARM_UP_STEPS),
            rank=routing.projection_rank or 1,
            channels=routing.channels or point.model.head_dim,
            threads=routing.cpu_threads,
            mix=_mix(point) if cell.mode == "cpu-mix" else None,  # type: ignore[arg-type]
            seed=SEED,
            trace=trace,
        )
        return CpuDecode(settings, self.weights)


def _check_one_selector(points: Sequence[Scenario]) -> None:
    """Refuse points that differ in what provenance says once for a whole run."""
    for name in ("page_tokens", "kv_block_tokens", "summary_dtype"):
        found = {
            getattr(point.resolved_selector(), name, None)
            for point in points
            if point.resolved_selector().query_conditioned
        }
        if len(found) > 1:
            raise InputError(
                f"selectors with {name} {', '.join(sorted(map(str, found)))}: a real run has one",
                "Sweep top_pages alone",
            )


def _mix(point: Scenario) -> list[str]:
    """Return the anchors of a point's routed layers."""
    return list(point.routing.anchors(point.model.layers))


def _cells(points: Sequence[Scenario]) -> tuple[int, dict[Cell, Scenario]]:
    """Return the number of timed steps, and the points by their cells, modes fastest."""
    outputs = sorted({point.workload.output_tokens for point in points})
    if len(outputs) > 1:
        raise InputError(
            f"output lengths {', '.join(map(str, outputs))}: a real run times one",
            f"--set workload.output_tokens={outputs[0]}",
        )
    _check_one_selector(points)
    wanted: dict[Cell, Scenario] = {}
    for point in points:
        cell = cell_of(point)
        if cell in wanted:
            hint = "Sweep routing, batch, input_tokens and top_pages alone"
            raise InputError(f"two points of the scenario are the cell {cell}", hint)
        wanted[cell] = point
    order = sorted(wanted, key=lambda c: (c.batch, c.position_tokens))
    return outputs[0] - 1, {cell: wanted[cell] for cell in order}


def _check_same(file: Path, plan: Plan) -> None:
    """Refuse to go on with a run of other settings."""
    if not file.exists():
        return
    before = read_json(file)
    now = json.loads(json.dumps(plan.facts | {"steps": plan.steps}))
    # What the machine was like at the moment is no setting, and without cpu-mix there is no mix.
    other = [
        key
        for key in now
        if not key.startswith("gpu_")
        and before.get(key) != now[key]
        and not (key == "mix" and None in (before.get(key), now[key]))
    ]
    if other:
        message = f"{', '.join(other)} of the run that is there differs"
        raise InputError(message, "Give another --out", file=file)
