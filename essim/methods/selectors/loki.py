"""Loki: score tokens by the leading principal components of their keys."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from essim.methods.selectors.base import Phase, RouteWork, Tokens
from essim.methods.selectors.chosen import ChosenTokens
from essim.model.shape import Count, ModelShape


class Loki(ChosenTokens):
    """Loki (Singhania et al., 2024): tokens by r principal components of rotated keys.

    Keys are cached in their PCA basis, which attention reads as well: no memory is added. Query and
    key are rotated each step, H D^2 multiply-adds each; the scan reads r leading components.
    Source: the paper (arXiv 2406.02542) and its released code, exact but for the top-k, which is a
    full sort there and priced as a top-k here.
    """

    off_cpu: ClassVar[str] = "the keys that loki scores lie in the KV cache"

    kind: Literal["loki"] = "loki"
    rank: Count = 16

    def route_work(self, model: ModelShape, context: Tokens, channels: int | None) -> RouteWork:
        """Return 2 H D^2 + H S r multiply-adds; r components of 2 bytes of each key are read.

        A row of r components is read in whole sectors of 32 bytes.
        """
        tokens = np.asarray(context, dtype=np.float64)
        square = model.heads * model.head_dim**2
        basis = model.kv_heads * model.head_dim**2 * model.activation_bytes
        row = max(32.0, self.rank * model.kv_bytes_per_token_layer() / (2 * model.kv_width))
        return RouteWork(
            (
                Phase("project", flops=4.0 * square, weight_bytes=float(basis), launches=2),
                Phase(
                    "scan", tokens * model.kv_heads * row, 2.0 * tokens * model.heads * self.rank
                ),
                self.choice(context),
            )
        )
