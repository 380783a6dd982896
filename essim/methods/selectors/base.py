"""What a KV selector is: data about which tokens it keeps, attends to and reads, and its work."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from essim.model.shape import ModelShape
from essim.text.yaml import Strict

Tokens = NDArray[np.int64]
Values = NDArray[np.float64]


@dataclass(frozen=True)
class RouteWork:
    """The least work of choosing pages in one layer, all sequences of one batch entry counted once.

    Attributes
    ----------
    read_bytes
        Summary (or key) bytes read for one sequence, per context length.
    flops
        Multiply-adds times two for one sequence, per context length.
    launches
        Kernels of a stepwise GPU router.
    """

    read_bytes: Values
    flops: Values
    launches: int = 0


SELECTORS: dict[str, type[Selector]] = {}
"""Every selector by its kind."""


class Selector(Strict):
    """Base of every KV-selection method; defining a subclass with a `kind` makes it known.

    `context` is always the number of tokens in the layer's KV cache, the current one included:
    an int64 array of any shape.
    """

    # Whether it needs a query every step: only then is there something to route early.
    query_conditioned: ClassVar[bool]
    # Whether routing scores the cached keys themselves, not summaries: it must run where they are.
    scans_keys: ClassVar[bool] = False

    # The table of its stepwise GPU router: another method's kernels say nothing about it.
    router_table: ClassVar[str] = "gpu_route_stepwise"
    # The table of the kernel that builds its page summaries after prefill.
    summary_table: ClassVar[str] = "summary_build"
    # What a page's summary is made of, in words: of the key values that it says how many there are.
    summary_of: ClassVar[str] = "min and max"

    # Subclasses narrow this to a Literal: it names the method in scenarios and results.
    kind: Any

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Make a method known by its kind.

        Raises
        ------
        TypeError
            If another method has that kind.
        """
        super().__pydantic_init_subclass__(**kwargs)
        kind = cls.model_fields["kind"].default
        if not isinstance(kind, str):
            return  # what several methods have in common
        other = SELECTORS.get(kind, cls)
        if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            raise TypeError(f"{cls.__name__} has the kind of {other.__name__}, {kind!r}")
        SELECTORS[kind] = cls

    @classmethod
    def tables(cls) -> tuple[str, str]:
        """Return the tables of its own kernels: the GPU router's, the summaries'."""
        return cls.router_table, cls.summary_table

    def resolve(self, input_tokens: int, output_tokens: int, head_dim: int) -> Selector:
        """Return this selector with everything that depends on the workload worked out.

        Raises
        ------
        ValueError
            If the workload leaves it no sensible setting.
        """
        return self

    def channels(self, asked: int | None, head_dim: int) -> int:
        """Return how many key channels scoring reads, where the routing asks for `asked`.

        All of them, unless the method has a channel filter.
        """
        return head_dim

    def kept_prompt_tokens(self, input_tokens: int) -> int:
        """Return how many prompt tokens stay in the cache after prefill."""
        return input_tokens

    def evicts(self, prompt_tokens: int) -> bool:
        """Return whether a stage after prefill keeps only part of such a prompt."""
        return self.kept_prompt_tokens(prompt_tokens) < prompt_tokens

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
    def read_tokens(self, model: ModelShape, context: Tokens) -> Values:
        """Return the expected tokens that attention reads of one KV head, whole KV blocks each.

        A token counts as one with its K and V, as a half with only one of them.
        """

    def summary_bytes_per_token_layer(self, model: ModelShape) -> float:
        """Return bytes of page summaries for each cached token in one layer."""
        return 0.0

    def route_work(self, model: ModelShape, context: Tokens, channels: int | None) -> RouteWork:
        """Return the least bytes and FLOPs of one layer's routing for one sequence.

        Parameters
        ----------
        channels
            What a channel filter leaves; None for kernels that ignore it and read whole summaries.
        """
        zero = np.zeros_like(context, dtype=np.float64)
        return RouteWork(zero, zero)

    def index_bytes(self, model: ModelShape, context: Tokens) -> Tokens:
        """Return bytes of the chosen indices of one sequence in one layer."""
        return np.zeros_like(context)

    def table_conditions(self) -> dict[str, int]:
        """Return settings a measured routing or attention table must have been taken with."""
        return {}
