"""What a KV selector is: data about which tokens it keeps, attends to and reads, and its work."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from essim.model import ModelShape
from essim.yamlfile import Strict

Tokens = NDArray[np.int64]
Values = NDArray[np.float64]


@dataclass(frozen=True)
class RouteWork:
    """The least work of choosing pages in one layer, all sequences of one batch entry counted once.

    Attributes
    ----------
    read_bytes
        Summary bytes read for one sequence, per context length.
    flops
        Multiply-adds times two for one sequence, per context length.
    """

    read_bytes: Values
    flops: Values


class Selector(Strict):
    """Base of every KV-selection method.

    `context` is always the number of tokens in the layer's KV cache, the current one included:
    an int64 array of any shape.
    """

    # Whether it needs a query every step: only then is there something to route early.
    query_conditioned: ClassVar[bool]

    # Subclasses narrow this to a Literal: it names the method in scenarios and results.
    kind: Any

    def resolve(self, input_tokens: int, output_tokens: int, head_dim: int) -> Selector:
        """Return this selector with everything that depends on the workload worked out.

        Raises
        ------
        ValueError
            If the workload leaves it no sensible setting.
        """
        return self

    @property
    def channels(self) -> int | None:
        """Scoring channels the method fixes itself; None leaves it to the routing."""
        return None

    def kept_prompt_tokens(self, input_tokens: int) -> int:
        """Return how many prompt tokens stay in the cache after prefill."""
        return input_tokens

    def dense_layers(self) -> int:
        """Return how many first layers attend to their whole cache."""
        return 0

    @abstractmethod
    def selected_tokens(self, context: Tokens) -> Tokens:
        """Return the tokens that routing picks, without those always kept."""

    @abstractmethod
    def attended_tokens(self, context: Tokens) -> Tokens:
        """Return the tokens a routed layer attends to."""

    @abstractmethod
    def read_tokens(self, context: Tokens) -> Values:
        """Return the expected tokens read from the KV cache: whole KV blocks are read."""

    def summary_bytes_per_token_layer(self, model: ModelShape) -> float:
        """Return bytes of page summaries for each cached token in one layer."""
        return 0.0

    def route_work(self, model: ModelShape, context: Tokens, channels: int) -> RouteWork:
        """Return the least bytes and FLOPs of one layer's routing for one sequence."""
        zero = np.zeros_like(context, dtype=np.float64)
        return RouteWork(zero, zero)

    def index_bytes(self, model: ModelShape) -> int:
        """Return bytes of the chosen indices of one sequence in one layer."""
        return 0

    def table_conditions(self) -> dict[str, int]:
        """Return settings a measured routing or attention table must have been taken with."""
        return {}
