"""RocketKV: evict the prompt once, then choose pages by min/max key summaries every step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, PrivateAttr, model_validator

from essim.errors import BadValueError
from essim.methods.selectors import paged
from essim.methods.selectors.base import Phase, RouteWork, Selector, Tokens, Values
from essim.model.shape import Count, ModelShape, dtype_bytes

# Stage 1 always keeps the last prompt tokens, whose attention scores the others.
OBSERVATION_WINDOW_TOKENS = 32
# Thread blocks that share a KV head in the fused router, as tuned for a small batch.
_CLUSTER = 8


@dataclass(frozen=True)
class Policy:
    """What RocketKV's policy derives from a token budget."""

    capacity_tokens: float
    page_tokens: int
    channels: int


def policy(tokens: int, budget_tokens: int, head_dim: int) -> Policy:
    """Return the settings of RocketKV's reference policy for `tokens` at a budget B.

    With compression c = tokens/B: rho = min(0.2 + 0.06 log2 c, 0.8), capacity M = tokens/c^rho,
    c2 = M/B, page = min(floor c2, ceil sqrt c2), channels = D page/c2.
    """
    compression = max(1.0, tokens / budget_tokens)
    rho = min(0.2 + 0.06 * math.log2(compression), 0.8)
    capacity_tokens = tokens / compression**rho
    c2 = capacity_tokens / budget_tokens
    page = max(1, min(math.floor(c2), math.ceil(math.sqrt(c2))))
    return Policy(capacity_tokens, page, min(head_dim, max(1, round(head_dim * page / c2))))


class RocketKV(Selector):
    """RocketKV's two stages, with pages as deployed or by the token-budget policy.

    Give either `budget_tokens` (the policy derives the rest from the workload) or `prompt_budget`,
    `page_tokens` and `top_pages`. Layer 0 attends to its whole (compacted) cache. The most recent
    page is always attended and never routed.
    """

    query_conditioned: ClassVar[bool] = True
    granularity: ClassVar[str] = "page"
    usual: ClassVar[Mapping[str, Any]] = {"prompt_budget": 4096, "page_tokens": 4, "top_pages": 32}

    kind: Literal["rocketkv"] = "rocketkv"
    budget_tokens: Count | None = None
    prompt_budget: Annotated[int, Field(ge=OBSERVATION_WINDOW_TOKENS)] | None = None
    page_tokens: Count | None = None
    top_pages: Count | None = None
    kv_block_tokens: Count | None = None
    summary_dtype: str = "fp8"
    _policy_channels: int | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _one_way(self) -> RocketKV:
        given = (self.prompt_budget, self.page_tokens, self.top_pages)
        if self.budget_tokens is None and None in given:
            raise ValueError("give budget_tokens, or prompt_budget, page_tokens and top_pages")
        if self.budget_tokens is not None and given != (None, None, None):
            message = "budget_tokens derives prompt_budget, page_tokens and top_pages"
            raise BadValueError(message, "Give one way")
        paged.check_block(self.page_tokens, self.kv_block_tokens)
        dtype_bytes(self.summary_dtype)
        return self

    def resolve(self, input_tokens: int, output_tokens: int, head_dim: int) -> RocketKV:
        """Return page settings; with `budget_tokens`, those of the published `policy`.

        Its capacity holds prompt and new tokens together, and B/2 tokens are attended to.
        """
        if self.budget_tokens is None:
            return self
        budget = self.budget_tokens
        settings = policy(input_tokens, budget, head_dim)
        page = settings.page_tokens
        prompt_budget = math.floor(settings.capacity_tokens) - output_tokens
        if prompt_budget < OBSERVATION_WINDOW_TOKENS:
            raise BadValueError(
                f"budget_tokens {budget} with {input_tokens} input and {output_tokens} output "
                f"tokens leaves a prompt budget of {prompt_budget} tokens",
                "Raise budget_tokens or shorten the output",
            )
        resolved = self.model_copy(
            update={
                "budget_tokens": None,
                "prompt_budget": prompt_budget,
                "page_tokens": page,
                "top_pages": max(1, budget // 2 // page),
                "kv_block_tokens": self.kv_block_tokens or page,
            }
        )
        resolved._policy_channels = settings.channels
        return resolved

    def channels(self, asked: int | None, head_dim: int) -> int:
        """Return the policy's channels, else those asked for, else all."""
        return min(self._policy_channels or asked or head_dim, head_dim)

    def _pages(self) -> tuple[int, int, int]:
        """Return (page_tokens, top_pages, kv_block_tokens), which `resolve` has settled."""
        if self.page_tokens is None or self.top_pages is None:
            raise ValueError("call resolve() first: the page settings depend on the workload")
        return self.page_tokens, self.top_pages, self.kv_block_tokens or self.page_tokens

    def kept_prompt_tokens(self, input_tokens: int) -> int:
        """Return min(input, prompt_budget): only the prompt is evicted."""
        self._pages()
        return min(input_tokens, self.prompt_budget or input_tokens)

    def dense_layers(self) -> int:
        """Return 1: layer 0 has no earlier layer to take an anchor from."""
        return 1

    def selected_tokens(self, context: Tokens) -> Tokens:
        """Return min(S, k p)."""
        page, top, _ = self._pages()
        return np.minimum(context, top * page)

    def attended_tokens(self, context: Tokens) -> Tokens:
        """Return min(S, k p + ((S-1) mod p) + 1): the routed pages and the tail page."""
        page, top, _ = self._pages()
        return paged.attended_tokens(context, page, top)

    def read_tokens(self, model: ModelShape, context: Tokens) -> Values:
        """Return the expected tokens read: whole KV blocks, and the tail page."""
        page, top, block = self._pages()
        return paged.read_tokens(context, page, top, block)

    def summary_bytes_per_token_layer(self, model: ModelShape) -> float:
        """Return 2 G D e / p: element-wise min and max of each page's keys."""
        page, _, _ = self._pages()
        return 2 * model.kv_width * dtype_bytes(self.summary_dtype) / page

    def route_work(self, model: ModelShape, context: Tokens, channels: int | None) -> RouteWork:
        """Return H (S/p) r multiply-adds over one summary value a page, channel and KV head.

        TensorRT-LLM's stepwise kernels ignore the filter and read min and max of every channel:
        summary update, scan, softmax, mean over the group, top-k, gather of page offsets. A block
        scans and chooses alone for a KV head, softmax in three passes, top-k in four. In a fused
        kernel up to eight blocks share it.
        """
        page, _, _ = self._pages()
        stepwise = channels is None
        values, r = (2, model.head_dim) if channels is None else (1, channels)
        count = np.ceil(context / page)
        each = values * count * r * dtype_bytes(self.summary_dtype)
        flops = 2.0 * model.heads * count * r
        if not stepwise:
            shared = {"blocks": _CLUSTER, "rows": model.kv_heads}
            scan = Phase("scan", model.kv_heads * each, flops, alone_bytes=each, **shared)
            return RouteWork((scan, Phase("top", launches=0, alone_items=count, **shared)))
        passes = 3 + model.heads // model.kv_heads + 4
        return RouteWork(
            (
                Phase("scan", model.kv_heads * each, flops, launches=2, alone_bytes=each),
                Phase("top", launches=3, alone_items=passes * count),
                Phase("gather"),
            )
        )

    def index_bytes(self, model: ModelShape, context: Tokens) -> Tokens:
        """Return G k indices of 4 bytes, and no more than there are pages."""
        page, top, _ = self._pages()
        return model.kv_heads * np.minimum(-(-context // page), top) * 4

    def table_conditions(self) -> dict[str, int]:
        """Return page, pages and block: what the measured kernels were compiled or run with."""
        page, top, block = self._pages()
        return {"page_tokens": page, "top_pages": top, "kv_block_tokens": block}
