"""What decode runs on any machine share."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from essim.methods.routing import Early
from essim.methods.selectors import Selector
from essim.methods.selectors.dense import Dense
from essim.methods.selectors.rocketkv import RocketKV
from essim.model.shape import ModelShape
from essim.results.column import Row
from essim.simulate.timeline import chrome_trace
from measure.decode.shared.modes import check_mode, routing_of
from measure.decode.shared.prefill import prefill, random_prompt
from measure.decode.shared.weights import Weights
from measure.kernels.cpu_router.abi import Pages

Event = tuple[str, float, float, str]
"""Name, start and end in seconds, stream."""


@dataclass(frozen=True)
class Settings:
    """What a decode run is of.

    Attributes
    ----------
    selector
        RocketKV with its page settings; mode ``dense`` keeps and attends to everything.
    capacity_tokens
        Token slots of the cache.
    rank, channels
        Rank of the proxy projection; channels that scoring reads.
    threads
        Workers of the CPU router's pool, in the ``cpu-`` modes.
    mix
        Anchors of target layers 1, 2, ... for ``cpu-mix``.
    trace
        Whether to keep the times of the last step's ops (`chrome_trace`).
    capture
        Whether to keep `captured`: what each routed layer's routing was fed.
    pin
        Whether main thread and workers keep to a core each, as a measurement needs.
    """

    model: ModelShape
    selector: RocketKV
    mode: str
    batch: int
    capacity_tokens: int
    rank: int
    channels: int
    threads: int = 1
    mix: Sequence[Early] | None = None
    seed: int = 0
    trace: bool = False
    capture: bool = False
    pin: bool = True


@dataclass(frozen=True)
class RouteInput:
    """What routing of a layer was fed in the last step.

    Attributes
    ----------
    anchor
        Hidden states of an early query [b, hidden]; None where the layer's own query was used.
    query
        The query that pages were scored with [b, H, D], rounded as the router had it; None where
        the router made it of a latent and keeps it to itself.
    latent
        That latent [b, rank].
    """

    anchor: Tensor | None
    query: Tensor | None
    latent: Tensor | None = None


class Cache(Protocol):
    """What every run needs of its KV cache."""

    tokens: int
    rope: tuple[Tensor, Tensor]

    def place(self, tokens: int, evicted_tokens: int) -> None:
        """Say how many tokens are cached and how many prompt tokens were evicted."""

    def write(self, layer: int, sequence: int, keys: Tensor, values: Tensor) -> None:
        """Put a prompt's keys and values [G, tokens, D] into a sequence's first slots."""


class DecodeRun(ABC):
    """A batch of sequences of equal length that decode together; leaving it closes it."""

    weights: Weights
    cache: Cache

    def __init__(self, settings: Settings, *, gpu: bool) -> None:
        s = settings
        check_mode(s.mode, gpu=gpu)
        self.settings, self.batch, self.model = s, s.batch, s.model
        self.routing = routing_of(
            s.mode,
            s.model.layers,
            rank=s.rank,
            channels=s.channels,
            threads=s.threads,
            mix=s.mix,
        )
        self.selector: Selector = Dense() if s.mode == "dense" else s.selector
        self.pages = Pages(
            s.selector.page_tokens or 1,
            s.selector.top_pages or 1,
            s.selector.channels(s.channels, s.model.head_dim),
        )

    @property
    def tokens(self) -> int:
        """Context of every sequence: its cached tokens."""
        return self.cache.tokens

    @property
    def routed_layers(self) -> range:
        """Layers whose attention is over chosen pages."""
        layers, routed = self.model.layers, self.selector.query_conditioned
        return range(self.selector.dense_layers() if routed else layers, layers)

    def prefill(self, prompt_tokens: int) -> float:
        """Prefill seeded random prompts one after another and evict; return seconds.

        The first output token is sampled from it, so that steps may follow.
        """
        kept = self.selector.kept_prompt_tokens(prompt_tokens)
        self.cache.place(kept, prompt_tokens - kept)
        prompts = random_prompt(self.weights, self.batch, prompt_tokens)
        start, logits = time.perf_counter(), []
        for sequence, prompt in enumerate(prompts):
            cached, last = prefill(self.weights, self.selector, prompt, self.cache.rope)
            for layer, (keys, values) in enumerate(cached):
                self.cache.write(layer, sequence, keys[0], values[0])
            logits.append(last)
        self.summarise()
        self._sample(torch.cat(logits))
        return time.perf_counter() - start

    @abstractmethod
    def summarise(self) -> None:
        """Build the page summaries of every routed layer from its cache."""

    @abstractmethod
    def _sample(self, logits: Tensor) -> None:
        """Take the newest tokens from logits [b, vocab]."""

    @abstractmethod
    def close(self) -> None:
        """Give back what the run holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def traced(events: Sequence[Event], kinds: Mapping[str, str]) -> dict[str, Any]:
    """Return a step in the simulator's Chrome trace format; the pool has routes alone."""
    rows: list[Row] = [
        {
            "name": name,
            "kind": kinds.get(name, "cpu_route"),
            "stream": stream,
            "start_s": start_s,
            "end_s": end_s,
        }
        for name, start_s, end_s, stream in events
    ]
    return chrome_trace(rows, [{"source": "measured"}] * len(rows))
