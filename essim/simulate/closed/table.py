"""Columns of a block's rows: what `sweep` puts into a row, as arrays."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from essim.simulate.closed.lines import Values
from essim.simulate.closed.room import Room
from essim.simulate.closed.times import Block, Prefills, Times, times_of
from essim.simulate.memory import memory
from essim.simulate.rows import empty_row
from essim.simulate.sweep import Simulator
from essim.simulate.uncertainty import PERCENTILES
from essim.step.kinds import Case

Columns = dict[str, Any]
"""A column's one value, or an array of shape [batches, runs]; NaN and None are missing."""

# Blocks whose times are kept: those of a baseline and of dense attention are asked for again.
_KEPT = 48
ENGINE = "closed"


@dataclass
class ClosedForm:
    """Fills in the columns of points, a block at a time.

    Parameters
    ----------
    strict, seed
        As of `Simulator`.
    """

    strict: bool = False
    seed: int = 0
    _times: OrderedDict[str, Times] = field(default_factory=OrderedDict)
    _prefills: Prefills = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._simulator = Simulator(strict=self.strict, seed=self.seed)
        self.profile = self._simulator.profile

    def columns(self, block: Block) -> Columns:
        """Return the columns of a block's rows."""
        times = self.times(block)
        found = self._fields(block)
        found |= {"status": np.where(times.why == "", "ok", "infeasible"), "reason": times.why}
        found |= {"engine": ENGINE, "seed": self.seed}
        found |= times.texts | times.columns
        found |= self._percentiles(times) | self._gains(block, times) | self._ranges(block)
        ran = times.why == ""
        return {
            name: np.where(ran, v, np.nan) if _is_number(v) and name in _TIMED else v
            for name, v in found.items()
        }

    def times(self, block: Block, end: Literal["slow", "fast"] | None = None) -> Times:
        """Return the times of a block, at one end of the profile's ranges if asked for."""
        key = f"{end} {block.key}"
        if key not in self._times:
            profile = self.profile(block.point.hardware)
            corner = profile if end is None else profile.corner(end)
            assert corner is not None
            made = times_of(block, corner, self._prefills, strict=self.strict, seed=self.seed)
            self._times[key] = made
            if len(self._times) > _KEPT:
                self._times.popitem(last=False)
        self._times.move_to_end(key)
        return self._times[key]

    def _fields(self, block: Block) -> Columns:
        """Return the columns of `empty_row`."""
        found: Columns = {}
        profile = self.profile(block.point.hardware)
        groups, _ = block.alike
        for selector, runs in groups.values():
            point, loads = block.at(runs[0]), block.loads[runs]
            own: Columns = dict(empty_row(point, memory(point, profile, 1), 0))
            room = Room(point, selector, profile, loads[:, 0], loads[:, 1])
            kept = [selector.kept_prompt_tokens(n) for n in loads[:, 0].tolist()]
            final = np.array(kept, dtype=np.int64) + loads[:, 1] - 1
            read = Case(point.model, selector, point.routing).mean_read_tokens(final)
            own |= {
                "input_tokens": loads[:, 0],
                "output_tokens": loads[:, 1],
                "attended_tokens": selector.attended_tokens(final),
                "mean_read_tokens": read,
                "read_ratio": np.where(read > 0, final / np.where(read > 0, read, 1.0), np.nan),
                "max_batch": room.max_batch(),
            }
            part = room.bytes(block.batches[:, None])
            own |= {name: part[name] for name in part if name in own}
            own["batch"] = block.batches[:, None]
            if len(groups) == 1 and len(runs) == len(block.loads):
                return own
            for name, value in own.items():
                if name not in found:
                    number = isinstance(value, np.ndarray | int | float)
                    found[name] = np.full(block.shape, np.nan if number else None, object)
                found[name][:, runs] = value
        return found

    def _percentiles(self, times: Times) -> Columns:
        if times.draws_s is None:
            return {}
        found = _percentiles(times.block.batches[:, None, None] / times.draws_s)
        return {f"decode_tokens_per_s_p{p}": v for p, v in zip(PERCENTILES, found, strict=True)}

    def _ranges(self, block: Block) -> Columns:
        """Return the rates at both ends of the profile's ranges."""
        if self.profile(block.point.hardware).corner("slow") is None:
            return {}
        found: Columns = {}
        for end, name in (("slow", "low"), ("fast", "high")):
            columns = self.times(block, end).columns  # type: ignore[arg-type]
            for rate in ("decode_tokens_per_s", "output_tokens_per_s"):
                found[f"{rate}_{name}"] = columns[rate]
        return found

    def _gains(self, block: Block, times: Times) -> Columns:
        """Return the gain columns: over the baseline routing, and over dense attention."""
        point = block.point
        baseline = point.with_routing(point.compare.baseline)
        found = self._over_baseline(times, self.times(_with(block, baseline)))
        dense = self.times(_with(block, point.with_dense()))
        rate = dense.columns["decode_tokens_per_s"]
        found["gain_over_dense_frac"] = times.columns["decode_tokens_per_s"] / rate - 1
        total_s = dense.columns["decode_s"]
        found["dense_ceiling_frac"] = total_s / (total_s - dense.attention_s) - 1
        return found

    def _over_baseline(self, times: Times, base: Times) -> Columns:
        """Return the gain columns over a baseline, and why there are none."""
        mine, theirs = times.columns, base.columns
        step_s, exposed_s = theirs["step_s"], theirs["exposed_routing_s"]
        total_s = theirs["prefill_s"] + theirs["decode_s"]
        copies_s = times.block.batches[:, None] * base.copies_s
        share_s = times.steps * exposed_s + copies_s
        missing = (times.why == "") & (base.why != "")
        why = "no gain, since the baseline does not run: " + base.why
        found: Columns = {
            "decode_gain_frac": mine["decode_tokens_per_s"] / theirs["decode_tokens_per_s"] - 1,
            "output_gain_frac": mine["output_tokens_per_s"] / theirs["output_tokens_per_s"] - 1,
            "gain_ceiling_frac": step_s / (step_s - exposed_s) - 1,
            "output_ceiling_frac": np.where(
                times.steps > 0, total_s / (total_s - share_s) - 1, np.nan
            ),
            "reason": np.where(missing, why, times.why),
        }
        both = [_or_step(t) for t in (times, base)]
        if times.draws_s is not None or base.draws_s is not None:
            drawn = _has_draws(times) | _has_draws(base)
            low, _, high = _percentiles(both[1] / both[0] - 1)
            for percent, gain in (("p5", low), ("p95", high)):
                found[f"decode_gain_frac_{percent}"] = np.where(drawn, gain, np.nan)
        return found


def _has_draws(times: Times) -> NDArray[np.bool_]:
    """Return which points have draws, shape [batches, runs]."""
    none = np.zeros(times.block.shape, dtype=bool)
    return none if times.draws_s is None else ~np.isnan(times.draws_s[:, :, 0])


def _or_step(times: Times) -> Values:
    """Return the draws; without errors that are known a step is as predicted in each."""
    step_s = times.columns["step_s"][:, :, None]
    if times.draws_s is None:
        return step_s
    return np.where(np.isnan(times.draws_s), step_s, times.draws_s)


_TIMED = (
    *("gain_over_dense_frac", "dense_ceiling_frac", "gain_ceiling_frac", "output_ceiling_frac"),
    *("decode_tokens_per_s_low", "decode_tokens_per_s_high"),
    *("output_tokens_per_s_low", "output_tokens_per_s_high"),
)


def _is_number(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def _with(block: Block, point: Any) -> Block:
    return Block(point, block.batches, block.loads)


def _percentiles(draws: Values) -> tuple[Values, Values, Values]:
    """Return percentiles along the last axis, between the two draws around each."""
    ordered = np.sort(draws, axis=-1)
    found = []
    for percent in PERCENTILES:
        at = percent / 100 * (ordered.shape[-1] - 1)
        low, share = int(at), at - int(at)
        below, above = ordered[..., low], ordered[..., min(low + 1, ordered.shape[-1] - 1)]
        found.append(below + (above - below) * share)
    return found[0], found[1], found[2]
