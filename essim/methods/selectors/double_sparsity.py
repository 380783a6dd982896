"""Double Sparsity: score tokens by a label cache of calibrated channels; HShare shares choices."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from essim.methods.selectors.base import Phase, RouteWork, Tokens
from essim.methods.selectors.chosen import ChosenTokens, Share
from essim.model.shape import Count, ModelShape, dtype_bytes


class Labelled(ChosenTokens):
    """Tokens by label channels of each key, which lie beside the cache."""

    summary_of: ClassVar[str] = "label channels"

    kind: Any
    label_channels: Count = 16
    summary_dtype: str = "bf16"

    def summary_bytes_per_token_layer(self, model: ModelShape) -> float:
        """Return G r e."""
        return model.kv_heads * self.label_channels * float(dtype_bytes(self.summary_dtype))

    def retrieval(self, model: ModelShape, context: Tokens) -> RouteWork:
        """Return what a choice takes beyond writing the new key's labels.

        H S r multiply-adds over the labels, after the query's are gathered.
        """
        tokens = np.asarray(context, dtype=np.float64)
        flops = 2.0 * tokens * model.heads * self.label_channels
        read = tokens * self.summary_bytes_per_token_layer(model)
        return RouteWork((Phase("gather"), Phase("scan", read, flops), self.choice(context)))


class DoubleSparsity(Labelled):
    """Double Sparsity (Yang et al., 2024): tokens by r channels chosen offline.

    Labels are r channels of each key, kept beside the cache. Its released operator takes
    r = D/8 = 16 in 16 bits.
    Source: the paper (arXiv 2408.07092) and its released code, exact.
    """

    kind: Literal["double_sparsity"] = "double_sparsity"

    def route_work(self, model: ModelShape, context: Tokens, channels: int | None) -> RouteWork:
        """Return the new key's labels, and a retrieval."""
        return RouteWork((Phase("gather"), *self.retrieval(model, context).phases))


class HShare(Labelled):
    """HShare (Wu et al., 2025): Double Sparsity's choice, shared over steps, layers and heads.

    Retrieved every `per_steps` steps, in a share of layers and of heads; else the indices are there
    before the layer starts. 8 first and 32 last tokens are always attended to.
    Source: the released code, exact; the published operator tables do not say their shares, which
    are taken as those of the released benchmark (37.5 %).
    """

    kind: Literal["hshare"] = "hshare"
    sink_tokens: int = 8
    local_tokens: int = 32
    per_steps: Count = 2
    layers_frac: Share = 0.75
    heads_frac: Share = 1.0

    def retrieval_frac(self) -> float:
        """Return the share of (step, layer, head) that retrieves: steps x layers x heads."""
        return self.layers_frac * self.heads_frac / self.per_steps

    def assumes(self) -> str:
        """Return the share that retrieves."""
        return f"{self.retrieval_frac():.1%} of (step, layer, head) retrieve (published settings)"

    def route_work(self, model: ModelShape, context: Tokens, channels: int | None) -> RouteWork:
        """Return labels each step, and the mean of a retrieval over steps, layers and heads."""
        found = self.retrieval(model, context).times(self.retrieval_frac())
        return RouteWork((Phase("gather"), *found.phases))
