"""Exact top-k: score every cached key, attend to the best tokens. The oracle of token selection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from essim.methods.selectors.base import Phase, RouteWork, Selector, Tokens, Values
from essim.model.shape import Count, ModelShape


class ExactTopK(Selector):
    """Attend to the `top_tokens` tokens of highest attention score, out of all cached ones.

    Selection is shared in a GQA group (mean of the heads' softmax). Since every key is read to
    score it, only V traffic is saved. Layer 0 is dense: it has no earlier layer for an anchor.
    """

    query_conditioned: ClassVar[bool] = True
    granularity: ClassVar[str] = "token"
    usual: ClassVar[Mapping[str, Any]] = {"top_tokens": 2048}
    scans_keys: ClassVar[bool] = True
    off_cpu: ClassVar[str] = (
        "exact_topk scores every cached key, and the CPU does not have the keys"
    )
    router_table: ClassVar[str] = "gpu_route_exact_topk"

    kind: Literal["exact_topk"] = "exact_topk"
    top_tokens: Count

    def dense_layers(self) -> int:
        """Return 1: layer 0 has no earlier layer to take an anchor from."""
        return 1

    def selected_tokens(self, context: Tokens) -> Tokens:
        """Return min(S, B)."""
        return np.minimum(context, self.top_tokens)

    def attended_tokens(self, context: Tokens) -> Tokens:
        """Return min(S, B)."""
        return np.minimum(context, self.top_tokens)

    def read_tokens(self, model: ModelShape, context: Tokens) -> Values:
        """Return half of min(S, B): V of the chosen, whose keys the scan has read and scored."""
        return np.minimum(context, self.top_tokens) / 2.0

    def route_work(self, model: ModelShape, context: Tokens, channels: int | None) -> RouteWork:
        """Return H S D multiply-adds over every key of the cache.

        Four kernels: scores; then the mean over the group, a compaction and the rest of the
        choice, whose last looks at no more than about the chosen.
        """
        tokens = np.asarray(context, dtype=np.float64)
        return RouteWork(
            (
                Phase(
                    "scan",
                    byte_count=tokens * model.kv_bytes_per_token_layer() / 2,
                    flops=2.0 * tokens * model.q_width,
                ),
                Phase("top", launches=3, alone_items=np.minimum(tokens, self.top_tokens)),
            )
        )

    def index_bytes(self, model: ModelShape, context: Tokens) -> Tokens:
        """Return G min(S, B) indices of 4 bytes."""
        return model.kv_heads * np.minimum(context, self.top_tokens) * 4
