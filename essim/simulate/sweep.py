"""Scenario points -> result rows."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from essim.engines import pick_engine
from essim.errors import BadValueError, InputError
from essim.hardware.profile import HardwareProfile, find_profile, load_profile
from essim.results.column import Row
from essim.results.columns import ResultRow
from essim.simulate.feasible import infeasible
from essim.simulate.memory import max_batch, memory
from essim.simulate.remarks import remarks
from essim.simulate.replay import Run, run_decode, run_prefill
from essim.simulate.rows import empty_row
from essim.simulate.scenario import Scenario
from essim.simulate.uncertainty import Values, drawn_steps_s, percentiles
from essim.step.kinds import priced_names
from essim.text.units import PS_PER_S


@dataclass
class Simulator:
    """Simulates scenario points; points that differ only in output length share one run.

    Parameters
    ----------
    folder
        Where relative hardware paths of points start; a loaded scenario's do here.
    engine
        ``auto``, ``des`` or ``maxplus``.
    strict
        Refuse prices that are neither measured nor interpolated.
    seed
        Of the CPU router's call-to-call jitter.
    """

    engine: str = "auto"
    strict: bool = False
    seed: int = 0
    _profiles: dict[str, HardwareProfile] = field(default_factory=dict)
    _decodes: dict[str, Run] = field(default_factory=dict)
    _prefills: dict[str, Run] = field(default_factory=dict)
    _longest: dict[str, int] = field(default_factory=dict)
    _drawn: dict[tuple[str, int], Values | None] = field(default_factory=dict)

    def profile(self, name: str) -> HardwareProfile:
        """Return a profile by name or path, loaded once."""
        if name not in self._profiles:
            try:
                self._profiles[name] = load_profile(find_profile(name, Path()), priced_names())
            except BadValueError as error:
                raise InputError(error.message, error.hint, key="hardware") from None
        return self._profiles[name]

    def rows(
        self, points: Sequence[Scenario], progress: Callable[[], None] = lambda: None
    ) -> list[ResultRow]:
        """Return one row a point, in order; a point that cannot run says so in its row."""
        uses: Counter[str] = Counter()
        keys = []
        for point in points:
            runs = (point, point.with_routing(point.compare.baseline), point.with_dense())
            ends = (_at_end(point, end) for end in ("slow", "fast"))
            keys.append([_key(run) for run in (*runs, *ends)])
            uses.update(keys[-1])
            for key in keys[-1]:
                steps = point.workload.output_tokens - 1
                self._longest[key] = max(self._longest.get(key, 0), steps)
        profiles = {p.hardware: self.profile(p.hardware) for p in points}
        for remark in remarks(points, profiles):
            warnings.warn(remark, stacklevel=2)
        rows = []
        for point, own in zip(points, keys, strict=True):
            rows.append(self._row(point))
            uses.subtract(own)
            if len(rows) < len(points):
                self._forget({key for key in own if not uses[key]})
            progress()
        return rows

    def _forget(self, keys: set[str]) -> None:
        """Drop runs that no later point needs: memory does not grow with the number of points."""
        for key in keys:
            self._decodes.pop(key, None)
        for drawn in [drawn for drawn in self._drawn if drawn[0] in keys]:
            del self._drawn[drawn]

    def decode(self, point: Scenario) -> Run:
        """Return the decode run that `point` is a beginning of, simulated once."""
        key, steps = _key(point), point.workload.output_tokens - 1
        if key not in self._decodes or len(self._decodes[key].step_ps) < steps:
            self._decodes[key] = run_decode(
                point,
                self.profile(point.hardware),
                pick_engine(self.engine)[1],
                max(steps, self._longest.get(key, 0)),
                strict=self.strict,
                seed=self.seed,
            )
        return self._decodes[key]

    def prefill(self, point: Scenario) -> Run:
        """Return the prefill of one of the point's sequences."""
        key = _key(point, drop=("batch", "output_tokens"))
        if key not in self._prefills:
            profile, finish = self.profile(point.hardware), pick_engine(self.engine)[1]
            self._prefills[key] = run_prefill(point, profile, finish, strict=self.strict)
        return self._prefills[key]

    def breakdown(self, point: Scenario) -> list[Row]:
        """Return where a mean decode step goes on the main stream, largest part first."""
        run, steps = self.decode(point), point.workload.output_tokens - 1
        times_s, worst = run.main_stream_s(steps), run.sources(steps).worst
        achieved = run.achieved_bytes_per_s(steps)
        total_s = sum(times_s.values())
        return [
            {
                "part": kind,
                "time_s": time_s,
                "share_frac": time_s / total_s,
                "achieved_bytes_per_s": achieved.get(kind),
                "source": worst.get(kind, "simulated"),
            }
            for kind, time_s in sorted(times_s.items(), key=lambda item: -item[1])
            if time_s > 0
        ]

    def _row(self, point: Scenario) -> ResultRow:
        profile = self.profile(point.hardware)
        row = empty_row(point, memory(point, profile), max_batch(point, profile))
        row |= {"engine": pick_engine(self.engine)[0], "seed": self.seed}
        reason = infeasible(point, profile)
        if reason:
            return row | {"status": "infeasible", "reason": reason}
        row |= self._times(point) | self._percentiles(point)
        return row | self._gains(point, row) | self._interval(point, profile)

    def _interval(self, point: Scenario, profile: HardwareProfile) -> ResultRow:
        """Return the rates at both ends of the profile's ranges; nothing where it has none."""
        slow, fast = (
            self._times_at_end(point, profile, "slow"),
            self._times_at_end(point, profile, "fast"),
        )
        if slow is None or fast is None:
            return {}
        return {
            "decode_tokens_per_s_low": slow.get("decode_tokens_per_s"),
            "output_tokens_per_s_low": slow.get("output_tokens_per_s"),
            "decode_tokens_per_s_high": fast.get("decode_tokens_per_s"),
            "output_tokens_per_s_high": fast.get("output_tokens_per_s"),
        }

    def _times_at_end(
        self, point: Scenario, profile: HardwareProfile, end: Literal["slow", "fast"]
    ) -> ResultRow | None:
        """Return the time columns at one end of the profile's ranges, None where it has none."""
        there = _at_end(point, end)
        if there.hardware not in self._profiles:
            corner = profile.corner(end)
            if corner is None:
                return None
            self._profiles[there.hardware] = corner
        return self._times(there)

    def _times(self, point: Scenario) -> ResultRow:
        """Return the time columns of a point."""
        load, prefill = point.workload, self.prefill(point)
        prefill_s = load.batch * int(prefill.step_ps[0]) / PS_PER_S
        steps = load.output_tokens - 1
        decode_ps = 0
        row: ResultRow = {"prefill_s": prefill_s, "prefill_sources": prefill.sources(1).text}
        if steps:
            run = self.decode(point)
            busy = run.busy_ps
            decode_ps = int(run.step_ps[:steps].sum())
            exposed_ps = decode_ps - int(run.unrouted_ps[:steps].sum())
            step_s = decode_ps / PS_PER_S / steps
            sources = run.sources(steps)
            row |= {
                "step_s": step_s,
                "tpot_s": step_s,
                "decode_tokens_per_s": load.batch / step_s,
                "exposed_routing_s": exposed_ps / PS_PER_S / steps,
                "gpu_busy_frac": int((busy["gpu"] - busy["spin"])[:steps].sum()) / decode_ps,
                "cpu_busy_frac": int(busy["cpu"][:steps].sum()) / decode_ps,
                "measured_frac": sources.measured_frac,
                "price_sources": sources.text,
            }
        decode_s = decode_ps / PS_PER_S
        output_tokens = load.batch * load.output_tokens
        output_tokens_per_s = output_tokens / (prefill_s + decode_s)
        return row | {"decode_s": decode_s, "output_tokens_per_s": output_tokens_per_s}

    def _draws(self, point: Scenario) -> Values | None:
        """Return the point's mean step in each draw of its tables' errors, if it has some."""
        steps, key = point.workload.output_tokens - 1, _key(point)
        if steps and (key, steps) not in self._drawn:
            run, profile = self.decode(point), self.profile(point.hardware)
            finish = pick_engine(self.engine)[1]
            self._drawn[key, steps] = drawn_steps_s(run, profile, finish, steps, self.seed)
        return self._drawn.get((key, steps))

    def _percentiles(self, point: Scenario) -> ResultRow:
        """Return the decode rate's percentiles."""
        steps_s = self._draws(point)
        if steps_s is None:
            return {}
        low, middle, high = percentiles(point.workload.batch / steps_s)
        return {
            "decode_tokens_per_s_p5": low,
            "decode_tokens_per_s_p50": middle,
            "decode_tokens_per_s_p95": high,
        }

    def _gains(self, point: Scenario, row: ResultRow) -> ResultRow:
        """Return the gain columns: over the baseline routing, and over dense attention."""
        profile = self.profile(point.hardware)
        baseline, dense = point.with_routing(point.compare.baseline), point.with_dense()
        gains: ResultRow = {}
        why = infeasible(baseline, profile)
        if why:
            gains["reason"] = f"no gain, since the baseline does not run: {why}"
        else:
            gains |= self._over_baseline(point, row, baseline)
        if not infeasible(dense, profile):
            full = self._times(dense)
            gains["gain_over_dense_frac"] = _gain(
                row.get("decode_tokens_per_s"), full.get("decode_tokens_per_s")
            )
            if full.get("step_s") is not None:
                run, steps = self.decode(dense), point.workload.output_tokens - 1
                all_s = sum(run.main_stream_s(steps).values())
                gains["dense_ceiling_frac"] = _ceiling(run.attention_s(steps), all_s)
        return gains

    def _over_baseline(self, point: Scenario, row: ResultRow, baseline: Scenario) -> ResultRow:
        """Return the gain columns over a baseline that runs."""
        base = self._times(baseline)
        gains: ResultRow = {
            "decode_gain_frac": _gain(
                row.get("decode_tokens_per_s"), base.get("decode_tokens_per_s")
            ),
            "output_gain_frac": _gain(
                row.get("output_tokens_per_s"), base.get("output_tokens_per_s")
            ),
        }
        mine_s, theirs_s = self._draws(point), self._draws(baseline)
        if mine_s is not None or theirs_s is not None:
            mine_s, theirs_s = _or_step(mine_s, row), _or_step(theirs_s, base)
            low, _, high = percentiles(theirs_s / mine_s - 1)
            gains |= {"decode_gain_frac_p5": low, "decode_gain_frac_p95": high}
        exposed_s, step_s = base.get("exposed_routing_s"), base.get("step_s")
        if exposed_s is not None and step_s is not None:
            steps = point.workload.output_tokens - 1
            total_s = (base["prefill_s"] or 0.0) + (base["decode_s"] or 0.0)
            prefill = self.prefill(baseline)
            copies_ps = int((prefill.step_ps - prefill.unrouted_ps)[0])
            share_s = steps * exposed_s + point.workload.batch * copies_ps / PS_PER_S
            gains["gain_ceiling_frac"] = _ceiling(exposed_s, step_s)
            gains["output_ceiling_frac"] = _ceiling(share_s, total_s)
        return gains


def _at_end(point: Scenario, end: str) -> Scenario:
    """Return a point on the profile at one end of its ranges."""
    return point.model_copy(update={"hardware": f"{point.hardware} at its {end} end"})


def _or_step(draws_s: Values | None, times: ResultRow) -> Values:
    """Return the draws; without held-out points a step is as predicted in each."""
    return np.asarray(times["step_s"] if draws_s is None else draws_s, dtype=np.float64)


def _gain(mine: float | None, theirs: float | None) -> float | None:
    """Return how much larger a rate is, as a fraction; None where either is missing."""
    return None if mine is None or theirs is None else mine / theirs - 1


def _ceiling(share_s: float, total_s: float) -> float:
    """Return the gain if `share_s` of `total_s` took no time: 1 / (1 - share) - 1."""
    return total_s / (total_s - share_s) - 1


def _key(point: Scenario, drop: Sequence[str] = ("output_tokens",)) -> str:
    """Return all that a run depends on, beside what is dropped of the workload."""
    load = {k: v for k, v in point.workload.model_dump().items() if k not in drop}
    selector = point.resolved_selector()
    channels = selector.channels(point.routing.channels, point.model.head_dim)
    return repr((point.model, point.hardware, selector, channels, point.routing, load))
