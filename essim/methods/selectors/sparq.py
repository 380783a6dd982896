"""SparQ: score tokens by the channels in which the query is largest."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from essim.methods.selectors.base import Phase, RouteWork, Tokens
from essim.methods.selectors.chosen import ChosenTokens
from essim.model.shape import Count, ModelShape


class SparQ(ChosenTokens):
    """SparQ attention (Ribar et al., 2023): tokens by the r largest channels of the query.

    Keys are stored twice, by token and by channel, which adds half the KV cache. What is not chosen
    counts by the running mean of V, blended after attention.
    Source: the paper (arXiv 2312.04985); kernels by its benchmark code, exact.
    """

    off_cpu: ClassVar[str] = "the keys that sparq scores lie in the KV cache"
    summary_of: ClassVar[str] = "a second copy of the keys, by channel,"

    kind: Literal["sparq"] = "sparq"
    rank: Count = 16

    def summary_bytes_per_token_layer(self, model: ModelShape) -> float:
        """Return G D e: the second copy of K."""
        return model.kv_bytes_per_token_layer() / 2

    def route_work(self, model: ModelShape, context: Tokens, channels: int | None) -> RouteWork:
        """Return H S r multiply-adds over r channels of every key.

        Choosing the channels is a launch, too.
        """
        tokens = np.asarray(context, dtype=np.float64)
        channel = model.kv_bytes_per_token_layer() / (2 * model.head_dim)
        return RouteWork(
            (
                Phase("gather"),
                Phase("scan", tokens * self.rank * channel, 2.0 * tokens * model.heads * self.rank),
                self.choice(context),
            )
        )

    def after_work(self, model: ModelShape, context: Tokens) -> RouteWork:
        """Return the blend with the running mean of V: one kernel over G D values and H D."""
        return RouteWork((Phase("gather", byte_count=4.0 * (model.kv_width + model.q_width)),))
