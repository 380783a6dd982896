"""A model of random weights, small enough to compute by hand, and float64 references of it."""

from __future__ import annotations

import math

import numpy as np
import torch

from measure.fidelity.model import Model
from measure.fidelity.trajectory import Trajectory, run_dense
from measure.fidelity.weights.checkpoint import Checkpoint, Layer, Sizes, rope_frequencies

SIZES = Sizes(4, 32, 4, 2, 8, 48, 64, 10000.0, 1e-5, 512)


def tiny_checkpoint(seed: int = 0, biases: bool = False) -> Checkpoint:
    source = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=source) / math.sqrt(columns)

    def scale(size: int) -> torch.Tensor:
        return 1 + 0.1 * torch.randn(size, generator=source)

    d, own, shared = SIZES.hidden, SIZES.heads * SIZES.head_dim, SIZES.kv_heads * SIZES.head_dim
    layers = []
    for _ in range(SIZES.layers):
        # Queries and keys are large, so that attention is peaked as a trained model's is.
        layer = Layer(
            *(scale(d), 3 * matrix(own, d), 3 * matrix(shared, d), matrix(shared, d)),
            *(matrix(d, own), scale(d), matrix(SIZES.ffn, d), matrix(SIZES.ffn, d)),
            matrix(d, SIZES.ffn),
            *((scale(own), scale(shared), scale(shared)) if biases else ()),
        )
        layers.append(layer)
    embedding = torch.randn(SIZES.vocab, d, generator=source)
    frequencies = rope_frequencies(SIZES)
    head = matrix(SIZES.vocab, d)
    parts = (embedding, tuple(layers), scale(d), head, frequencies)
    return Checkpoint("tiny", "0" * 64, SIZES, *parts)


def tiny_run(tokens: int = 64, decoded: int = 16) -> tuple[Model, Trajectory]:
    """Return the model and its dense run over random tokens."""
    model = Model(tiny_checkpoint())
    ids = torch.randint(0, SIZES.vocab, (tokens + 1,), generator=torch.Generator().manual_seed(1))
    return model, run_dense(model, ids, decoded)


def float64_log_probabilities(checkpoint: Checkpoint, ids: np.ndarray) -> np.ndarray:
    """Return log p [N, vocabulary] of a dense pass, token by token in loops."""
    sizes = checkpoint.sizes

    def array(tensor: torch.Tensor | None, size: int = 0) -> np.ndarray:
        return np.zeros(size) if tensor is None else tensor.double().numpy()

    def norm(x: np.ndarray, weight: torch.Tensor) -> np.ndarray:
        return x / np.sqrt((x * x).mean() + sizes.norm_eps) * array(weight)

    def rotate(x: np.ndarray, position: int) -> np.ndarray:
        half = sizes.head_dim // 2
        angles = position * sizes.rope_base ** (-np.arange(half) / half)
        z = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
        return np.concatenate((z.real, z.imag), -1)

    cache: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in checkpoint.layers]
    result = []
    for position, token in enumerate(ids):
        x = array(checkpoint.embedding)[token]
        for layer, cached in zip(checkpoint.layers, cache, strict=True):
            n = norm(x, layer.norm1)
            q = (array(layer.query) @ n + array(layer.query_bias, len(layer.query))).reshape(
                sizes.heads, -1
            )
            k = (array(layer.key) @ n + array(layer.key_bias, len(layer.key))).reshape(
                sizes.kv_heads, -1
            )
            v = (array(layer.value) @ n + array(layer.value_bias, len(layer.value))).reshape(
                sizes.kv_heads, -1
            )
            cached.append((rotate(k, position), v))
            heads = []
            for h, own in enumerate(rotate(q, position)):
                scores = np.array([key[h // sizes.group] @ own for key, _ in cached])
                weights = np.exp((scores - scores.max()) / math.sqrt(sizes.head_dim))
                values = np.array([value[h // sizes.group] for _, value in cached])
                heads.append(weights / weights.sum() @ values)
            x = x + array(layer.output) @ np.concatenate(heads)
            n = norm(x, layer.norm2)
            gate = array(layer.gate) @ n
            x = x + array(layer.down) @ (gate / (1 + np.exp(-gate)) * (array(layer.up) @ n))
        logits = array(checkpoint.head) @ norm(x, checkpoint.norm)
        result.append(logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max())
    return np.array(result)
