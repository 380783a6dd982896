"""Quest: choose pages by an upper bound of their scores, from min and max of each page's keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from essim.methods.selectors import paged
from essim.methods.selectors.base import Phase, RouteWork, Selector, Tokens, Values
from essim.model.shape import Count, ModelShape, dtype_bytes


class Quest(Selector):
    """Quest (Tang et al., 2024): nothing is evicted, each step reads the best pages.

    Give either `top_pages` or `budget_tokens` (a multiple of `page_tokens`). The most recent page
    is always one of the chosen. Each query head chooses its own pages, or with `per: kv_head` all
    heads of a GQA group share them. The first `dense_layer_count` layers are dense: 1 where an
    anchor has to come from an earlier layer (EarlySelectKV), 2 in the original.
    """

    query_conditioned: ClassVar[bool] = True
    granularity: ClassVar[str] = "page"
    usual: ClassVar[Mapping[str, Any]] = {"budget_tokens": 2048, "per": "kv_head"}
    router_table: ClassVar[str] = "gpu_route_quest"
    summary_table: ClassVar[str] = "summary_build_quest"

    kind: Literal["quest"] = "quest"
    budget_tokens: Count | None = None
    top_pages: Count | None = None
    page_tokens: Count = 16
    kv_block_tokens: Count | None = None
    per: Literal["query_head", "kv_head"] = "query_head"
    dense_layer_count: Annotated[int, Field(ge=1)] = 1
    summary_dtype: str = "bf16"

    @model_validator(mode="after")
    def _one_budget(self) -> Quest:
        if (self.budget_tokens is None) == (self.top_pages is None):
            raise ValueError("give one of budget_tokens and top_pages")
        if self.budget_tokens and self.budget_tokens % self.page_tokens:
            raise ValueError(
                f"budget_tokens ({self.budget_tokens}) must be a multiple of "
                f"page_tokens ({self.page_tokens})"
            )
        paged.check_block(self.page_tokens, self.kv_block_tokens)
        dtype_bytes(self.summary_dtype)
        return self

    def resolve(self, input_tokens: int, output_tokens: int, head_dim: int) -> Quest:
        """Return this selector with its budget in pages."""
        return self.model_copy(update={"budget_tokens": None, "top_pages": self._routed + 1})

    @property
    def _routed(self) -> int:
        """Pages that routing chooses: all but the most recent one."""
        return (self.top_pages or (self.budget_tokens or 0) // self.page_tokens) - 1

    def dense_layers(self) -> int:
        """Return `dense_layer_count`."""
        return self.dense_layer_count

    def selected_tokens(self, context: Tokens) -> Tokens:
        """Return min(S, (k-1) p): the chosen pages without the most recent one."""
        return np.minimum(context, self._routed * self.page_tokens)

    def attended_tokens(self, context: Tokens) -> Tokens:
        """Return min(S, (k-1) p + ((S-1) mod p) + 1)."""
        return paged.attended_tokens(context, self.page_tokens, self._routed)

    def read_tokens(self, model: ModelShape, context: Tokens) -> Values:
        """Return tokens read for a KV head, whole KV blocks each.

        With `per: query_head` the H/G heads of a group are taken to choose different pages, the
        worst case: up to H/G times the tokens one head attends to, and never more than all.
        """
        choices = model.heads // model.kv_heads if self.per == "query_head" else 1
        block = self.kv_block_tokens or self.page_tokens
        return paged.read_tokens(context, self.page_tokens, choices * self._routed, block)

    def summary_bytes_per_token_layer(self, model: ModelShape) -> float:
        """Return 2 G D e / p: element-wise min and max of each page's keys."""
        return 2 * model.kv_width * dtype_bytes(self.summary_dtype) / self.page_tokens

    def route_work(self, model: ModelShape, context: Tokens, channels: int | None) -> RouteWork:
        """Return H (S/p) D multiply-adds over min and max of every page.

        One multiply-add a channel: the sign of q says which product is larger. Two kernels,
        estimate and top-k: the summary update is part of the KV append. A block chooses alone, for
        a query head, or for a group after the softmax of each of its heads.
        """
        count = np.ceil(context / self.page_tokens)
        passes = 1 if self.per == "query_head" else 1 + model.heads // model.kv_heads
        return RouteWork(
            (
                Phase(
                    "scan",
                    byte_count=2.0 * count * model.kv_width * dtype_bytes(self.summary_dtype),
                    flops=2.0 * count * model.q_width,
                ),
                Phase("top", alone_items=passes * count),
            )
        )

    def index_bytes(self, model: ModelShape, context: Tokens) -> Tokens:
        """Return an index of 4 bytes for each routed page of each head that chooses."""
        heads = model.heads if self.per == "query_head" else model.kv_heads
        return heads * np.minimum(-(-context // self.page_tokens), self._routed) * 4

    def table_conditions(self) -> dict[str, int]:
        """Return page, pages and block of the measured kernels."""
        return {
            "page_tokens": self.page_tokens,
            "top_pages": self._routed + 1,
            "kv_block_tokens": self.kv_block_tokens or self.page_tokens,
        }
