"""Two engines, one call: ``finish(ops, durations_ps) -> end_ps``, equal to the last picosecond.

The recurrence both implement, for consecutive runs of one step (a *lane* each):

    start = max(origin, end of the op before it on its stream, ends of the ops it waits for)
    end   = start + duration

where a stream keeps its order across steps, a wait may name an op of the step before, and the
origin of a step is the end of the previous step's last op on the main stream. Times of a lane are
counted from its origin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from essim.engines.des import finish as finish_des
from essim.engines.maxplus import finish as finish_maxplus
from essim.engines.maxplus import finish_alike
from essim.step.ops import Op

Finish = Callable[
    [Sequence[Op], Sequence[NDArray[np.int64]], Sequence[int] | None], NDArray[np.int64]
]

ENGINES: dict[str, Finish] = {"des": finish_des, "maxplus": finish_maxplus}

__all__ = ["ENGINES", "Finish", "finish_alike", "finish_des", "finish_maxplus", "pick_engine"]


def pick_engine(name: str) -> tuple[str, Finish]:
    """Return (name, finish) for ``auto``, ``des`` or ``maxplus``; auto is the fast one."""
    chosen = "maxplus" if name == "auto" else name
    return chosen, ENGINES[chosen]
