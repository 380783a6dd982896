"""What a KV selector is: data about which tokens it keeps, attends to and reads, and its work."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from essim.model.shape import ModelShape
from essim.text.yaml import Strict

Tokens = NDArray[np.int64]
Values = NDArray[np.float64]
Amount = NDArray[np.floating[Any]] | float


def share_of(context: Tokens, share: float) -> Tokens:
    """Return a share of the context, one token at least."""
    whole: Tokens = np.ceil(share * context).astype(np.int64)
    return np.maximum(1, whole)


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
    byte_count: Amount = 0.0
    flops: Amount = 0.0
    weight_bytes: float = 0.0
    launches: float = 1
    alone_bytes: Amount = 0.0
    alone_items: Amount = 0.0
    blocks: int = 1
    rows: int = 1


@dataclass(frozen=True)
class RouteWork:
    """The least work of choosing tokens in one layer for one sequence.

    Attributes
    ----------
    phases
        What the GPU (or the CPU) does, in order.
    device_s, link_s
        Seconds of another device that chooses, for a sequence, and of the way there and back, for a
        batch.
    """

    phases: tuple[Phase, ...] = ()
    device_s: Amount = 0.0
    link_s: float = 0.0

    def times(self, share: float) -> RouteWork:
        """Return the work of a step in the mean where it is done in a share of steps only."""
        parts = ("byte_count", "flops", "weight_bytes", "launches", "alone_bytes", "alone_items")
        return RouteWork(
            tuple(replace(p, **{n: share * getattr(p, n) for n in parts}) for p in self.phases)
        )

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
    def launches(self) -> float:
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
    # Why a method that needs none cannot be routed early; empty for dense attention.
    unrouted: ClassVar[str] = ""
    # Whether it selects in prefill alone, and decodes as dense attention does.
    prefill_only: ClassVar[bool] = False
    # What an early query loses it besides a choice that is a little worse.
    early_loses: ClassVar[str] = ""
    # Whether routing reads all cached keys, so that attention needs no more than V of the chosen.
    scans_keys: ClassVar[bool] = False
    # Why its router cannot run on the CPU; empty where it can.
    off_cpu: ClassVar[str] = ""
    # What it chooses, and what it needs to choose, in words.
    granularity: ClassVar[str] = "page"
    needs: ClassVar[str] = "query"
    # Settings that must be given, as they usually are: for `essim list selectors` and the tests.
    usual: ClassVar[Mapping[str, Any]] = {}

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

    @classmethod
    def route_class(cls) -> Literal["A", "B", "C", "D"]:
        """Return what early routing means to it.

        A: needs a query each step and takes an earlier one. B: it does, and loses something.
        C: routes nothing in a step. D: selects in prefill alone.
        """
        if cls.prefill_only:
            return "D"
        if not cls.query_conditioned:
            return "C"
        return "B" if cls.early_loses else "A"

    @property
    def selects(self) -> bool:
        """Whether a step may attend to less than its context."""
        return self.query_conditioned or (bool(self.unrouted) and not self.prefill_only)

    @classmethod
    def has(cls, method: str) -> bool:
        """Return whether it has a part that most methods have not, such as ``after_work``."""
        return getattr(cls, method) is not getattr(Selector, method)

    def assumes(self) -> str:
        """Return the rate of a method whose work depends on the data, and where it comes from."""
        return ""

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

    def cached_tokens(self, tokens: int) -> int:
        """Return how many tokens of so many have their KV on the GPU."""
        return tokens

    def offloaded_bytes_per_token_layer(self, model: ModelShape) -> float:
        """Return bytes of KV that the host holds of each token in one layer."""
        return 0.0

    def fetched_bytes(self, model: ModelShape, context: Tokens) -> Values:
        """Return bytes of KV that a step fetches from the host, of one sequence in one layer."""
        return np.zeros_like(context, dtype=np.float64)

    def after_work(self, model: ModelShape, context: Tokens) -> RouteWork:
        """Return what follows attention in a layer, for one sequence: it is never off its path."""
        return RouteWork()

    def prefill_density(self, tokens: int) -> float:
        """Return the share of a prompt's causal attention that is computed."""
        return 1.0

    def prefill_work(self, model: ModelShape, tokens: int) -> RouteWork:
        """Return what choosing takes in a layer's prefill of so many tokens."""
        return RouteWork()

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
