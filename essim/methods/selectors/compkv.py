"""CompKV: blocks by what their mean leaves out, and a correction for those left out."""

from __future__ import annotations

from typing import ClassVar, Literal

from essim.methods.selectors.base import Phase, RouteWork, Tokens
from essim.methods.selectors.chosen import ChosenBlocks
from essim.model.shape import Count, ModelShape


class CompKV(ChosenBlocks):
    """CompKV (2025): blocks whose mean would stand for them worst; means stand for the others.

    Three statistics of a block lie beside the cache: mean K, mean V, spread of K. The correction
    needs the step's own query, early routing or not, and reads them again.
    Source: the abstract alone; a minimal model.
    """

    granularity: ClassVar[str] = "block"
    summary_of: ClassVar[str] = "means and spread"

    kind: Literal["compkv"] = "compkv"
    page_tokens: Count = 16
    top_pages: Count = 128

    def summary_bytes_per_token_layer(self, model: ModelShape) -> float:
        """Return 3 G D e / p."""
        return 1.5 * model.kv_bytes_per_token_layer() / self.page_tokens

    def route_work(self, model: ModelShape, context: Tokens, channels: int | None) -> RouteWork:
        """Return 2 H (S/p) D multiply-adds over mean and spread of K."""
        count = self.blocks(context)
        read = count * model.kv_bytes_per_token_layer()
        scan = Phase("scan", read, 4.0 * count * model.q_width)
        return RouteWork((scan, self.choice(model, context)))

    def after_work(self, model: ModelShape, context: Tokens) -> RouteWork:
        """Return the correction: weights by mean K, a sum over mean V, and the merge."""
        count = self.blocks(context)
        read = count * model.kv_bytes_per_token_layer()
        return RouteWork((Phase("scan", read, 4.0 * count * model.q_width), Phase("gather")))
