"""What an op is priced for, and what it has to do: its table, its point there, its floor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from essim.methods.routing import Routing
from essim.methods.selectors import Phase, Selector
from essim.model.shape import ModelShape
from essim.text.yaml import Strict

Values = NDArray[np.number[Any]]


def kernel_dtype(dtype: str) -> str:
    """Return the dtype whose kernels take as long: of equal bytes and equal peak."""
    return "bf16" if dtype == "fp16" else dtype


@dataclass(frozen=True)
class Case:
    """What is priced: a model with a selector (resolved for its workload) and a routing.

    `table_channels` are those a table was measured with, whatever selector and routing ask for.
    """

    model: ModelShape
    selector: Selector
    routing: Routing
    table_channels: int | None = None

    @property
    def channels(self) -> int:
        """Channels the scoring reads."""
        return self.table_channels or self.selector.channels(
            self.routing.channels, self.model.head_dim
        )

    @property
    def projects(self) -> bool:
        """Whether a proxy query has to be made."""
        return self.routing.early

    @property
    def down_on_gpu(self) -> bool:
        """Whether the main stream computes the projection's first factor before it publishes."""
        low_rank = self.routing.projection_rank is not None
        return self.projects and low_rank and self.routing.down_projection == "gpu"

    def read_tokens(self, context: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the tokens that attention of a routed layer reads of one KV head."""
        read = self.selector.read_tokens(self.model, context)
        # A scan of the keys scored the proxy query: the real one reads the chosen keys again.
        return 2.0 * read if self.selector.scans_keys and self.projects else read

    def mean_read_tokens(self, context: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the mean of KV tokens that attention and a scan of keys read in a layer.

        It is over the layers with full attention, 0 where there is none.
        """
        full = self.model.full_layers()
        dense = sum(layer < self.selector.dense_layers() for layer in full)
        routed = self.read_tokens(context) + context / 2.0 * self.selector.scans_keys
        mean: NDArray[np.float64] = (dense * context + (len(full) - dense) * routed) / max(
            1, len(full)
        )
        return mean

    def settings(self) -> dict[str, object]:
        """Return every setting a table may be tied to by its ``holds_for``."""
        rank: object = self.routing.projection_rank or "full"
        down = self.routing.down_projection if self.routing.projection_rank else "none"
        return {
            "per": "kv_head",  # what chooses tokens, where a selector leaves no choice
            **self.model.model_dump(),
            **self.selector.model_dump(),
            **self.selector.table_conditions(),
            "weight_dtype": kernel_dtype(self.model.weight_dtype),
            "kv_dtype": kernel_dtype(self.model.kv_dtype),
            "selector": self.selector.kind,
            "channels": self.channels,
            "kernel": self.routing.kernel,
            "anchor": self.routing.anchor,
            "projection_rank": rank if self.projects else 0,
            "down_projection": down if self.projects else "none",
        }

    def measured_with(self, holds_for: Mapping[str, Sequence[object]]) -> Case:
        """Return this case with every setting that a table names at what it was measured with."""
        own = self.settings()
        fixed = {
            key: own[key] if own.get(key) in values else _nearest(own.get(key), values)
            for key, values in holds_for.items()
        }
        model = self.model.model_copy(update=_named(fixed, ModelShape))
        selector = self.selector.model_copy(update=_named(fixed, type(self.selector)))
        routing = self.routing.model_copy(update=_named(fixed, Routing))
        channels = fixed.get("channels")
        return Case(model, selector, routing, channels if isinstance(channels, int) else None)


def _nearest(own: object, values: Sequence[object]) -> object:
    """Return the largest number that is not above `own`, else the smallest, else the last value."""
    numbers = sorted(value for value in values if isinstance(value, int) and value)
    if not isinstance(own, int) or not numbers:
        return values[-1]
    return max((value for value in numbers if value <= own), default=numbers[0])


def _named(values: Mapping[str, object], kind: type[Strict]) -> dict[str, object]:
    """Return the entries that are fields of `kind`, with what settings call full or none left."""
    words = ("full", "none", 0)
    return {k: v for k, v in values.items() if k in kind.model_fields and v not in words}


@dataclass(frozen=True)
class Point:
    """Where on the axes a price is wanted.

    Attributes
    ----------
    batch
        Sequences in the batch; in decode one number or many, which broadcast with the contexts.
    rows
        Rows of the GEMMs: the batch in decode, the prompt in prefill.
    context_tokens
        Tokens in the KV cache, the current one included; int64, one per lane.
    evicted_tokens
        Tokens of the prompt that were evicted: those a sliding window still counts.
    """

    batch: Any
    rows: Any
    context_tokens: NDArray[np.int64]
    evicted_tokens: int = 0


Device = Literal["gpu", "cpu", "d2h", "h2d", "constant"]


@dataclass(frozen=True)
class Work:
    """One op's table, its point there, and its floor.

    `flops` and `byte_count` may be one number or one per lane. `dtype` is what the FLOPs run in.
    `gemm` are outputs and inputs of one matrix that is all of the op, or nearly.
    `units` is what a kernel sees along an axis: a batch of so many KV heads a sequence is as much
    work, spread alike, as twice the batch of half of them.
    `family` is what ops have in common whose prices are off alike.
    `stand_in_tokens`: where this op's own table does not reach, it is priced as dense attention
    over so many tokens.
    `phases`: where nothing was measured of it, it is priced by these, as like kernels are.
    `other_s` are seconds of a device that no profile has, as published.
    `share`: this op is so much of another kind's.
    """

    table: str
    axes: Mapping[str, float | Values] = field(default_factory=dict)
    keys: Mapping[str, object] = field(default_factory=dict)
    byte_count: float | Values = 0.0
    flops: float | Values = 0.0
    launches: float = 1
    device: Device = "gpu"
    dtype: str = "bf16"
    gemm: tuple[int, int] | None = None
    units: tuple[str, float] | None = None
    family: str = "other"
    stand_in_tokens: Values | None = None
    phases: tuple[Phase, ...] = ()
    other_s: float | NDArray[np.float64] = 0.0
    share: tuple[str, float] | None = None

    def in_units_of(self, other: Work) -> Work:
        """Return this work where a kernel sees as many units along the axis as in another."""
        if not self.units or not other.units:
            return self
        axis, share = other.units[0], other.units[1] / self.units[1]
        axes = {**self.axes, axis: np.asarray(self.axes[axis]) * share}
        moved, flops = self.byte_count * share, self.flops * share
        return replace(self, axes=axes, byte_count=moved, flops=flops)


Pricer = Callable[[Case, Point], Work]


@dataclass(frozen=True)
class Kind:
    """What there is to know of an op kind: its work, and what it is for.

    Attributes
    ----------
    part
        ``routing`` is what would take no time if routing and hand-over cost nothing, ``attention``
        what would if nothing were attended to; ``flow`` is all else.
    tables
        The tables that may price it, where that is not one of its own name. Those that a selector
        names are known of it.
    constant
        Whether a profile may give its time as one number instead.
    """

    work: Pricer
    part: Literal["flow", "attention", "routing"] = "flow"
    tables: tuple[str, ...] | None = None
    constant: bool = False
