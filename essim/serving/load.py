"""What the engines are given and what they return: requests, a deployment's limits, an outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]

# Stands for blocks that nothing limits.
UNLIMITED = 1 << 60
# A chunk of a prompt: its tokens, those before it, and the prompt's own tokens if it is the last.
Chunk = tuple[int, int, int]
Balancer = Literal["round_robin", "least_tokens"]


@dataclass(frozen=True)
class Request:
    """One request: when it arrives, its prompt, and how many tokens it will have made."""

    arrival_ps: int
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Load:
    """Requests in order of arrival.

    Attributes
    ----------
    users
        Of a closed loop, 0 of an open one. Each sends the next request of the list when its last
        one has ended and `think_ps` have passed; arrival times are not used then.
    prefilled
        Prompts were prefilled elsewhere, first token included: a request is decoded at once.
    """

    requests: Sequence[Request]
    users: int = 0
    think_ps: int = 0
    prefilled: bool = False


@dataclass(frozen=True)
class Pool:
    """KV blocks of one replica.

    Attributes
    ----------
    host_blocks
        Blocks whose page summaries the host has room for.
    kept
        Prompt tokens that stay after prefill, of so many: fewer where a selector evicts.
    in_place
        Whether what is kept is compacted in place; else it is copied beside the whole prompt.
    """

    block_tokens: int
    gpu_blocks: int
    host_blocks: int = UNLIMITED
    kept: Callable[[int], int] = lambda tokens: tokens
    in_place: bool = False

    def blocks(self, tokens: int) -> int:
        """Return whole blocks for so many tokens."""
        return -(-tokens // self.block_tokens)

    def prefill_blocks(self, prompt: int, made: int) -> int:
        """Return the most that prefilling a prompt, and tokens made before, holds at once.

        Only the prompt is evicted: tokens that were made and are computed again stay.
        """
        whole, kept = prompt + made, self.kept(prompt)
        held = self.blocks(whole)
        if kept < prompt and not self.in_place:
            held += self.blocks(kept + made)
        return held

    def fits(self, prompt: int, output: int) -> bool:
        """Return whether a request can always be served alone, even if it is computed again."""
        made = output - 1
        most = self.blocks(self.kept(prompt) + made)
        return self.prefill_blocks(prompt, made) <= self.gpu_blocks and most <= self.host_blocks


@dataclass(frozen=True)
class Limits:
    """How one replica batches.

    Attributes
    ----------
    max_batch
        Sequences that run at once, those being prefilled included.
    token_budget
        Tokens of one iteration: a token of each decoding sequence, the rest for chunks of prompts.
    max_prefills
        Prompts that are prefilled at once.
    prefill_first
        Decoding waits while there are chunks, instead of sharing steps with them.
    """

    pool: Pool
    max_batch: int
    token_budget: int
    max_prefills: int = 1
    prefill_first: bool = False


@dataclass(frozen=True)
class Fleet:
    """Equal replicas behind a balancer."""

    limits: Limits
    replicas: int = 1
    balancer: Balancer = "round_robin"


class Prices(Protocol):
    """What steps cost, in whole picoseconds: all that the engines know of model and machine."""

    def decode_line(self, batch: int, mean: int, longest: int) -> tuple[int, int, int]:
        """Return a decode step's time, how it grows a step, and for how many steps so.

        `mean` and `longest` are tokens in the caches, those of this step included; the mean is
        rounded down. Both grow by one a step.
        """
        ...

    def chunk_step(self, batch: int, mean: int, longest: int, chunks: Sequence[Chunk]) -> int:
        """Return the time of a step with chunks; without decoding sequences `batch` is 0."""
        ...


@dataclass
class Record:
    """What became of a request; times are None until they have come."""

    request: Request
    replica: int
    arrival_ps: int
    admitted_ps: int = -1
    first_ps: int = -1
    finish_ps: int = -1
    preemptions: int = 0


@dataclass
class Sample:
    """A replica right after it decided at `time_ps` on steps up to the next sample.

    `batch`, `mean` and `longest` are those of the first of `steps` alike, 0 where nothing decodes.
    """

    time_ps: int
    replica: int
    waiting: int
    decoding: int
    prefilling: int
    used_blocks: int
    reserved_blocks: int
    batch: int = 0
    mean: int = 0
    longest: int = 0
    chunk_tokens: int = 0
    steps: int = 0


@dataclass
class Outcome:
    """What a simulation returns.

    Attributes
    ----------
    records
        One for each request, in order of arrival.
    token_ps
        When each token of a request came, first to last; int64, in the order of `records`.
    samples
        Queue and memory over time.
    busy_ps, steps
        Time in steps and their number, a replica each.
    end_ps
        When the last request ended.
    """

    records: list[Record] = field(default_factory=list)
    token_ps: Callable[[int], Times] = lambda i: np.empty(0, dtype=np.int64)
    samples: list[Sample] = field(default_factory=list)
    busy_ps: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    end_ps: int = 0
