"""What the GPU benches share: a point to time, and the hash of every kernel's source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from measure.gpu import Launch
from measure.kernels.build import source_hash
from measure.timing import Axis, CacheState, Spec

Point = tuple[Spec, Callable[[], Sequence[Launch]]]
"""What is timed, and how to make its rotation of launches."""

KERNELS = Path(__file__).parent / "kernels"
HASH = source_hash([*KERNELS.glob("*.py"), *KERNELS.rglob("*.cu*")])


def spec(
    kind: str, moved: int, state: CacheState = "cold", dtype: str = "bf16", **axes: Axis
) -> Spec:
    """A spec of this source."""
    return Spec(kind, axes, dtype, state, moved, HASH)
