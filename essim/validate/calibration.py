"""Points a profile was calibrated at, and predictions that fall on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from essim.hardware.profile import HardwareProfile
from essim.results.column import Row

# Tables over batch and context that price routing and attention.
_CONTEXT_TABLES = (
    "gpu_route_stepwise",
    "gpu_route_fused",
    "gpu_side_slowdown",
    "cpu_route",
    "attn_dense",
)


def calibration_points(profile: HardwareProfile) -> dict[str, list[tuple[int, int]]]:
    """Return the (batch, context) grid of every table that prices routing or attention by them."""
    points: dict[str, list[tuple[int, int]]] = {}
    for name in _CONTEXT_TABLES:
        table = profile.tables.get(name)
        if table is None or not {"batch", "context_tokens"} <= set(table.axes):
            continue
        at = [table.axes.index(axis) for axis in ("batch", "context_tokens")]
        grids = [[grid.axes[i].astype(int).tolist() for i in at] for grid in table.grids.values()]
        points[name] = sorted(
            {(b, c) for batches, contexts in grids for b in batches for c in contexts}
        )
    return points


def on_the_grid(pairs: Sequence[Row], points: Mapping[str, list[tuple[int, int]]]) -> list[Row]:
    """Return the pairs of which a step, or the context before it, is a calibration point."""
    ticks = {point for own in points.values() for point in own}
    return [
        pair
        for pair in pairs
        if any(
            (int(pair["batch"] or 0), int(pair["context_tokens"] or 0) + i) in ticks
            for i in range(int(pair["steps"] or 0) + 1)
        )
    ]
