"""CostModel: op kind + point -> price in seconds, and where that number comes from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from essim.errors import PricingError
from essim.hardware.distribution import Distribution
from essim.hardware.profile import HardwareProfile
from essim.hardware.spec import ProfileSpec
from essim.step.kinds import KINDS, Case, Point, Work

Values = NDArray[np.float64]

# From best to worst; what a number is called when it mixes several is the worst of them.
SOURCES = (
    *("measured", "interpolated", "published"),
    *("extrapolated", "scaled", "roofline", "assumed"),
)
STRICT_SOURCES = ("measured", "interpolated")
# Rank of the last source that a table itself covers.
_INSIDE = SOURCES.index("published")


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
        table, never below the roofline), ``scaled`` (a table of other settings times the ratio of
        the rooflines), ``roofline`` (no table: bytes, FLOPs and launches over the device's peaks),
        ``assumed``.
    distribution
        The time as a distribution, where the table carries one.
    origin
        The table behind it and the keys there; empty where there is none.
    """

    mean_s: Values
    rank: NDArray[np.int8]
    distribution: Distribution | None = None
    origin: tuple[str, ...] = ()


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
        work = KINDS[kind].work(self.case, point)
        price = self._priced(kind, work, point)
        if self.strict and np.max(price.rank) >= len(STRICT_SOURCES):
            raise PricingError(
                f"{kind} on {self.profile.spec.name} is {SOURCES[np.max(price.rank)]}, "
                f"not measured: {self._why(work)}",
                "Measure this machine, or leave --strict away",
            )
        shape = point.context_tokens.shape
        mean_s = np.broadcast_to(price.mean_s, shape)
        rank = np.broadcast_to(price.rank, shape)
        return Price(mean_s, rank, price.distribution, price.origin)

    def _priced(self, kind: str, work: Work, point: Point) -> Price:
        spec = self.profile.spec
        if work.table in spec.constants:
            constant = spec.constants[work.table]
            return Price(np.asarray(constant.value), _rank(constant.source))
        known = work.table in spec.tables
        price = self._looked_up(work) if known and not self._mismatch(work) else None
        if work.stand_in_tokens is not None and (price is None or np.max(price.rank) > _INSIDE):
            return self._stand_in(work, work.stand_in_tokens, point, price)
        if price is not None:
            return price
        return self._scaled(kind, work, point) if known else self._floor(work)

    def _floor(self, work: Work) -> Price:
        return Price(self.floor_s(work), _rank("roofline"))

    def _stand_in(self, work: Work, tokens: NDArray[Any], point: Point, own: Price | None) -> Price:
        """Price sparse attention that was not measured as dense attention over what it reads.

        Lanes that its own table covers keep that table's price.
        """
        at = replace(point, context_tokens=tokens.astype(np.int64))
        dense = self._priced("attn_dense", KINDS["attn_dense"].work(self.case, at), at)
        mean = np.maximum(dense.mean_s, self.floor_s(work))
        rank = np.maximum(dense.rank, _rank("scaled"))
        if own is None or np.min(own.rank) > _INSIDE:
            return Price(mean, rank, origin=dense.origin)
        covered = own.rank <= _INSIDE
        mean, rank = np.where(covered, own.mean_s, mean), np.where(covered, own.rank, rank)
        return Price(mean, rank, origin=own.origin)

    def _looked_up(self, work: Work) -> Price | None:
        """Return the table's price, None if it has no such keys or axes.

        Past the table's edge the last interval's slope goes on, never below the edge or the
        roofline, and before its first tick never above that: more work never gets cheaper. That
        it goes on so is assumed from twice the last tick on.
        """
        table = self.profile.tables[work.table]
        grid = table.grid(work.keys)
        if grid is None or any(axis not in work.axes for axis in table.axes):
            return None
        lookup = grid.at([work.axes[axis] for axis in table.axes])
        floor = self.floor_s(work)
        line = np.minimum(np.maximum(lookup.mean_s, lookup.least_s), lookup.most_s)
        mean = np.where(lookup.inside, lookup.mean_s, np.maximum(line, floor))
        source = self.profile.spec.tables[work.table].source
        inside = np.where(lookup.on_grid, _rank("measured"), _rank("interpolated"))
        if source != "measured":
            inside = np.broadcast_to(_rank(source), inside.shape)
        guess = np.where(line > floor, _rank("assumed"), _rank("roofline"))
        beyond = np.where(lookup.far, guess, _rank("extrapolated"))
        rank = np.where(lookup.inside, inside, beyond).astype(np.int8)
        distribution = None if lookup.distribution is None else lookup.distribution.scaled_to(mean)
        keys = (str(work.keys.get(key)) for key in table.keys)
        return Price(mean, rank, distribution, (work.table, *keys))

    def _scaled(self, kind: str, work: Work, point: Point) -> Price:
        """Price other settings than a table's: its price there times the ratio of the floors.

        The kernel is taken to be as far from its floor as the measured one, so that more work
        never gets cheaper by leaving the table.
        """
        holds_for = self.profile.spec.tables[work.table].holds_for
        if self._settings["selector"] not in holds_for.get(
            "selector", [self._settings["selector"]]
        ):
            # Another selector's kernel is another algorithm: how far it is from its floor says
            # nothing about this one.
            return self._floor(work)
        there = CostModel(self.profile, self.case.measured_with(holds_for))
        reference = KINDS[kind].work(there.case, point)
        price = there._looked_up(reference)
        if price is None:
            return self._floor(work)
        # Of the values, not of a range's ends: the table was measured on one machine.
        values = self.profile.nominal
        ratio = self.floor_s(work, values) / there.floor_s(reference, values)
        mean = np.maximum(price.mean_s * ratio, self.floor_s(work))
        rank = np.maximum(price.rank, _rank("scaled"))
        distribution = None if price.distribution is None else price.distribution.scaled_to(mean)
        return Price(mean, rank, distribution, price.origin)

    def _mismatch(self, work: Work) -> str:
        """Return the first setting the table does not hold for, or an empty string."""
        for key, values in self.profile.spec.tables[work.table].holds_for.items():
            if self._settings.get(key) not in values:
                return f"its table holds for {key} {_listed(values)}, not {self._settings.get(key)}"
        return ""

    def _why(self, work: Work) -> str:
        if work.table not in self.profile.spec.tables:
            return "the profile has no such table or number"
        return self._mismatch(work) or "the point is off the table's grid"

    def floor_s(self, work: Work, spec: ProfileSpec | None = None) -> Values:
        """Return the roofline: the larger of bytes and FLOPs over the peaks, plus launches."""
        spec = spec or self.profile.spec
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


def _listed(values: list[int | str]) -> str:
    """Return settings for people: three and more whole numbers in a row as a span."""
    numbers = [value for value in values if isinstance(value, int)]
    if len(values) > 2 and values == numbers == [*range(numbers[0], numbers[-1] + 1)]:
        return f"{numbers[0]}..{numbers[-1]}"
    return str(values)


def _rank(source: str) -> NDArray[np.int8]:
    return np.asarray(SOURCES.index(source), dtype=np.int8)
