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
from essim.step.held import differing, mismatch
from essim.step.kinds import KINDS, Case, Point, Work
from essim.step.like import like_s
from essim.step.transfer import (
    busy_s,
    carried_s,
    floor_s,
    gemm_price_s,
    roofline_s,
    to_other_device_s,
)

Values = NDArray[np.float64]

# From best to worst; what a number is called when it mixes several is the worst of them.
SOURCES = (
    *("measured", "interpolated", "published", "extrapolated"),
    *("scaled", "transferred", "roofline", "assumed"),
)
STRICT_SOURCES = ("measured", "interpolated")
# Rank of the last source that a table itself covers.
INSIDE = SOURCES.index("published")
# Settings of a model, not of a method: another value is another shape or dtype.
_SHAPE = ("heads", "kv_heads", "head_dim", "hidden", "ffn", "vocab", "weight_dtype", "kv_dtype")


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
        table, never below it), ``scaled`` (a table of other settings of the method),
        ``transferred`` (of another shape, dtype or device), ``roofline`` (no table: bytes or FLOPs
        over the device's peaks, and as many small kernels as it has launches), ``assumed``.
    distribution
        The time as a distribution, where the table carries one.
    origin
        The table behind it and the keys there; empty where there is none.
    error
        What it is off by, a key of `essim.step.errors`; empty where its lanes' sources say.
    latency_s
        Of the table behind it, the least time.
    family
        Of ops whose prices are off alike.
    """

    mean_s: Values
    rank: NDArray[np.int8]
    distribution: Distribution | None = None
    origin: tuple[str, ...] = ()
    error: str = ""
    latency_s: float = 0.0
    family: str = "other"

    def at(self, mean_s: Values, source: str) -> Price:
        """Return the price carried over to another time: its source is no better than `source`."""
        rank = np.broadcast_to(np.maximum(self.rank, _rank(source)), mean_s.shape)
        distribution = None if self.distribution is None else self.distribution.scaled_to(mean_s)
        return replace(self, mean_s=mean_s, rank=rank, distribution=distribution)


class CostModel:
    """Prices the ops of one case on one hardware profile.

    A table that holds comes first, then one of other settings or of another shape, then the
    profile's reference, then the roofline.

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
        """Return the price of `kind` at `point`, a lane for each context; else as `lanes`."""
        price = self.lanes(kind, point)
        shape = np.broadcast_shapes(np.shape(point.batch), point.context_tokens.shape)
        mean_s = np.broadcast_to(price.mean_s, shape)
        rank = np.broadcast_to(price.rank, shape)
        return replace(price, mean_s=mean_s, rank=rank)

    def lanes(self, kind: str, point: Point) -> Price:
        """Return the price of `kind` in as many lanes as it needs.

        Batch, rows and context broadcast: what does not depend on one of them has no lanes for it.

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
        return replace(price, family=work.family)

    def _priced(self, kind: str, work: Work, point: Point) -> Price:
        if work.share is not None:
            return self._share(work, *work.share, point)
        price = self._known(kind, work, point)
        if price is None and self.profile.reference is not None:
            price = self._of_reference(kind, work, point)
        price = price or self._roofline(work)
        if not np.any(work.other_s):
            return price
        # What another device takes is what a publication says, beside the GPU's own part.
        return price.at(price.mean_s + work.other_s, "published")

    def _share(self, work: Work, kind: str, share: float, point: Point) -> Price:
        """Return a share of another op's price, no less than the least time of its own work."""
        whole = self.price(kind, point)
        return whole.at(np.maximum(share * whole.mean_s, self.floor_s(work)), "scaled")

    def _known(self, kind: str, work: Work, point: Point, *, rising: bool = False) -> Price | None:
        """Return a price that this profile's own numbers give, None where they give none."""
        spec = self.profile.spec
        if work.table in spec.constants:
            constant = spec.constants[work.table]
            return Price(np.asarray(constant.value), _rank(constant.source))
        if work.table in spec.tables and not self._mismatch(work):
            price = self._looked_up(work, rising=rising)
            if price is not None:
                return price
        price = self._gemm(work)
        if price is None and work.table in spec.tables:
            price = self._carried(kind, work, point)
        if price is None and work.stand_in_tokens is not None:
            price = self._stand_in(work, work.stand_in_tokens, point)
        return self._like(work) if price is None else price

    def _like(self, work: Work) -> Price | None:
        """Return the time of a router that was not measured, by those that were."""
        found = like_s(work, self.profile, self.case)
        if found is None:
            return None
        mean, error = np.maximum(found[0], self.floor_s(work)), "transferred like"
        known = Price(mean, _rank("transferred"), latency_s=found[1])
        return replace(known, error=error) if work.phases else known

    def _looked_up(self, work: Work, *, rising: bool = False) -> Price | None:
        """Return the table's price, None if it has no such keys or axes.

        Past the table's edges the slope of the nearest interval goes on (`Grid.beyond_s`), never
        below the roofline. That it goes on so is assumed from twice the last tick on. Beyond the
        edges, and with `rising` everywhere, the table is taken as one in which no time is less than
        one with less work: leaving it never gets cheaper.
        """
        table = self.profile.tables[work.table]
        grid = table.grid(work.keys, rising=rising)
        if grid is None or any(axis not in work.axes for axis in table.axes):
            return None
        at = [work.axes[axis] for axis in table.axes]
        lookup, line = grid.at(at), np.zeros(1)
        floor = floor_s(work, self.profile.spec, self.case)
        if not np.all(lookup.inside):
            smooth = table.grid(work.keys, rising=True)
            assert smooth is not None
            line = smooth.beyond_s(at, table.axes)
            # Less work than at the nearest point takes no longer than that did.
            line = np.where(lookup.past, line, np.minimum(line, lookup.edge_s))
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
        return Price(mean, rank, distribution, (work.table, *keys), latency_s=grid.least_s)

    def _gemm(self, work: Work) -> Price | None:
        """Return the time of a matrix that was not measured, by the forms of those that were."""
        if work.gemm is None:
            return None
        mean = gemm_price_s(work, self.profile, self.profile)
        if mean is None:
            return None
        if work.table != "gemm" and work.table in self.profile.spec.tables:
            mean = self._beside_head(work, mean)
        return Price(mean, _rank("transferred"))

    def _beside_head(self, work: Work, mean: Values) -> Values:
        """Return the LM head's time, no less than a smaller measured head's, sampling included."""
        holds_for = self.profile.spec.tables[work.table].holds_for
        n, k = work.gemm or (0, 0)
        sizes = {"vocab": n, "hidden": k}
        measured = [
            (size, int(holds_for[key][-1])) for key, size in sizes.items() if key in holds_for
        ]
        known = self._looked_up(work, rising=True)
        if known is not None and all(size >= had for size, had in measured):
            return np.maximum(mean, known.mean_s)
        if known is not None and all(size <= had for size, had in measured):
            return np.minimum(mean, known.mean_s)
        return mean

    def _carried(self, kind: str, work: Work, point: Point) -> Price | None:
        """Return the price of a table of other settings, with the difference in work.

        Another selector's kernel is another algorithm: how long it takes says nothing about this
        one.
        """
        holds_for = self.profile.spec.tables[work.table].holds_for
        selector = self._settings["selector"]
        if selector not in holds_for.get("selector", [selector]):
            return None
        there = self.case.measured_with(holds_for)
        alike = KINDS[kind].work(there, point).in_units_of(work)
        price = self._looked_up(alike, rising=True)
        if price is None:
            return None
        # Of the values, not of a range's ends: the table was measured on one machine.
        nominal, spec = self.profile.nominal, self.profile.spec
        before_s, after_s = busy_s(alike, nominal, there), busy_s(work, nominal, self.case)
        mean = carried_s(price.mean_s, price.latency_s, before_s, after_s)
        mean = np.maximum(mean, floor_s(work, spec, self.case))
        shape = all(key in _SHAPE for key in differing(holds_for, self._settings))
        return price.at(mean, "transferred" if shape else "scaled")

    def _stand_in(self, work: Work, tokens: NDArray[Any], point: Point) -> Price | None:
        """Price sparse attention that was not measured as dense attention over what it reads."""
        at = replace(point, context_tokens=tokens.astype(np.int64))
        dense = self._known("attn_dense", KINDS["attn_dense"].work(self.case, at), at)
        if dense is None:
            return None
        mean = np.maximum(dense.mean_s, floor_s(work, self.profile.spec, self.case))
        return dense.at(mean, "scaled")

    def _of_reference(self, kind: str, work: Work, point: Point) -> Price | None:
        """Return the reference's price, with bytes and FLOPs over this device's peaks."""
        reference = self.profile.reference
        assert reference is not None
        if work.gemm is not None:
            mean = gemm_price_s(work, reference, self.profile)
            if mean is None:
                return None
            return Price(mean, _rank("transferred"), error="device gemm")
        price = CostModel(reference, self.case)._known(kind, work, point, rising=True)
        if price is None:
            return None
        price = replace(price, error=f"device {work.family}")
        mean = to_other_device_s(price.mean_s, price.latency_s, work, self.case, self.profile)
        return price.at(
            np.maximum(mean, floor_s(work, self.profile.spec, self.case)), "transferred"
        )

    def _roofline(self, work: Work) -> Price:
        return Price(roofline_s(work, self.profile, self.case), _rank("roofline"))

    def _mismatch(self, work: Work) -> str:
        """Return the first setting the table does not hold for, or an empty string."""
        return mismatch(self.profile.spec.tables[work.table].holds_for, self._settings)

    def _why(self, work: Work) -> str:
        if work.table not in self.profile.spec.tables:
            return "the profile has no such table or number"
        return self._mismatch(work) or "the point is off the table's grid"

    def floor_s(self, work: Work, spec: ProfileSpec | None = None) -> Values:
        """Return the roofline: the larger of bytes and FLOPs over the peaks, plus launches."""
        return floor_s(work, spec or self.profile.spec, self.case)


def _rank(source: str) -> NDArray[np.int8]:
    return np.asarray(SOURCES.index(source), dtype=np.int8)
