"""Block-mask attention (Flex-BS): CPE's pattern by blocks of a mask."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from essim.methods.selectors.base import Phase, RouteWork, Tokens, Values
from essim.methods.selectors.prhs import Windowed
from essim.model.shape import Count, ModelShape


class FlexBS(Windowed):
    """Block-mask attention (PyTorch FlexAttention), with the choice of CPE.

    What is chosen is rounded up to whole blocks of 128, and one more since it lies across their
    edges. The mask is built each step. Source: PrHS' comparison; the mask's cost is inferred.
    """

    granularity: ClassVar[str] = "block of 128"

    kind: Literal["flex_bs"] = "flex_bs"
    block_steps: Count = 16
    mask_block_tokens: Count = 128

    def read_tokens(self, model: ModelShape, context: Tokens) -> Values:
        """Return whole blocks, and no more than there are."""
        block = self.mask_block_tokens
        blocks = np.ceil(self.attended_tokens(context) / block) + 1
        found: Values = np.minimum(np.asarray(context, dtype=np.float64), blocks * block)
        return found

    def route_work(self, model: ModelShape, context: Tokens, channels: int | None) -> RouteWork:
        """Return CPE's work, and a mask of a flag for each block and head."""
        flags = np.ceil(context / self.mask_block_tokens) * model.heads
        mask = Phase("gather", byte_count=4.0 * flags, launches=2)
        return RouteWork((*super().route_work(model, context, channels).phases, mask))
