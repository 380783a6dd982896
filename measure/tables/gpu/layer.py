"""What an op adds to a decode layer: the price of everything that is short.

A short kernel waits for the tail of the GEMM before it and delays the start of the next one, and
what it reads is cold because gigabytes of weights went by since the last layer. In a chain of its
own it would look a third cheaper than it is. So it is priced by difference: eight layers of the
main flow in one graph, with the op and without it. The four GEMMs, RoPE, activation and norms are
added one after the other, then attention, then a router before it, so that their prices add up to
the layer.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np
import torch

from measure.harness.gpu import Launch, capture, replay_s
from measure.kernels.chain import Chain, Shape
from measure.kernels.flow import gpu as flow

LAYERS = 8
# Ops of the layer around an inserted one; what is left out has a price of its own.
GEMMS = ("gemm_qkv", "gemm_o", "gemm_gate_up", "gemm_down")
SMALL = ("rope", "act", "norm")
ATTENTION = ("attn_dense", "attn_sparse")
LAYER = (*GEMMS, *SMALL)
# Names of the ops before which an inserted one stands.
SLOTS = {"attention": ("gemm_o",), "route": ATTENTION, "anchor": ("gemm_gate_up",)}

Sampler = Callable[[], float]


def replays(launches: Sequence[Launch], at_once: int = 10) -> Sampler:
    """Return a sampler of replays of the launches' graph.

    Replays are enqueued ten at a time: a GPU that waits for the CPU to launch a graph would count
    that wait, some 20 us, as the graph's.
    """
    ready: list[float] = []
    # The graph reads and writes what the launches hold, so they live as long as it.
    held = capture(launches), tuple(launches)

    def sample() -> float:
        if not ready:
            ready.extend(replay_s(held[0], at_once, warm_ups=1))
        return ready.pop()

    return sample


@dataclass
class LayerLoop:
    """A few layers of the main flow for a batch; attention is over 256 tokens, then over 128."""

    batch: int
    layers: int = LAYERS

    def __post_init__(self) -> None:
        chain = Chain(Shape(layers=self.layers, vocab=2048), self.batch, 256)
        steps = list(chain.steps())
        for name, launch in steps:
            if name.startswith("attn"):  # once, for what o_proj reads
                launch()
        self.chain = chain
        self.steps = [(name, launch) for name, launch in steps if name in (*LAYER, *ATTENTION)]
        self._plain: dict[tuple[str, ...], Sampler] = {}

    @cached_property
    def fp8_gemms(self) -> list[tuple[str, Launch]]:
        """The GEMMs of all layers in FP8, by name."""
        scale = torch.ones(())
        steps: list[tuple[str, Launch]] = []
        for layer in self.chain.layers:
            for name in GEMMS:
                weight = getattr(layer, name.removeprefix("gemm_")).to(torch.float8_e4m3fn)
                hidden = torch.randn(self.batch, weight.shape[1]).to(torch.float8_e4m3fn)
                steps.append((name, partial(flow.gemm_fp8, hidden, weight, scale)))
        return steps

    def launches(
        self, ops: Collection[str], inserted: Mapping[str, Sequence[Launch]]
    ) -> list[Launch]:
        """Return the launches of some ops, and those inserted in their slots, in rotation."""
        rotations = {slot: itertools.cycle(found) for slot, found in inserted.items()}
        before = {name: turn for slot, turn in rotations.items() for name in SLOTS[slot]}
        chain: list[Launch] = []
        for name, launch in self.steps:
            if name in before:
                chain.append(next(before[name]))
            if name in ops:
                chain.append(launch)
        return chain

    def sampler(self, *ops: str, **inserted: Sequence[Launch]) -> Sampler:
        """Return a sampler of seconds a replay, over all layers."""
        if inserted:
            return replays(self.launches(ops, inserted))
        if ops not in self._plain:
            self._plain[ops] = replays(self.launches(ops, {}))
        return self._plain[ops]


@lru_cache(maxsize=1)
def layer_loop(batch: int) -> LayerLoop:
    """Return the loop of a batch; only the last one is kept, so measure batch by batch."""
    return LayerLoop(batch)


def difference(more: Sampler, less: Sampler, count: int, each: int = 3) -> Sampler:
    """Return a sampler of (more - less) / count, medians of a few replays, taken in turns."""

    def sample() -> float:
        pairs = np.array([(more(), less()) for _ in range(each)])
        high, low = np.median(pairs, axis=0)
        return max(float(high - low) / count, 1e-9)

    return sample


def gemm(n: int, k: int, dtype: str, batch: int) -> Sampler:
    """Return a sampler of one GEMM of a layer: what it adds to those before it in the layer."""
    loop = layer_loop(batch)
    first = loop.chain.layers[0]
    shapes = [tuple(getattr(first, name.removeprefix("gemm_")).shape) for name in GEMMS]
    at = shapes.index((n, k))
    steps = loop.fp8_gemms if dtype == "fp8" else loop.steps

    def upto(count: int, layers: int = loop.layers) -> Sampler:
        launches = [launch for name, launch in steps if name in GEMMS[:count]]
        return replays(launches[: count * layers])

    if at == 0:  # a replay of one layer less a replay of none would count the graph's own start
        half = loop.layers // 2
        return difference(upto(1), upto(1, half), loop.layers - half)
    return difference(upto(at + 1), upto(at), loop.layers)


def small_op(name: str, batch: int) -> Sampler:
    """Return a sampler of one of `SMALL`: what it adds to the GEMMs and those before it."""
    loop = layer_loop(batch)
    before = (*GEMMS, *SMALL[: SMALL.index(name)])
    count = sum(op == name for op, _ in loop.steps)
    return difference(loop.sampler(*before, name), loop.sampler(*before), count)


def added(batch: int, launches: Sequence[Launch], slot: str = "attention") -> Sampler:
    """Return a sampler of what an op adds to a layer.

    Parameters
    ----------
    launches
        In rotation over the layers.
    slot
        ``attention`` (between RoPE and o_proj), ``route`` (before an attention over few tokens,
        which is there with the op and without it) or ``anchor`` (between the second norm and
        gate_up, in a layer without attention).
    """
    loop = layer_loop(batch)
    ops = (*LAYER, *ATTENTION) if slot == "route" else LAYER
    return difference(loop.sampler(*ops, **{slot: launches}), loop.sampler(*ops), LAYERS)


def release() -> None:
    """Free what earlier points held, but for the layers around them."""
    gc.collect()
    torch.cuda.empty_cache()
