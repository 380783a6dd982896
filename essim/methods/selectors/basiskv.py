"""BasisKV: V as a low-rank latent that also routes pages."""

from __future__ import annotations

from typing import ClassVar, Literal

from essim.methods.selectors.base import Phase, RouteWork, Tokens
from essim.methods.selectors.chosen import ChosenBlocks
from essim.model.shape import Count, ModelShape


class BasisKV(ChosenBlocks):
    """BasisKV (2025): pages by a latent of V and a residual of K; K itself is fetched to attend.

    The latent's width `rank` stands for V in the cache. Its saving of communication over several
    GPUs is not modelled. Source: the abstract alone; widths are assumed.
    """

    granularity: ClassVar[str] = "page"
    summary_of: ClassVar[str] = "latents and residuals"

    kind: Literal["basiskv"] = "basiskv"
    page_tokens: Count = 16
    top_pages: Count = 128
    rank: Count = 64
    residual_rank: Count = 16

    def assumes(self) -> str:
        """Return the widths."""
        return f"latents of {self.rank}, residuals of {self.residual_rank} (assumed)"

    def summary_bytes_per_token_layer(self, model: ModelShape) -> float:
        """Return G (r_v + r_k) e / p: one row a page."""
        width = self.rank + self.residual_rank
        return model.kv_heads * width * model.activation_bytes / self.page_tokens

    def route_work(self, model: ModelShape, context: Tokens, channels: int | None) -> RouteWork:
        """Return H (S/p) (r_v + r_k) multiply-adds."""
        count, width = self.blocks(context), self.rank + self.residual_rank
        read = count * model.kv_heads * float(width * model.activation_bytes)
        return RouteWork(
            (Phase("scan", read, 2.0 * count * model.heads * width), self.choice(model, context))
        )

    def after_work(self, model: ModelShape, context: Tokens) -> RouteWork:
        """Return the decompression of the output: H r_v D weights, one kernel."""
        weights = float(model.heads * self.rank * model.head_dim * model.activation_bytes)
        return RouteWork((Phase("project", flops=weights, weight_bytes=weights),))
