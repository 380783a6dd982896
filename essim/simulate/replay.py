"""One point's decode and prefill, replayed: prices -> durations -> engine -> picoseconds a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from essim.engines import Finish
from essim.engines.graph import Graph
from essim.errors import InputError
from essim.hardware.profile import HardwareProfile
from essim.results.prices import PriceSources
from essim.simulate.jitter import normals
from essim.simulate.scenario import Scenario
from essim.step.kinds import KINDS, Case, Point
from essim.step.ops import MAIN_STREAM, Op, decode_step, prefill_step
from essim.step.price import SOURCES, STRICT_SOURCES, CostModel, Price
from essim.text.units import PS_PER_S

Picoseconds = NDArray[np.int64]

# Time of a step in which the main stream can do nothing until a router is done.
WAITING = "waiting"
# The op in which the GPU waits for the CPU's answer, in a kernel of its own.
_SPINNING = "await"
# What a router beside the main stream costs it.
_SLOWDOWN = "gpu_side_slowdown"
# Sums over a run stay inside int64 below this.
_MOST_PS = 1 << 62


@dataclass(frozen=True)
class Sources:
    """Where the prices of a step come from.

    Attributes
    ----------
    text
        ``measured: gemm_o norm; roofline: rope``: every kind under its worst source.
    worst
        The worst source of every kind.
    measured_frac
        Share of the main stream's time whose price is measured or interpolated.
    """

    text: PriceSources
    worst: dict[str, str]
    measured_frac: float


@dataclass(frozen=True)
class Run:
    """Consecutive steps of one op list: a decode run, or a prefill of one step.

    Attributes
    ----------
    durations_ps
        Each op's duration in every step.
    step_ps, unrouted_ps
        Time of every step, and what it would be if routing and hand-over took none.
    busy_ps
        How long the main stream (``gpu``) and the CPU router (``cpu``) have work in every step;
        ``spin`` is the part of the former in which a kernel spins for the CPU's answer.
    bytes_moved
        Bytes that an op of each kind must move in every step.
    """

    ops: tuple[Op, ...]
    prices: dict[str, Price]
    durations_ps: list[Picoseconds]
    step_ps: Picoseconds
    unrouted_ps: Picoseconds
    busy_ps: dict[str, Picoseconds]
    bytes_moved: dict[str, NDArray[np.float64]]

    def sources(self, steps: int) -> Sources:
        """Return where the prices of the first `steps` steps come from.

        Time spent waiting counts as the router's, which is waited for; work that hides does not.
        """
        worst = {k: SOURCES[int(price.rank[:steps].max())] for k, price in self.prices.items()}
        times_s = self.main_stream_s(steps)
        router = next((op.kind for op in self.ops if op.stage == "route"), WAITING)
        measured_s = 0.0
        for name, seconds in times_s.items():
            kind = router if name == WAITING else name
            if kind in self.prices:
                known = self.prices[kind].rank[:steps] < len(STRICT_SOURCES)
                measured_s += seconds * float(known.mean())
        text = PriceSources.of(worst, SOURCES)
        return Sources(text, worst, measured_s / sum(times_s.values()))

    def main_stream_s(self, steps: int) -> dict[str, float]:
        """Return where a mean step goes on the main stream: seconds by kind, and `WAITING`."""
        main = Counter(op.kind for op in self.ops if op.stream == MAIN_STREAM)
        times_s = {k: float(self.prices[k].mean_s[:steps].mean()) * n for k, n in main.items()}
        idle_ps = self.step_ps[:steps] - self.busy_ps["gpu"][:steps]
        return times_s | {WAITING: float(idle_ps.mean()) / PS_PER_S}

    def achieved_bytes_per_s(self, steps: int) -> dict[str, float]:
        """Return bytes over time of a mean op of each kind, where its work says what it moves.

        What a router on another stream costs the main one moves nothing itself.
        """
        times_s = {k: float(price.mean_s[:steps].mean()) for k, price in self.prices.items()}
        moved = {k: float(count[:steps].mean()) for k, count in self.bytes_moved.items()}
        return {
            kind: moved[kind] / time_s
            for kind, time_s in times_s.items()
            if kind != _SLOWDOWN and moved[kind] and time_s
        }

    def attention_s(self, steps: int) -> float:
        """Return how much of a mean step on the main stream is attention."""
        times_s = self.main_stream_s(steps)
        return sum(s for k, s in times_s.items() if k in KINDS and KINDS[k].part == "attention")


def run_decode(
    point: Scenario,
    profile: HardwareProfile,
    finish: Finish,
    steps: int,
    *,
    strict: bool = False,
    seed: int = 0,
) -> Run:
    """Simulate the first `steps` decode steps of a point.

    Step i = 1, 2, ... attends over the kept prompt and i new tokens, its own included.
    """
    selector = point.resolved_selector()
    kept = selector.kept_prompt_tokens(point.workload.input_tokens)
    context = kept + np.arange(1, steps + 1, dtype=np.int64)
    batch = point.workload.batch
    ops = decode_step(point.model, selector, point.routing)
    at = Point(batch, batch, context, evicted_tokens=point.workload.input_tokens - kept)
    return _run(point, profile, finish, ops, at, strict, seed)


def run_prefill(
    point: Scenario, profile: HardwareProfile, finish: Finish, *, strict: bool = False
) -> Run:
    """Simulate the prefill of one sequence."""
    tokens = point.workload.input_tokens
    ops = prefill_step(point.model, point.resolved_selector(), point.routing, tokens)
    at = Point(1, tokens, np.array([tokens], dtype=np.int64))
    return _run(point, profile, finish, ops, at, strict, seed=0)


def _run(
    point: Scenario,
    profile: HardwareProfile,
    finish: Finish,
    ops: tuple[Op, ...],
    at: Point,
    strict: bool,
    seed: int,
) -> Run:
    case = Case(point.model, point.resolved_selector(), point.routing)
    costs = CostModel(profile, case, strict=strict)
    prices = {kind: costs.price(kind, at) for kind in dict.fromkeys(op.kind for op in ops)}
    check_length(ops, prices, profile)
    durations = _durations_ps(ops, prices, len(at.context_tokens), seed)
    zero = np.broadcast_to(np.int64(0), at.context_tokens.shape)
    free = [
        zero if KINDS[o.kind].part == "routing" else d for o, d in zip(ops, durations, strict=True)
    ]
    last = [Graph.of(ops).last_main]
    step_ps, unrouted_ps = (finish(ops, rows, last)[0] for rows in (durations, free))
    place = point.routing.placement
    busy = {device: zero.copy() for device in ("gpu", "cpu", "spin")}
    for op, row in zip(ops, durations, strict=True):
        if op.stream == MAIN_STREAM:
            busy["gpu"] += row
            if op.kind == _SPINNING:
                busy["spin"] += row
        elif op.stream == place.stream and place.hands_over:
            busy["cpu"] += row
    work = {kind: KINDS[kind].work(case, at).byte_count for kind in prices}
    moved = {kind: np.broadcast_to(count, zero.shape) for kind, count in work.items()}
    return Run(ops, prices, durations, step_ps, unrouted_ps, busy, moved)


def check_length(ops: Sequence[Op], prices: dict[str, Price], profile: HardwareProfile) -> None:
    """Refuse prices whose sum over the run does not fit into int64 picoseconds.

    Raises
    ------
    InputError
        Naming the longest op; a table in the wrong unit is the usual cause.
    """
    kinds = Counter(op.kind for op in ops)
    sums_s = {kind: float(price.mean_s.sum()) * kinds[kind] for kind, price in prices.items()}
    # A drawn call may take several times its mean.
    if 16 * sum(sums_s.values()) * PS_PER_S > _MOST_PS:
        worst = max(sums_s, key=lambda kind: sums_s[kind])
        each_s = float(prices[worst].mean_s.max())
        raise InputError(
            f"{worst} takes {each_s:.3g} s on {profile.spec.name}, too long to simulate",
            "Check the unit of its table or of the profile's peaks",
            file=profile.file,
        )


def _durations_ps(
    ops: Sequence[Op], prices: dict[str, Price], steps: int, seed: int
) -> list[Picoseconds]:
    """Return each op's durations; ops of a kind share a row unless its price is spread."""
    shared = {kind: to_ps(price.mean_s) for kind, price in prices.items()}
    drawn = [op.name for op in ops if prices[op.kind].distribution]
    z = dict(zip(drawn, normals(seed, len(drawn), steps), strict=True))
    rows = []
    for op in ops:
        distribution = prices[op.kind].distribution
        if distribution is None:
            rows.append(shared[op.kind])
        else:
            rows.append(to_ps(distribution.times_s(z[op.name])))
    return rows


def to_ps(seconds: NDArray[np.float64]) -> Picoseconds:
    """Return times as whole picoseconds, what the engines count in; equal ones stay one view."""
    times = np.asarray(seconds)
    if times.ndim == 1 and not times.strides[0]:
        return np.broadcast_to(to_ps(times[:1].copy()), times.shape)
    return np.rint(times * PS_PER_S).astype(np.int64)
