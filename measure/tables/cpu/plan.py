"""A machine without a GPU: torch on one core plays the main stream, the C++ router the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from essim.methods.selectors.rocketkv import RocketKV
from essim.model.shape import PRESETS, ModelShape
from measure.harness.campaign import Bench, Place, Ready, grid, held_out
from measure.harness.hashes import table_hash

# Working sets in rotation are larger than this, so that data comes from memory as in a real step.
_COLD_BYTES = 96 << 20
_MOST_SETS = 64
DTYPE = torch.float32


@dataclass(frozen=True)
class Plan:
    """What is measured: a model, a selector, and ticks of the axes.

    `most_pages` is up to how many chosen pages routers take as long as for the selector's.
    """

    model: ModelShape
    selector: RocketKV
    rank: int
    channels: int
    threads: tuple[int, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    prompts: tuple[int, ...]
    selected: tuple[int, ...]
    most_pages: int = 0
    seed: int = 0

    @property
    def page_tokens(self) -> int:
        """Tokens a page."""
        return self.selector.page_tokens or 1

    @property
    def top_pages(self) -> int:
        """Pages chosen each step."""
        return self.selector.top_pages or 1


# What the CPU router is measured for on the GPU's host: Llama-3.1-8B, as deployed.
ROUTER_PLAN = Plan(
    model=PRESETS["llama-3.1-8b"],
    selector=RocketKV(prompt_budget=4096, page_tokens=4, top_pages=32, kv_block_tokens=4),
    rank=128,
    channels=32,
    threads=(2, 4, 8, 12, 14),
    batches=(1, 2, 4, 8, 12, 16),
    contexts=(4096, 6144, 8192, 12288),
    prompts=(),
    selected=(128,),
    most_pages=64,
)


def timed(calls: Sequence[Callable[[], object]]) -> Callable[[], float]:
    """Return a sampler that makes the next of `calls` each time: their data is in rotation."""
    state = [0]

    def sample() -> float:
        call = calls[state[0] % len(calls)]
        state[0] += 1
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    return sample


def random(*shape: int) -> Tensor:
    """Return normal noise of the main flow's dtype."""
    return torch.randn(*shape, dtype=DTYPE)


def rotation(make: Callable[[], Callable[[], object]], set_bytes: int) -> Callable[[], float]:
    """Return a sampler over as many data sets as overflow the caches."""
    sets = int(np.clip(-(-_COLD_BYTES // max(set_bytes, 1)), 2, _MOST_SETS))
    return timed([make() for _ in range(sets)])


def flow_bench(
    table: str,
    plan: Plan,
    axes: Mapping[str, Sequence[int]],
    prepare: Callable[[Place], Ready],
    holds_for: Mapping[str, Sequence[int | str]],
) -> Bench:
    """Return the bench of a table of torch operations."""
    return Bench(
        table=table,
        axes=tuple(axes),
        points=grid(**axes),
        heldout=held_out(plan.seed, axes),
        prepare=prepare,
        dtype="fp32",
        source_hash=table_hash(table, "CPU"),
        reference="torch operation on the main stream's cores, data in rotation",
        holds_for=holds_for,
    )
