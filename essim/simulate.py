"""Scenario points -> result rows: price the ops, run the engine over every step, add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from essim.costs import SOURCES, STRICT_SOURCES, CostModel, Price
from essim.engines import pick_engine
from essim.engines.graph import Graph
from essim.errors import InputError
from essim.hardware import HardwareProfile, find_profile, load_profile
from essim.jitter import normals
from essim.memory import max_batch, memory, shortage
from essim.results import Row, empty_row
from essim.scenario import Scenario
from essim.step import MAIN_STREAM, Op, decode_step, prefill_step
from essim.units import PS_PER_S
from essim.work import ROUTE_KINDS, Case, Point

Picoseconds = NDArray[np.int64]


@dataclass(frozen=True)
class Decode:
    """A decode run, step by step: step i attends over the kept prompt and i new tokens.

    Attributes
    ----------
    step_ps, unrouted_ps
        Time of every step, and what it would be if routing and hand-over took none.
    gpu_ps, cpu_ps
        Busy time of the main stream and of the CPU router in every step.
    kinds
        How many ops of each kind a step has.
    """

    ops: tuple[Op, ...]
    durations_ps: list[Picoseconds]
    prices: dict[str, Price]
    kinds: Counter[str]
    step_ps: Picoseconds
    unrouted_ps: Picoseconds
    gpu_ps: Picoseconds
    cpu_ps: Picoseconds


@dataclass
class Simulator:
    """Simulates scenario points; points that differ only in output length share one run.

    Parameters
    ----------
    folder
        Where relative hardware paths of the scenario start.
    engine
        ``auto``, ``des`` or ``maxplus``.
    strict
        Refuse prices that are neither measured nor interpolated.
    seed
        Of the CPU router's call-to-call jitter.
    """

    folder: Path = Path()
    engine: str = "auto"
    strict: bool = False
    seed: int = 0
    _profiles: dict[str, HardwareProfile] = field(default_factory=dict)
    _runs: dict[str, Decode] = field(default_factory=dict)
    _prefills: dict[str, tuple[int, dict[str, Price], Counter[str]]] = field(default_factory=dict)

    def profile(self, name: str) -> HardwareProfile:
        """Return a profile by name or path, loaded once."""
        if name not in self._profiles:
            try:
                self._profiles[name] = load_profile(find_profile(name, self.folder))
            except ValueError as error:
                message, _, hint = str(error).partition("; ")
                raise InputError(message, hint, key="hardware") from None
        return self._profiles[name]

    def rows(
        self, points: Sequence[Scenario], progress: Callable[[], None] = lambda: None
    ) -> list[Row]:
        """Return one row a point, in order; a point that cannot run says so in its row."""
        longest = _longest(points)
        rows = []
        for point in points:
            rows.append(self._row(point, longest))
            progress()
        return rows

    def decode(self, point: Scenario, steps: int | None = None) -> Decode:
        """Simulate the decode steps of a point (default: all of them, output_tokens - 1)."""
        steps = point.workload.output_tokens - 1 if steps is None else steps
        case = _case(point)
        kept = case.selector.kept_prompt_tokens(point.workload.input_tokens)
        batch = point.workload.batch
        context = kept + np.arange(1, steps + 1, dtype=np.int64)
        ops = decode_step(point.model, case.selector, point.routing)
        costs = CostModel(self.profile(point.hardware), case, strict=self.strict)
        kinds = Counter(op.kind for op in ops)
        prices = {kind: costs.price(kind, Point(batch, batch, context)) for kind in kinds}
        durations = self._durations_ps(ops, prices, steps)
        zero = np.zeros(steps, dtype=np.int64)
        unrouted = [
            zero if op.kind in ROUTE_KINDS else row for op, row in zip(ops, durations, strict=True)
        ]
        finish, last = pick_engine(self.engine)[1], [Graph.of(ops).last_main]
        return Decode(
            ops=ops,
            durations_ps=durations,
            prices=prices,
            kinds=kinds,
            step_ps=finish(ops, durations, last)[0],
            unrouted_ps=finish(ops, unrouted, last)[0],
            gpu_ps=_busy(ops, durations, MAIN_STREAM),
            cpu_ps=_busy(ops, durations, "cpu"),
        )

    def _durations_ps(
        self, ops: Sequence[Op], prices: dict[str, Price], steps: int
    ) -> list[Picoseconds]:
        """Return each op's durations; ops of a kind share a row unless its price is spread."""
        shared = {kind: _to_ps(price.mean_s) for kind, price in prices.items()}
        spread_ops = [op for op in ops if prices[op.kind].spread]
        z = dict(
            zip(
                (op.name for op in spread_ops),
                normals(self.seed, len(spread_ops), steps),
                strict=True,
            )
        )
        rows = []
        for op in ops:
            spread = prices[op.kind].spread
            rows.append(
                shared[op.kind]
                if spread is None
                else _to_ps(spread.p50_s * np.exp(spread.sigma * z[op.name]))
            )
        return rows

    def prefill_s(self, point: Scenario) -> float:
        """Return the prefill time of the whole batch, one sequence at a time."""
        return point.workload.batch * self._prefill(point)[0] / PS_PER_S

    def _prefill(self, point: Scenario) -> tuple[int, dict[str, Price], Counter[str]]:
        """Return one sequence's prefill: picoseconds, prices, ops of each kind."""
        tokens = point.workload.input_tokens
        key = _key(point, tokens, "batch", "output_tokens")
        if key not in self._prefills:
            case = _case(point)
            ops = prefill_step(point.model, case.selector, point.routing)
            costs = CostModel(self.profile(point.hardware), case, strict=self.strict)
            at = Point(1, tokens, np.array([tokens], dtype=np.int64))
            kinds = Counter(op.kind for op in ops)
            prices = {kind: costs.price(kind, at) for kind in kinds}
            durations = [_to_ps(prices[op.kind].mean_s) for op in ops]
            end = pick_engine(self.engine)[1](ops, durations, [Graph.of(ops).last_main])
            self._prefills[key] = int(end[0, 0]), prices, kinds
        return self._prefills[key]

    def breakdown(self, point: Scenario) -> list[Row]:
        """Return where a mean decode step goes on the main stream, largest part first.

        Waiting is the time in which the main stream has nothing to do but wait for a router.
        """
        steps = point.workload.output_tokens - 1
        run = self._run(point, {})
        times: dict[str, float] = {}
        main = [op.kind for op in run.ops if op.stream == MAIN_STREAM]
        for kind, count in Counter(main).items():
            times[kind] = float(run.prices[kind].mean_s[:steps].mean()) * count
        step_s = float(run.step_ps[:steps].mean()) / PS_PER_S
        times["waiting"] = step_s - float(run.gpu_ps[:steps].mean()) / PS_PER_S
        worst = _price_totals(run.prices, run.kinds, steps)[1]
        return [
            {
                "part": kind,
                "time_s": time_s,
                "share_frac": time_s / step_s,
                "source": SOURCES[worst[kind]] if kind in worst else "simulated",
            }
            for kind, time_s in sorted(times.items(), key=lambda item: -item[1])
            if time_s > 0
        ]

    def _run(self, point: Scenario, longest: dict[str, int]) -> Decode:
        """Return the decode run that `point` is a beginning of."""
        key = _key(point)
        needed = point.workload.output_tokens - 1
        if key not in self._runs or len(self._runs[key].step_ps) < needed:
            self._runs[key] = self.decode(point, max(needed, longest.get(key, 0)))
        return self._runs[key]

    def _row(self, point: Scenario, longest: dict[str, int]) -> Row:
        profile = self.profile(point.hardware)
        need = memory(point, profile)
        row = empty_row(point, need, max_batch(point, profile))
        row |= {"engine": pick_engine(self.engine)[0], "seed": self.seed}
        reason = _infeasible(point, profile)
        if reason:
            return row | {"status": "infeasible", "reason": reason}
        row |= self._times(point, longest)
        row |= self._gains(point, row, longest)
        return row

    def _gains(self, point: Scenario, row: Row, longest: dict[str, int]) -> Row:
        """Return the gain columns: over the baseline routing, and over dense attention."""
        profile = self.profile(point.hardware)
        baseline, dense = point.with_routing(point.compare.baseline), point.with_dense()
        gains: Row = {}
        if _infeasible(baseline, profile):
            gains["reason"] = "the baseline does not fit, so there is no gain over it"
        else:
            base = self._times(baseline, longest)
            gains["decode_gain_frac"] = _ratio(row, base, "decode_tokens_per_s")
            gains["output_gain_frac"] = _ratio(row, base, "output_tokens_per_s")
            exposed, step = base.get("exposed_routing_s"), base.get("step_s")
            if isinstance(exposed, float) and isinstance(step, float):
                gains["gain_ceiling_frac"] = step / (step - exposed) - 1
        if not _infeasible(dense, profile):
            full = self._times(dense, longest)
            gains["gain_over_dense_frac"] = _ratio(row, full, "decode_tokens_per_s")
        return gains

    def _times(self, point: Scenario, longest: dict[str, int]) -> Row:
        """Return the time columns of a point."""
        load = point.workload
        prefill_s = self.prefill_s(point)
        _, prices, kinds = self._prefill(point)
        steps = load.output_tokens - 1
        row: Row = {"prefill_s": prefill_s, "decode_s": 0.0}
        row["prefill_sources"] = _sources_text(_price_totals(prices, kinds, 1)[1])
        if steps:
            run = self._run(point, longest)
            decode_ps = int(run.step_ps[:steps].sum())
            exposed_ps = decode_ps - int(run.unrouted_ps[:steps].sum())
            row |= {
                "decode_s": decode_ps / PS_PER_S,
                "step_s": decode_ps / PS_PER_S / steps,
                "tpot_s": decode_ps / PS_PER_S / steps,
                "decode_tokens_per_s": load.batch * steps / (decode_ps / PS_PER_S),
                "exposed_routing_s": exposed_ps / PS_PER_S / steps,
                "gpu_busy_frac": int(run.gpu_ps[:steps].sum()) / decode_ps,
                "cpu_busy_frac": int(run.cpu_ps[:steps].sum()) / decode_ps,
            }
            seconds, sources = _price_totals(run.prices, run.kinds, steps)
            measured = sum(s for rank, s in seconds.items() if SOURCES[rank] in STRICT_SOURCES)
            row["measured_frac"] = measured / sum(seconds.values())
            row["price_sources"] = _sources_text(sources)
        total_s = prefill_s + float(row["decode_s"] or 0.0)
        return row | {"output_tokens_per_s": load.batch * load.output_tokens / total_s}


def _ratio(mine: Row, theirs: Row, rate: str) -> float | None:
    """Return how much larger a rate is, as a fraction; None where either is missing."""
    a, b = mine.get(rate), theirs.get(rate)
    return a / b - 1 if isinstance(a, float) and isinstance(b, float) else None


def _case(point: Scenario) -> Case:
    return Case(point.model, point.resolved_selector(), point.routing)


def _key(point: Scenario, *more: object) -> str:
    """Return what a decode run depends on, beside its length."""
    drop = {"output_tokens", *(str(m) for m in more)}
    load = {k: v for k, v in point.workload.model_dump().items() if k not in drop}
    selector = point.resolved_selector()
    parts = (point.model, point.hardware, selector, selector.channels, point.routing, load, more)
    return repr(parts)


def _longest(points: Sequence[Scenario]) -> dict[str, int]:
    """Return the steps of the longest run each point, or its baseline, is a beginning of."""
    longest: dict[str, int] = {}
    for point in points:
        for which in (point, point.with_routing(point.compare.baseline), point.with_dense()):
            key = _key(which)
            longest[key] = max(longest.get(key, 0), point.workload.output_tokens - 1)
    return longest


def _infeasible(point: Scenario, profile: HardwareProfile) -> str:
    """Return why a point cannot run on this machine, or an empty string."""
    load = point.workload
    final = load.input_tokens + load.output_tokens
    if final > point.model.max_context_tokens:
        return f"{final} tokens exceed the model's context of {point.model.max_context_tokens}"
    cores = profile.spec.cpu.cores.value
    if point.routing.where == "cpu" and point.routing.cpu_threads > cores:
        return f"{point.routing.cpu_threads} router threads on {cores} cores"
    return shortage(point, profile)


def _to_ps(seconds: NDArray[np.float64]) -> Picoseconds:
    return np.rint(np.asarray(seconds) * PS_PER_S).astype(np.int64)


def _busy(ops: Sequence[Op], durations_ps: Sequence[Picoseconds], stream: str) -> Picoseconds:
    rows = [row for op, row in zip(ops, durations_ps, strict=True) if op.stream == stream]
    total = np.zeros_like(durations_ps[0])
    for row in rows:
        total += row
    return total


def _price_totals(
    prices: dict[str, Price], kinds: Counter[str], lanes: int
) -> tuple[dict[int, float], dict[str, int]]:
    """Return seconds by source rank over the first `lanes`, and each kind's worst rank."""
    seconds: dict[int, float] = {}
    worst: dict[str, int] = {}
    for kind, price in prices.items():
        ranks = price.rank[:lanes]
        worst[kind] = int(ranks.max())
        for rank in range(int(ranks.min()), worst[kind] + 1):
            share = float(price.mean_s[:lanes][ranks == rank].sum()) * kinds[kind]
            seconds[rank] = seconds.get(rank, 0.0) + share
    return seconds, worst


def _sources_text(worst: dict[str, int]) -> str:
    """Return ``measured: gemm_o norm; roofline: rope``: every kind under its worst source."""
    parts = []
    for rank, source in enumerate(SOURCES):
        kinds = sorted(kind for kind, r in worst.items() if r == rank)
        if kinds:
            parts.append(f"{source}: {' '.join(kinds)}")
    return "; ".join(parts)
