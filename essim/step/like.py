"""Routers that were not measured, priced by what they do at the efficiency of like kernels.

A measured router's time is close to linear in four numbers: its launches, what the device reads
over its bandwidth, what its slowest thread block reads alone, and the values that block passes
over alone. One linear form is fitted on all measured routers of a profile, each counting alike, by
the least squares of relative errors with no negative term. Small matrices have a form of their
own, fitted on the proxy projection. How far off it is: each router by a form without it
(`essim.validate.source_errors`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from essim.hardware.profile import HardwareProfile
from essim.methods.routing import Routing
from essim.methods.selectors import SELECTORS, Phase, Selector
from essim.model.shape import PRESETS, ModelShape
from essim.step.kinds.case import Case, Point, Work
from essim.step.kinds.routes import ROUTE_KINDS
from essim.step.transfer import busy_s

Values = NDArray[np.float64]
Lanes = float | NDArray[np.number[Any]]
_FUSED = "gpu_route_fused"
_PROJECTION = "gpu_proxy"
# Of the H200 that routers were measured on; blocks that share a row need room there.
_MULTIPROCESSORS = 132
# With fewer routers a form is that of one kernel.
_FEWEST = 3


@dataclass(frozen=True)
class Form:
    """Seconds of a router: a launch, a unit of least time, a byte alone, a value alone.

    Attributes
    ----------
    scan
        Those four, of everything but projections.
    project
        Seconds of a launch and of a unit of least time, of projections.
    """

    scan: Values
    project: Values

    def time_s(self, phases: Sequence[Phase], batch: Lanes, bytes_per_s: float) -> Values:
        """Return seconds of a router's phases for a batch."""
        own = [phase for phase in phases if phase.kind != "project"]
        small = [phase for phase in phases if phase.kind == "project"]
        time_s = _features(own, batch, bytes_per_s) @ self.scan
        return np.asarray(time_s + _features(small, batch, bytes_per_s)[..., :2] @ self.project)

    def waits_s(self, phases: Sequence[Phase]) -> float:
        """Return what of it is latency that no bandwidth shortens: the launches."""
        small = sum(phase.launches for phase in phases if phase.kind == "project")
        others = sum(phase.launches for phase in phases) - small
        return float(others * self.scan[0] + small * self.project[0])


def _features(phases: Sequence[Phase], batch: Lanes, bytes_per_s: float) -> Values:
    """Return launches, least seconds, bytes alone and values alone: [..., 4]."""
    moved = sum((np.asarray(batch) * p.byte_count + p.weight_bytes for p in phases), 0.0)
    room = [_MULTIPROCESSORS // (np.asarray(batch) * p.rows) for p in phases]
    shared = [np.clip(n, 1, p.blocks) for n, p in zip(room, phases, strict=True)]
    alone = [
        sum((getattr(p, name) / n for p, n in zip(phases, shared, strict=True)), 0.0)
        for name in ("alone_bytes", "alone_items")
    ]
    parts = [float(sum(p.launches for p in phases)), np.asarray(moved) / bytes_per_s, *alone]
    return np.stack(np.broadcast_arrays(*(np.asarray(part, dtype=float) for part in parts)), -1)


def form_of(profile: HardwareProfile, without: str = "") -> Form | None:
    """Return a profile's form, None where fewer than three routers or no projection are measured.

    Parameters
    ----------
    without
        The table of a router to leave out.
    """
    if ("like", without) not in profile.fits:
        profile.fits["like", without] = _fitted(profile, without)
    form: Form | None = profile.fits["like", without]
    return form


def _fitted(profile: HardwareProfile, without: str) -> Form | None:
    routers = measured_routers(profile)
    routers.pop(without, None)
    bytes_per_s = profile.nominal.gpu.bandwidth_bytes_per_s.value
    proxy = profile.tables.get(_PROJECTION)
    if len(routers) < _FEWEST - bool(without) or proxy is None:
        return None
    scan = least_squares([(features, times_s) for features, times_s in routers.values()])
    small = []
    for (rank,), grid in proxy.grids.items():
        phase = _projection(PRESETS["llama-3.1-8b"], rank)
        row = _features([phase], 1.0, bytes_per_s)[:2]
        batches = grid.axes[0]
        small.append((np.tile(row, (len(batches), 1)), grid.at([batches]).mean_s))
    return Form(scan, least_squares(small))


def _projection(model: ModelShape, rank: str) -> Phase:
    """Return the proxy projection that was measured: norm, projection and RoPE."""
    width = model.hidden + model.q_width
    elements = model.hidden * model.q_width if rank == "full" else int(rank) * width
    return Phase("project", weight_bytes=float(elements * model.activation_bytes), launches=3)


def measured_routers(profile: HardwareProfile) -> dict[str, tuple[Values, Values]]:
    """Return features and seconds of every measured point of each router's table."""
    names = {selector.router_table: selector for selector in SELECTORS.values()}
    found = {}
    for name, table in profile.tables.items():
        holds_for = profile.spec.tables[name].holds_for
        kinds = [str(kind) for kind in holds_for.get("selector", [])]
        if (name not in names and name != _FUSED) or len(kinds) != 1:
            continue
        fixed = {key: values[0] for key, values in holds_for.items()}
        points: list[tuple[Values, float]] = []
        for keys, grid in table.grids.items():
            axes = [part.ravel() for part in np.meshgrid(*grid.axes, indexing="ij")]
            at = fixed | dict(zip(table.keys, keys, strict=True))
            for *where, time_s in zip(*axes, grid.at(axes).mean_s, strict=True):
                own = at | {k: int(v) for k, v in zip(table.axes, where, strict=True)}
                points.append((_point(SELECTORS[kinds[0]], own, name, profile), float(time_s)))
        found[name] = np.array([p for p, _ in points]), np.array([t for _, t in points])
    return found


def _point(
    kind: type[Selector], at: Mapping[str, Any], table: str, profile: HardwareProfile
) -> Values:
    """Return the features of a measured router at one point of its table."""
    model, selector = _measured(kind, at)
    channels = Routing(where="gpu", anchor="target").channels if table == _FUSED else None
    context = np.array(at["context_tokens"])
    work = selector.route_work(model, context, at.get("channels", channels) if channels else None)
    return _features(work.phases, at["batch"], profile.nominal.gpu.bandwidth_bytes_per_s.value)


def _measured(kind: type[Selector], at: Mapping[str, Any]) -> tuple[ModelShape, Selector]:
    """Return model and selector of a measured point; what its table leaves open changes no work."""
    base = PRESETS["llama-3.1-8b"]
    model = base.model_copy(update={k: v for k, v in at.items() if k in ModelShape.model_fields})
    own = {k: v for k, v in at.items() if k in kind.model_fields}
    return model, kind.model_construct(**own)


def like_s(work: Work, profile: HardwareProfile, case: Case) -> tuple[Values, float] | None:
    """Return seconds of a router by those that were measured, and what of them is latency."""
    if work.table == "cpu_route":
        ratio = cpu_ratio(profile)
        return None if ratio is None else (ratio * busy_s(work, profile.nominal, case), 0.0)
    form = form_of(profile) if work.phases else None
    if form is None:
        return None
    bandwidth = profile.nominal.gpu.bandwidth_bytes_per_s.value
    time_s = form.time_s(work.phases, work.axes.get("batch", 1.0), bandwidth)
    return time_s, form.waits_s(work.phases)


def cpu_ratio(profile: HardwareProfile) -> float | None:
    """Return what a profile's CPU router takes of its least time, None where none is measured.

    Fitted on ``cpu_route``, of whichever selector: how long threads wait for memory is the
    machine's. A constant beside it comes out as nothing.
    """
    if "cpu" not in profile.fits:
        profile.fits["cpu"] = _fitted_cpu(profile)
    ratio: float | None = profile.fits["cpu"]
    return ratio


def _fitted_cpu(profile: HardwareProfile) -> float | None:
    name = "cpu_route"
    if name not in profile.tables:
        return None
    holds_for, table = profile.spec.tables[name].holds_for, profile.tables[name]
    fixed = {key: values[-1] for key, values in holds_for.items()}
    rows: list[list[float]] = []
    times_s: list[float] = []
    for keys, grid in table.grids.items():
        axes = [part.ravel() for part in np.meshgrid(*grid.axes, indexing="ij")]
        at = fixed | dict(zip(table.keys, keys, strict=True))
        for *where, time_s in zip(*axes, grid.at(axes).mean_s, strict=True):
            own: dict[str, Any] = at | {k: int(v) for k, v in zip(table.axes, where, strict=True)}
            model, selector = _measured(SELECTORS[str(own.get("selector", "rocketkv"))], own)
            asked: dict[str, Any] = {k: own[k] for k in ("channels", "projection_rank") if k in own}
            asked |= {"where": "cpu", "anchor": "mid", "cpu_threads": own.get("threads", 8)}
            routing = Routing.model_validate(asked)
            case = Case(model, selector, routing)
            point = Point(own["batch"], own["batch"], np.array([own["context_tokens"]]))
            work = ROUTE_KINDS[name].work(case, point)
            rows.append([float(busy_s(work, profile.nominal, case)[0])])
            times_s.append(float(time_s))
    return float(least_squares([(np.array(rows), np.array(times_s))])[0])


def least_squares(parts: Sequence[tuple[Values, Values]], known_s: Values | float = 0.0) -> Values:
    """Return the terms, none negative, with the least squares of relative errors.

    Parameters
    ----------
    parts
        Features [points, terms] and seconds [points] of each kernel; all kernels count alike.
    known_s
        What no term explains, for each point of all parts in order.
    """
    rows = np.concatenate([x / (t * len(t) ** 0.5)[:, None] for x, t in parts])
    times_s = np.concatenate([t for _, t in parts])
    counts = np.concatenate([np.full(len(t), len(t) ** -0.5) for _, t in parts])
    ones = counts * (1 - known_s / times_s)
    terms, best, least = range(rows.shape[1]), np.zeros(rows.shape[1]), np.inf
    for count in range(1, len(terms) + 1):
        for chosen in combinations(terms, count):
            found, *_ = np.linalg.lstsq(rows[:, chosen], ones, rcond=None)
            off = float(((rows[:, chosen] @ found - ones) ** 2).sum())
            if (found >= 0).all() and off < least:
                best, least = np.zeros(rows.shape[1]), off
                best[list(chosen)] = found
    return best
