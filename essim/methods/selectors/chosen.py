"""What routers of single tokens and of blocks have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from essim.methods.selectors.base import Phase, Selector, Tokens, Values
from essim.model.shape import Count, ModelShape

Some = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class Chosen(Selector):
    """Attends to what all query heads of a KV head choose together, step by step.

    Layer 0 is dense: it has no earlier layer for an anchor.
    """

    query_conditioned: ClassVar[bool] = True

    kind: Any
    dense_layer_count: Annotated[int, Field(ge=1)] = 1

    def dense_layers(self) -> int:
        """Return `dense_layer_count`."""
        return self.dense_layer_count

    def read_tokens(self, model: ModelShape, context: Tokens) -> Values:
        """Return what is attended to."""
        return np.asarray(self.attended_tokens(context), dtype=np.float64)


class ChosenUnits(Chosen, ABC):
    """Attends to the first tokens, the last ones, and a number of units between them."""

    kind: Any
    sink_tokens: Some = 0
    local_tokens: Some = 0

    def unit_tokens(self) -> int:
        """Return tokens of a unit that is chosen or not."""
        return 1

    @abstractmethod
    def units(self) -> int:
        """Return how many units are chosen."""

    def selected_tokens(self, context: Tokens) -> Tokens:
        """Return the tokens of the chosen units, and no more than there are."""
        return np.minimum(context, self.units() * self.unit_tokens())

    def attended_tokens(self, context: Tokens) -> Tokens:
        """Return the chosen units, the first and the last tokens, and no more than there are."""
        always = self.sink_tokens + self.local_tokens
        return np.minimum(context, self.units() * self.unit_tokens() + always)

    def index_bytes(self, model: ModelShape, context: Tokens) -> Tokens:
        """Return an index of 4 bytes for each chosen unit of each KV head."""
        there = -(-context // self.unit_tokens())
        return 4 * model.kv_heads * np.minimum(there, self.units())


class ChosenTokens(ChosenUnits):
    """Chooses single tokens."""

    granularity: ClassVar[str] = "token"

    kind: Any
    top_tokens: Count = 2048

    def units(self) -> int:
        """Return `top_tokens`."""
        return self.top_tokens

    def choice(self, context: Tokens) -> Phase:
        """Return softmax and top-k over all tokens, split over the GPU as exact top-k's is."""
        return Phase("top", launches=3, alone_items=np.minimum(context, self.top_tokens) * 1.0)


class ChosenBlocks(ChosenUnits):
    """Chooses blocks of tokens."""

    granularity: ClassVar[str] = "block"

    kind: Any
    page_tokens: Count
    top_pages: Count

    def unit_tokens(self) -> int:
        """Return `page_tokens`."""
        return self.page_tokens

    def units(self) -> int:
        """Return `top_pages`."""
        return self.top_pages

    def blocks(self, context: Tokens) -> Values:
        """Return how many blocks there are, the open one included."""
        return np.ceil(context / self.page_tokens)

    def choice(self, model: ModelShape, context: Tokens) -> Phase:
        """Return softmax of each head of a group and top-k of its mean, one thread block each."""
        passes = 1 + model.heads // model.kv_heads
        return Phase("top", alone_items=passes * self.blocks(context))

    def table_conditions(self) -> dict[str, int]:
        """Return block and blocks of a measured kernel."""
        return {
            "page_tokens": self.page_tokens,
            "top_pages": self.top_pages,
            "kv_block_tokens": self.page_tokens,
        }
