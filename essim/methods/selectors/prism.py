"""PRISM: blocks by a photonic device, which is a link and a latency here."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from essim.methods.selectors.base import Phase, RouteWork, Tokens, Values
from essim.methods.selectors.chosen import ChosenBlocks, Some
from essim.model.shape import Count, ModelShape


class PRISM(ChosenBlocks):
    """PRISM (2025): 32 blocks of 128 by signatures of mean keys, compared in light.

    The GPU projects the query to `rank` values; the device compares it with all signatures,
    `chip_pages` at a time, 9 ns each and 4 ns to load them; the way there and back is `link_s` a
    layer, which its authors leave out: 0 by default.
    Source: the released code, exact for the device (simulated by its authors); the link is assumed.
    """

    granularity: ClassVar[str] = "block of 128"
    off_cpu: ClassVar[str] = "prism chooses on a device of its own"
    summary_of: ClassVar[str] = "signatures"

    kind: Literal["prism"] = "prism"
    page_tokens: Count = 128
    top_pages: Count = 32
    local_tokens: Some = 256
    rank: Count = 32
    chip_pages: Count = 1024
    chip_s: Annotated[float, Field(gt=0)] = 13e-9
    link_s: Annotated[float, Field(ge=0)] = 0.0

    def assumes(self) -> str:
        """Return the link's latency."""
        return f"the link to the device takes {self.link_s * 1e6:g} us a layer (assumed)"

    def device_s(self, model: ModelShape, context: Tokens) -> Values:
        """Return seconds of the device for one sequence in a layer: a load of each KV head."""
        pages = context // self.page_tokens
        loads = np.maximum(1, -(-pages // self.chip_pages))
        return np.asarray(model.kv_heads * loads * self.chip_s, dtype=np.float64)

    def traffic_ratio(self, context_tokens: int) -> float:
        """Return how much less KV is read: S / (k p)."""
        return context_tokens / (self.top_pages * self.page_tokens)

    def route_work(self, model: ModelShape, context: Tokens, channels: int | None) -> RouteWork:
        """Return the query's projection on the GPU and the device's time."""
        weights = float(model.kv_width * self.rank * model.activation_bytes)
        project = Phase("project", flops=weights, weight_bytes=weights)
        return RouteWork((project,), device_s=self.device_s(model, context), link_s=self.link_s)
