"""What decode runs on any machine share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from torch import Tensor

from essim.methods.routing import Routing
from essim.methods.selectors import Selector
from essim.methods.selectors.dense import Dense
from essim.methods.selectors.rocketkv import RocketKV
from essim.model.shape import ModelShape
from essim.results.rows import Row
from essim.simulate.timeline import chrome_trace

Event = tuple[str, float, float, str]
"""Name, start and end in seconds, stream."""


@dataclass(frozen=True)
class RouteInput:
    """What routing of a layer was fed in the last step.

    Attributes
    ----------
    anchor
        Hidden states of an early query [b, hidden]; None where the layer's own query was used.
    query
        The query that pages were scored with [b, H, D], rounded as the router had it.
    """

    anchor: Tensor | None
    query: Tensor


class DecodeRun:
    """A batch of sequences of equal length that decode together; leaving it closes it."""

    def __init__(
        self,
        model: ModelShape,
        selector: RocketKV,
        mode: str,
        routing: Routing,
        batch: int,
        seed: int,
    ) -> None:
        self.model, self.mode, self.batch, self.seed = model, mode, batch, seed
        self.routing = routing
        self.selector: Selector = Dense() if mode == "dense" else selector

    def close(self) -> None:
        """Give back what the run holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def traced(events: Sequence[Event], kinds: Mapping[str, str]) -> dict[str, Any]:
    """Return a step in the simulator's Chrome trace format; the pool has routes alone."""
    rows: list[Row] = [
        {
            "name": name,
            "kind": kinds.get(name, "cpu_route"),
            "stream": stream,
            "start_s": start_s,
            "end_s": end_s,
        }
        for name, start_s, end_s, stream in events
    ]
    return chrome_trace(rows, [{"source": "measured"}] * len(rows))
