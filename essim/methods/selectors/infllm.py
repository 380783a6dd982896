"""InfLLM: blocks with a few representative keys; its KV may lie on the host."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from essim.methods.selectors.base import Phase, RouteWork, Tokens, Values
from essim.methods.selectors.chosen import ChosenBlocks, Share
from essim.model.shape import Count, ModelShape


class InfLLM(ChosenBlocks):
    """InfLLM (Xiao et al., 2024): blocks of 128 by one representative key; KV on the host.

    The first 128 and last 4096 tokens are always attended to. A block that the GPU's cache does not
    hold is fetched from the host, `missed_frac` of those chosen: nothing published says how many.
    Source: the released code, exact for sizes and order; the rate of misses is assumed.
    """

    granularity: ClassVar[str] = "block of 128"
    summary_of: ClassVar[str] = "representatives of all heads,"

    kind: Literal["infllm"] = "infllm"
    page_tokens: Count = 128
    top_pages: Count = 16
    sink_tokens: int = 128
    local_tokens: int = 4096
    cached_pages: Count = 32
    missed_frac: Share = 0.1

    def assumes(self) -> str:
        """Return the rate of misses."""
        return f"{self.missed_frac:.1%} of chosen blocks are fetched from the host (assumed)"

    def cached_tokens(self, tokens: int) -> int:
        """Return the first and last tokens and the blocks that the GPU holds."""
        held = self.cached_pages * self.page_tokens + self.sink_tokens + self.local_tokens
        return min(tokens, held)

    def offloaded_bytes_per_token_layer(self, model: ModelShape) -> float:
        """Return the whole KV: it lies in pinned memory."""
        return float(model.kv_bytes_per_token_layer())

    def fetched_bytes(self, model: ModelShape, context: Tokens) -> Values:
        """Return the KV of the chosen blocks that are missed."""
        tokens = self.missed_frac * self.selected_tokens(context)
        return np.asarray(tokens * model.kv_bytes_per_token_layer(), dtype=np.float64)

    def summary_bytes_per_token_layer(self, model: ModelShape) -> float:
        """Return H D e / 128: a representative of every head."""
        return model.q_width * model.activation_bytes / self.page_tokens

    def route_work(self, model: ModelShape, context: Tokens, channels: int | None) -> RouteWork:
        """Return (S/128) H D multiply-adds over one representative a block and head."""
        count = self.blocks(context)
        read = count * model.q_width * model.activation_bytes
        return RouteWork(
            (
                Phase("scan", read, 2.0 * count * model.q_width),
                self.choice(model, context),
                Phase("gather"),
            )
        )


class InfLLMv2(ChosenBlocks):
    """InfLLM-V2 (OpenBMB, 2025): blocks of 64 by two levels of mean keys.

    One block at the start, a window of 2048 tokens and 64 blocks between. Mean keys of 32 tokens
    every 16 and of 128 every 64. Up to `dense_below_tokens` attention is dense.
    Source: the released kernels' description, exact; below the limit the row is not dense but
    attends to all.
    """

    granularity: ClassVar[str] = "block of 64"
    summary_of: ClassVar[str] = "means at two levels,"

    kind: Literal["infllm_v2"] = "infllm_v2"
    page_tokens: Count = 64
    top_pages: Count = 64
    sink_tokens: int = 64
    local_tokens: int = 2048
    dense_below_tokens: Count = 8192

    def attended_tokens(self, context: Tokens) -> Tokens:
        """Return all up to the limit, beyond it blocks and window."""
        return np.where(
            context <= self.dense_below_tokens, context, super().attended_tokens(context)
        )

    def summary_bytes_per_token_layer(self, model: ModelShape) -> float:
        """Return G D e (1/16 + 1/64)."""
        return model.kv_bytes_per_token_layer() / 2 * (1 / 16 + 1 / 64)

    def route_work(self, model: ModelShape, context: Tokens, channels: int | None) -> RouteWork:
        """Return H (S/16 + S/64) D multiply-adds; scores and softmax are one kernel.

        Then max-pooling to blocks and top-k.
        """
        rows = context * (1 / 16 + 1 / 64)
        return RouteWork(
            (
                Phase(
                    "scan",
                    context * self.summary_bytes_per_token_layer(model),
                    2.0 * rows * model.q_width,
                ),
                Phase("top", alone_items=context / 16),
                Phase("top", alone_items=self.blocks(context)),
            )
        )
