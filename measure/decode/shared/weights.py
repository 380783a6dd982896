"""Seeded random weights of any plain transformer shape, on any device."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from essim.errors import InputError
from essim.model.shape import ModelShape

# Channels of the hidden state that carry most of a query: real query projections are far from
# full rank, and a proxy of low rank must have something to keep.
_QUERY_DIMENSIONS = 32


@dataclass(frozen=True)
class LayerWeights:
    """One layer; matrices are [outputs, inputs], ``qkv`` is Q, K, V rows, ``gate_up`` both."""

    norm1: Tensor
    qkv: Tensor
    o: Tensor
    norm2: Tensor
    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True)
class Weights:
    """A model's weights, and low-rank factors of its query projections on demand.

    Attributes
    ----------
    embed, head
        [vocab, hidden]. Always two matrices, since with tied random embeddings greedy sampling
        only repeats its token; a step takes as long.
    """

    model: ModelShape
    seed: int
    embed: Tensor
    head: Tensor
    norm_final: Tensor
    layers: tuple[LayerWeights, ...]
    _proxies: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)

    @staticmethod
    def random(
        model: ModelShape,
        seed: int,
        device: str | torch.device = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> Weights:
        """Return weights under which activations stay near one.

        A matrix maps unit noise to unit noise; what attention and MLP add to the residual stream is
        divided by the root of their number. Numbers depend on seed, device and dtype.
        """
        check_shape(model)
        noise = _Noise(model, torch.Generator(device).manual_seed(seed), device, dtype)
        return Weights(
            model=model,
            seed=seed,
            embed=noise.matrix(model.vocab, model.hidden, math.sqrt(model.hidden)),
            head=noise.matrix(model.vocab, model.hidden),
            norm_final=noise.norm(),
            layers=tuple(noise.layer() for _ in range(model.layers)),
        )

    def proxy(self, layer: int, rank: int) -> tuple[Tensor, Tensor]:
        """Return factors (down [rank, hidden], up [rank, H D]) of a layer's query projection.

        The query of a hidden state x is RoPE((norm1(x) down^T) up).
        """
        if (layer, rank) not in self._proxies:
            query = self.layers[layer].qkv[: self.model.q_width]
            if rank > min(query.shape):
                raise InputError(f"a proxy of rank {rank} of a {list(query.shape)} matrix")
            with torch.random.fork_rng():
                torch.manual_seed(self.seed)
                left, values, right = torch.svd_lowrank(query.float(), q=rank, niter=4)
            down = (right * values).T.to(query.dtype).contiguous()
            self._proxies[layer, rank] = down, left.T.to(query.dtype).contiguous()
        return self._proxies[layer, rank]


@dataclass(frozen=True)
class _Noise:
    """Makes random weights, in the order in which they are asked for."""

    model: ModelShape
    generator: torch.Generator
    device: str | torch.device
    dtype: torch.dtype

    def matrix(self, n: int, k: int, scale: float = 1.0) -> Tensor:
        noise = torch.randn(n, k, generator=self.generator, device=self.device, dtype=self.dtype)
        return noise.mul_(scale * k**-0.5)

    def norm(self) -> Tensor:
        noise = torch.rand(
            self.model.hidden, generator=self.generator, device=self.device, dtype=self.dtype
        )
        return noise + 0.5

    def layer(self) -> LayerWeights:
        m, added = self.model, (2 * self.model.layers) ** -0.5
        energy = torch.exp(-torch.arange(m.hidden, device=self.device) / _QUERY_DIMENSIONS)
        qkv = self.matrix(*m.gemm_shape("qkv"))
        qkv[: m.q_width] *= (energy / energy.mean()).sqrt().to(self.dtype)
        return LayerWeights(
            norm1=self.norm(),
            qkv=qkv,
            o=self.matrix(*m.gemm_shape("o"), added),
            norm2=self.norm(),
            gate_up=self.matrix(*m.gemm_shape("gate_up")),
            down=self.matrix(*m.gemm_shape("down"), added),
        )


def check_shape(model: ModelShape) -> None:
    """Raise InputError for a shape that the decode run has no operations for."""
    plain = model.count("full") == model.count("dense") == model.layers
    if not plain or not model.gated_mlp or model.mla or model.tp > 1:
        raise InputError(
            f"the decode run knows no model like {model.name}",
            "It has full attention and gated MLPs in every layer, on one rank",
        )
