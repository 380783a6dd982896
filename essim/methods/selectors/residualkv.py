"""ResidualKV: tokens as quantised residuals of a few reference tokens."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from essim.methods.selectors.base import Phase, RouteWork, Tokens, Values, share_of
from essim.methods.selectors.chosen import Chosen, Share
from essim.model.shape import Count, ModelShape


class ResidualKV(Chosen):
    """ResidualKV (2025): attends to 30 % of tokens, which it rebuilds from references.

    `stored_frac` of the KV is stored, codes and references together. How it chooses is not
    published: priced as Double Sparsity's labels.
    Source: the abstract alone, with its shares; all else is a minimal model.
    """

    granularity: ClassVar[str] = "token"
    off_cpu: ClassVar[str] = "the codes that residualkv scores lie in the KV cache"

    kind: Literal["residualkv"] = "residualkv"
    attended_frac: Share = 0.30
    stored_frac: Share = 0.145
    label_channels: Count = 16

    def assumes(self) -> str:
        """Return the share of tokens attended to."""
        return f"{self.attended_frac:.0%} of tokens are attended to (published)"

    def selected_tokens(self, context: Tokens) -> Tokens:
        """Return the share of the context that is attended to."""
        return share_of(context, self.attended_frac)

    def attended_tokens(self, context: Tokens) -> Tokens:
        """Return the same: nothing is kept besides."""
        return self.selected_tokens(context)

    def read_tokens(self, model: ModelShape, context: Tokens) -> Values:
        """Return a reference row for each token attended to."""
        return np.asarray(self.selected_tokens(context), dtype=np.float64)

    def cached_tokens(self, tokens: int) -> int:
        """Return the tokens' worth of KV that codes and references take."""
        return int(np.ceil(self.stored_frac * tokens))

    def index_bytes(self, model: ModelShape, context: Tokens) -> Tokens:
        """Return an index of 4 bytes for each token and KV head."""
        return 4 * model.kv_heads * self.selected_tokens(context)

    def route_work(self, model: ModelShape, context: Tokens, channels: int | None) -> RouteWork:
        """Return H S r multiply-adds over r channels of 8 bits, then codes to rows.

        Codes of the chosen are read, and added to reference rows as attention reads these.
        """
        chosen = np.asarray(self.selected_tokens(context), dtype=np.float64)
        row = model.kv_bytes_per_token_layer()
        rebuilt = chosen * row * self.stored_frac
        flops = 2.0 * context * model.heads * self.label_channels
        labels = context * float(model.kv_heads * self.label_channels)
        top = Phase("top", launches=3, alone_items=chosen)
        return RouteWork((Phase("scan", labels, flops), top, Phase("gather", byte_count=rebuilt)))
