"""Prefill of one prompt: dense attention, then RocketKV's first stage on what is cached."""

from __future__ import annotations

import torch
from torch import Tensor

from essim.methods.selectors import Selector
from measure.decode.shared.weights import LayerWeights, Weights
from measure.kernels.flow import cpu as flow

Cache = list[tuple[Tensor, Tensor]]


def prefill(
    weights: Weights, selector: Selector, prompt: Tensor, rope: tuple[Tensor, Tensor]
) -> tuple[Cache, Tensor]:
    """Return each layer's kept keys and values [1, G, kept, D], and the last token's logits.

    Parameters
    ----------
    prompt
        Token ids [tokens].
    rope
        Cosines and sines, at least [tokens, D/2].
    """
    kept = selector.kept_prompt_tokens(len(prompt))
    residual, cache = weights.embed[prompt], Cache()
    for layer in weights.layers:
        query, keys, values = _project(weights, layer, residual, rope)
        residual = residual + flow.gemm(flow.prefill_attention(query, keys, values)[0], layer.o)
        x = flow.gemm(flow.rms_norm(residual, layer.norm2), layer.gate_up)
        residual = residual + flow.gemm(flow.silu_mul(x), layer.down)
        if kept < len(prompt):
            window = query[:, :, -flow.WINDOW_TOKENS :].contiguous()
            chosen = flow.stage1_select(window, keys, kept)
            keys, values = flow.compact(keys, chosen), flow.compact(values, chosen)
        cache.append((keys, values))
    return cache, flow.gemm(flow.rms_norm(residual[-1:], weights.norm_final), weights.head)


def _project(
    weights: Weights, layer: LayerWeights, residual: Tensor, rope: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return rotated queries [1, H, S, D], rotated keys and values [1, G, S, D]."""
    m = weights.model
    qkv = flow.gemm(flow.rms_norm(residual, layer.norm1), layer.qkv)
    heads = qkv.view(len(residual), -1, m.head_dim).transpose(0, 1)[None]
    query, keys, values = heads.split((m.heads, m.kv_heads, m.kv_heads), dim=1)
    angles = [part[: len(residual)].to(qkv.dtype) for part in rope]
    return flow.rotate(query, *angles), flow.rotate(keys, *angles), values


def random_prompt(weights: Weights, batch: int, tokens: int) -> Tensor:
    """Return seeded random token ids [batch, tokens], the same on any device."""
    generator = torch.Generator("cpu").manual_seed(weights.seed + 1)
    size, vocab = (batch, tokens), weights.model.vocab
    prompts = torch.randint(0, vocab, size, generator=generator, device="cpu")
    return prompts.to(weights.embed.device)
