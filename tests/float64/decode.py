"""A decode step in float64 numpy, and how far a run's last step is from it.

The chain of checks leaves no gap: what routing was fed against the float64 step, the proxy query
against its definition, the chosen pages against a scan of summaries made anew from the cached keys,
and the logits against the float64 step over those pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from essim.methods.routing import Routing
from essim.methods.selectors import Selector
from essim.model.shape import ModelShape
from float64.errors import floats, relative_error, routed_error
from float64.router import (
    Codes8,
    Ints,
    latent,
    page_summaries,
    project,
    rotate,
    routable_pages,
    to_e5m2,
)
from measure.decode.shared.loop import RouteInput
from measure.decode.shared.weights import LayerWeights, Weights
from measure.kernels.numbers import Floats, from_bf16, to_bf16

EPS = 1e-5


@dataclass
class Step:
    """What a float64 step computes on its way.

    Attributes
    ----------
    inputs, middles
        Residual stream at the start of each layer, and after its attention block [b, hidden].
    queries
        Post-RoPE queries of each layer [b, H, D].
    logits
        [b, vocab].
    """

    inputs: list[Floats]
    middles: list[Floats]
    queries: list[Floats]
    logits: Floats


def float64_step(
    weights: Weights,
    taken_in: Ints,
    cache: list[tuple[Floats, Floats]],
    pages: Mapping[int, Ints],
    page_tokens: int,
    cos_sin: Floats,
) -> Step:
    """Return a step over chosen pages.

    Parameters
    ----------
    taken_in
        The tokens that the step takes in [b].
    cache
        Keys and values of each layer [b, G, tokens, D]; the newest slot is computed anew.
    pages
        Pages of each routed layer [b, G, k]; other layers attend to everything.
    cos_sin
        Of the newest token's position [2, D/2].
    """
    step = Step([], [], [], np.empty(0))
    x = floats(weights.embed)[taken_in]
    for number, layer in enumerate(weights.layers):
        step.inputs.append(x)
        query, key, value = _heads(weights.model, layer, x, cos_sin)
        keys, values = cache[number]
        keys = np.concatenate((keys[:, :, :-1], key[:, :, None]), axis=2)
        values = np.concatenate((values[:, :, :-1], value[:, :, None]), axis=2)
        out = _attention(query, keys, values, pages.get(number), page_tokens)
        x = x + out @ floats(layer.o).T
        step.queries.append(query)
        step.middles.append(x)
        gate, up = np.split(_norm(x, layer.norm2) @ floats(layer.gate_up).T, 2, axis=-1)
        x = x + (gate / (1 + np.exp(-gate)) * up) @ floats(layer.down).T
    step.logits = _norm(x, weights.norm_final) @ floats(weights.head).T
    return step


def _norm(x: Floats, gain: Tensor) -> Floats:
    normed: Floats = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + EPS) * floats(gain)
    return normed


def _heads(
    model: ModelShape, layer: LayerWeights, x: Floats, cos_sin: Floats
) -> tuple[Floats, Floats, Floats]:
    """Rotated queries [b, H, D], rotated key and value [b, G, D] of the newest token."""
    heads = (_norm(x, layer.norm1) @ floats(layer.qkv).T).reshape(len(x), -1, model.head_dim)
    query, key, value = np.split(heads, (model.heads, model.heads + model.kv_heads), axis=1)
    return rotate(query, cos_sin), rotate(key, cos_sin), value


def _attention(
    query: Floats, keys: Floats, values: Floats, pages: Ints | None, page_tokens: int
) -> Floats:
    """Attention of each KV head's group over its pages and the tail page, or over everything."""
    batch, kv_heads, tokens, dim = keys.shape
    grouped = query.reshape(batch, kv_heads, -1, dim)
    out = np.empty_like(grouped)
    tail = np.arange(routable_pages(tokens, page_tokens) * page_tokens, tokens)
    for b, g in np.ndindex(batch, kv_heads):
        at = np.arange(tokens)
        if pages is not None:
            chosen = pages[b, g][:, None] * page_tokens + np.arange(page_tokens)
            at = np.concatenate((chosen.ravel(), tail))
        scores = grouped[b, g] @ keys[b, g, at].T / np.sqrt(dim)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out[b, g] = weights / weights.sum(-1, keepdims=True) @ values[b, g, at]
    return out.reshape(batch, -1)


def proxy_query(weights: Weights, layer: int, rank: int, anchor: Floats, cos_sin: Floats) -> Floats:
    """RoPE(up down norm1(anchor)) of a layer: hidden states [b, hidden] in, [b, H, D] out."""
    down, up = (floats(factor) for factor in weights.proxy(layer, rank))
    rows = down * floats(weights.layers[layer].norm1)
    heads = up.reshape(rank, weights.model.heads, -1)
    return project(latent(anchor, rows, EPS), heads, np.stack([cos_sin] * len(anchor)))


def page_codes(keys: Floats, page_tokens: int) -> Codes8:
    """E5m2 codes [pages, 2 (min, max), D] of the pages before the tail, from keys [tokens, D]."""
    whole = routable_pages(len(keys), page_tokens) * page_tokens
    if whole == 0:
        return np.empty((0, 2, keys.shape[1]), np.uint8)
    return to_e5m2(np.stack(page_summaries(keys[:whole], page_tokens), axis=1))


class Loop(Protocol):
    """What the checks need of a run that was made with ``capture``."""

    weights: Weights
    selector: Selector
    routing: Routing
    cache: Any

    @property
    def tokens(self) -> int:
        """Context."""

    @property
    def logits(self) -> Tensor:
        """Of the last step."""

    @property
    def captured(self) -> Mapping[int, RouteInput]:
        """What routing was fed."""

    def selected(self, layer: int) -> Tensor:
        """Pages that were used."""


def step_errors(loop: Loop, taken_in: Tensor, channels: int, page_tokens: int) -> dict[str, float]:
    """Worst relative errors of a loop's last step, which took in the tokens `taken_in` [b].

    Returns
    -------
    ``logits``; ``input``: anchors, or queries of the target; ``query``: proxy queries against their
    definition; ``selection``: how much worse the worst chosen page is than the worst of the best.
    """
    weights, model = loop.weights, loop.weights.model
    routed = range(loop.selector.dense_layers(), model.layers)
    routed = routed if loop.selector.query_conditioned else range(0)
    pages = {layer: loop.selected(layer).cpu().numpy() for layer in routed}
    cache = [
        (floats(loop.cache.keys(layer)), floats(loop.cache.values(layer)))
        for layer in range(model.layers)
    ]
    at = loop.tokens - 1 + loop.cache.evicted_tokens
    cos_sin = np.stack([floats(part[at]) for part in loop.cache.rope])
    step = float64_step(weights, taken_in.cpu().numpy(), cache, pages, page_tokens, cos_sin)
    errors = {"logits": relative_error(floats(loop.logits), step.logits)}
    anchors = loop.routing.anchors(model.layers)
    for layer in routed:
        fed = loop.captured[layer]
        query = scored_query(loop, layer, fed, cos_sin)
        expected = step.queries[layer]
        if loop.routing.early:
            early = {"in": step.inputs, "mid": step.middles}[anchors[layer - 1]][layer - 1]
            _worse(errors, "input", relative_error(floats(fed.anchor), early))
            rank = loop.routing.projection_rank or 0
            expected = proxy_query(weights, layer, rank, early, cos_sin)
        _worse(errors, "query", relative_error(query, expected))
        for b, g in np.ndindex(query.shape[0], model.kv_heads):
            keys = cache[layer][0][b, g]
            if loop.routing.where == "cpu":
                keys = from_bf16(to_bf16(keys))  # as they travel
            low, high = page_codes(keys, page_tokens).swapaxes(0, 1)
            group = query[b].reshape(model.kv_heads, -1, model.head_dim)[g]
            error = routed_error(group, low, high, pages[layer][b, g], channels)
            _worse(errors, "selection", error)
    return errors


def scored_query(loop: Loop, layer: int, fed: RouteInput, cos_sin: Floats) -> Floats:
    """Return the query that pages were scored with [b, H, D]; the pool has its own in BF16."""
    if fed.query is not None:
        query = floats(fed.query)
    else:
        assert fed.latent is not None
        _, up = loop.weights.proxy(layer, loop.routing.projection_rank or 0)
        heads = floats(up).reshape(len(up), loop.weights.model.heads, -1)
        query = project(floats(fed.latent), heads, np.stack([cos_sin] * len(fed.latent)))
    return from_bf16(to_bf16(query)) if loop.routing.where == "cpu" else query


def _worse(errors: dict[str, float], name: str, error: float) -> None:
    errors[name] = max(errors.get(name, 0.0), error)
