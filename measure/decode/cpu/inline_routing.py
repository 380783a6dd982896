"""Routing on the main stream: page summaries and their scan as torch operations."""

from __future__ import annotations

import torch
from torch import Tensor

from measure.kernels.cpu_router.abi import Pages
from measure.kernels.flow import cpu as flow


class InlineRouting:
    """Summaries of every routed layer, [b, G, pages, 2, D] in e5m2."""

    def __init__(self, capacity_tokens: int, pages: Pages) -> None:
        self.capacity_tokens, self.settings = capacity_tokens, pages
        self._summaries: dict[int, Tensor] = {}

    def fill(self, layer: int, keys: Tensor) -> None:
        """Build a layer's summaries from its cache [b, G, tokens, D], an open page included."""
        batch, kv_heads, tokens, dim = keys.shape
        page = self.settings.page_tokens
        room = (batch, kv_heads, -(-self.capacity_tokens // page), 2, dim)
        summary = torch.zeros(room, dtype=torch.float32).to(flow.SUMMARY_DTYPE)
        whole = tokens // page
        summary[:, :, :whole] = flow.build_summary(keys, page)
        for token in range(whole * page, tokens):
            flow.update_summary(summary, keys[:, :, token], token, page)
        self._summaries[layer] = summary

    def pages(self, layer: int, query: Tensor, key: Tensor, tokens: int) -> Tensor:
        """Take in the newest key [b, G, D], then choose pages [b, G, k] for queries [b, H, D]."""
        summary = self._summaries[layer]
        own = self.settings
        flow.update_summary(summary, key, tokens - 1, own.page_tokens)
        pages = (tokens - 1) // own.page_tokens
        return flow.route(query, summary, pages, own.top, own.channels)
