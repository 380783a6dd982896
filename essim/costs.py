"""CostModel: op kind + point -> price in seconds, and where that number comes from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from essim.errors import PricingError
from essim.hardware import HardwareProfile
from essim.spread import Spread
from essim.tables import Lookup
from essim.work import KINDS, Case, Point, Work

Values = NDArray[np.float64]

# From best to worst; what a number is called when it mixes several is the worst of them.
SOURCES = ("measured", "interpolated", "published", "extrapolated", "roofline", "assumed")
STRICT_SOURCES = ("measured", "interpolated")


@dataclass(frozen=True)
class Price:
    """An op's time at one or many points.

    Attributes
    ----------
    mean_s
        Expected time in seconds, one per lane.
    rank
        Position in `SOURCES` of each lane's source: ``measured`` (on a table's grid),
        ``interpolated`` (between its points), ``published``, ``extrapolated`` (past the edge of a
        table, never below the roofline), ``roofline`` (no table: bytes, FLOPs and launches over
        the device's peaks), ``assumed``.
    spread
        The time as a distribution, where the table carries one.
    """

    mean_s: Values
    rank: NDArray[np.int8]
    spread: Spread | None = None


class CostModel:
    """Prices the ops of one case on one hardware profile: tables first, roofline where none is.

    Parameters
    ----------
    strict
        Refuse every price that is not measured or interpolated.
    """

    def __init__(self, profile: HardwareProfile, case: Case, *, strict: bool = False) -> None:
        self.profile = profile
        self.case = case
        self.strict = strict
        self._settings = case.settings()

    def price(self, kind: str, point: Point) -> Price:
        """Return the price of `kind` at `point`, a lane for each of ``point.context_tokens``.

        Raises
        ------
        PricingError
            Under `strict`, if any lane is neither measured nor interpolated.
        """
        work = KINDS[kind](self.case, point)
        mean_s, rank, spread = self._priced(work)
        if self.strict and np.max(rank) >= len(STRICT_SOURCES):
            raise PricingError(
                f"{kind} on {self.profile.spec.name} is {SOURCES[np.max(rank)]}, not measured: "
                f"{self._why(work)}",
                "Measure this machine, or leave --strict away",
            )
        shape = point.context_tokens.shape
        return Price(np.broadcast_to(mean_s, shape), np.broadcast_to(rank, shape), spread)

    def _priced(self, work: Work) -> tuple[Values, NDArray[np.int8], Spread | None]:
        spec = self.profile.spec
        if work.device == "constant" and work.table in spec.constants:
            constant = spec.constants[work.table]
            return np.asarray(constant.value), _rank(constant.source), None
        floor = self.floor_s(work)
        if work.device == "d2h" or work.device == "h2d":
            link = spec.d2h if work.device == "d2h" else spec.h2d
            return floor, _rank(link.bandwidth_bytes_per_s.source), None
        lookup = self._lookup(work)
        if lookup is None:
            return floor, _rank("roofline"), None
        source = spec.tables[work.table].source
        inside = np.where(lookup.on_grid, _rank("measured"), _rank("interpolated"))
        if source != "measured":
            inside = np.broadcast_to(_rank(source), inside.shape)
        rank = np.where(lookup.inside, inside, _rank("extrapolated")).astype(np.int8)
        mean = np.where(lookup.inside, lookup.mean_s, np.maximum(lookup.mean_s, floor))
        spread = None if lookup.spread is None else lookup.spread.scaled_to(mean)
        return mean, rank, spread

    def _lookup(self, work: Work) -> Lookup | None:
        table = self.profile.tables.get(work.table)
        if table is None or self._mismatch(work):
            return None
        grid = table.grid(work.keys)
        if grid is None or any(axis not in work.axes for axis in table.axes):
            return None
        return grid.at([work.axes[axis] for axis in table.axes])

    def _mismatch(self, work: Work) -> str:
        """Return the first setting the table does not hold for, or an empty string."""
        for key, values in self.profile.spec.tables[work.table].holds_for.items():
            if self._settings.get(key) not in values:
                return f"its table holds for {key} {values}, not {self._settings.get(key)}"
        return ""

    def _why(self, work: Work) -> str:
        if work.table not in self.profile.spec.tables:
            return "the profile has no such table or number"
        return self._mismatch(work) or "the point is off the table's grid"

    def floor_s(self, work: Work) -> Values:
        """Return the roofline: the larger of bytes and FLOPs over the peaks, plus launches."""
        spec = self.profile.spec
        if work.device == "d2h" or work.device == "h2d":
            link = spec.d2h if work.device == "d2h" else spec.h2d
            moved = np.asarray(work.byte_count / link.bandwidth_bytes_per_s.value)
            return np.asarray(moved + link.flag_latency_s.value)
        if work.device == "cpu":
            share = min(1.0, self.case.routing.cpu_threads / spec.cpu.cores.value)
            bandwidth = spec.cpu.bandwidth_bytes_per_s.value
            flops = spec.cpu.fp32_flops_per_s.value * share
        else:
            bandwidth = spec.gpu.bandwidth_bytes_per_s.value
            flops = spec.gpu.flops_per_s(work.dtype)
        busy = np.maximum(np.asarray(work.byte_count) / bandwidth, np.asarray(work.flops) / flops)
        return np.asarray(busy + work.launches * spec.gpu.launch_s.value)


def _rank(source: str) -> NDArray[np.int8]:
    return np.asarray(SOURCES.index(source), dtype=np.int8)
