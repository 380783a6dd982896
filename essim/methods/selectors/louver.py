"""Louver: all tokens whose score reaches a threshold, by an index of half-spaces."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from essim.methods.selectors.base import Phase, RouteWork, Tokens, Values, share_of
from essim.methods.selectors.chosen import Chosen, Share, Some
from essim.model.shape import Count, ModelShape


class Louver(Chosen):
    """Louver (2025): no token above the threshold is missed, by bounds of parent nodes.

    Four keys share a parent with centre and radius in each of 4 subspaces. `live_frac` of tokens
    pass: 15 to 20 % with a fresh index. The last 256 tokens are always attended to.
    Source: the released code and its reports, exact for the index; the rate is published.
    """

    early_loses: ClassVar[str] = "its guarantee: an early query's scores bound no token's own"
    granularity: ClassVar[str] = "token"
    summary_of: ClassVar[str] = "centres and assignments"

    kind: Literal["louver"] = "louver"
    live_frac: Share = 0.175
    branching: Count = 4
    assign_bytes: Count = 8
    local_tokens: Some = 256

    def assumes(self) -> str:
        """Return the share of tokens that pass."""
        return f"{self.live_frac:.1%} of tokens pass the threshold (published: 15 to 20 %)"

    def selected_tokens(self, context: Tokens) -> Tokens:
        """Return the tokens that pass."""
        return share_of(context, self.live_frac)

    def attended_tokens(self, context: Tokens) -> Tokens:
        """Return the tokens that pass and the last ones."""
        return np.minimum(context, self.selected_tokens(context) + self.local_tokens)

    def read_tokens(self, model: ModelShape, context: Tokens) -> Values:
        """Return what is attended to."""
        return np.asarray(self.attended_tokens(context), dtype=np.float64)

    def index_bytes(self, model: ModelShape, context: Tokens) -> Tokens:
        """Return an index of 4 bytes for each token that passes and each KV head."""
        return 4 * model.kv_heads * self.selected_tokens(context)

    def summary_bytes_per_token_layer(self, model: ModelShape) -> float:
        """Return G (D e / 4 + 8): centres, and assignments in four subspaces."""
        centres = model.kv_bytes_per_token_layer() / 2 / self.branching
        return centres + model.kv_heads * self.assign_bytes

    def route_work(self, model: ModelShape, context: Tokens, channels: int | None) -> RouteWork:
        """Return H (S/4) D multiply-adds over centres, and the assignments: one fused kernel."""
        tokens = np.asarray(context, dtype=np.float64)
        read = tokens * self.summary_bytes_per_token_layer(model)
        return RouteWork((Phase("scan", read, 2.0 * tokens / self.branching * model.q_width),))
