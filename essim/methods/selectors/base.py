"""What a KV selector is: data about which tokens it keeps, attends to and reads, and its work."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from essim.model.shape import ModelShape
from essim.text.yaml import Strict

Tokens = NDArray[np.int64]
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Phase:
    """A part of routing that the next part waits for, in one layer and for one sequence.

    Attributes
    ----------
    kind
        What it is like: ``project`` (small matrices), ``scan`` (scores of what is cached), ``top``
        (softmax, reduction, choice) or ``gather`` (copies and offsets).
    byte_count, flops
        The least bytes read and FLOPs (multiply-adds times two), per context length.
    weight_bytes
        Weights, which all sequences of a batch share.
    launches
        Kernels of a stepwise GPU router.
    alone_bytes, alone_items
        What a thread block reads and passes over by itself, one after the other, for one of
        `rows`: bytes of a scan, values of a choice. 0 where the work is spread over the GPU.
    blocks, rows
        Thread blocks that share a row where the GPU has room for those of all rows.
    """

    kind: Literal["project", "scan", "top", "gather"]
    byte_count: Values | float = 0.0
    flops: Values | float = 0.0
    weight_bytes: float = 0.0
    launches: int = 1
    alone_bytes: Values | float = 0.0
    alone_items: Values | float = 0.0
    blocks: int = 1
    rows: int = 1


@dataclass(frozen=True)
class RouteWork:
    """The least work of choosing tokens in one layer for one sequence: its phases, in order."""

    phases: tuple[Phase, ...] = ()

    @property
    def read_bytes(self) -> Values:
        """Summary, key and label bytes read, per context length."""
        return self._sum("byte_count")

    @property
    def flops(self) -> Values:
        """Multiply-adds times two, per context length."""
        return self._sum("flops")

    @property
    def weight_bytes(self) -> float:
        """Weights that all sequences of a batch share."""
        return sum(phase.weight_bytes for phase in self.phases)

    @property
    def launches(self) -> int:
        """Kernels of a stepwise GPU router."""
        return sum(phase.launches for phase in self.phases)

    def _sum(self, name: str) -> Values:
        return np.asarray(sum(getattr(phase, name) for phase in self.phases), dtype=np.float64)


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
        return RouteWork()

    def index_bytes(self, model: ModelShape, context: Tokens) -> Tokens:
        """Return bytes of the chosen indices of one sequence in one layer."""
        return np.zeros_like(context)

    def table_conditions(self) -> dict[str, int]:
        """Return settings a measured routing or attention table must have been taken with."""
        return {}
