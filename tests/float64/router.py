"""The router in float64 numpy: what every compiled path is compared with.

A group is the query heads of one KV head. Formulas: RocketKV, hybrid sparse attention (its second
stage); the early query is EarlySelectKV's ``RoPE(W_q . norm1(anchor))`` with W_q of rank r.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from measure.kernels.numbers import Floats

Ints = npt.NDArray[np.int64]
Codes8 = npt.NDArray[np.uint8]
AnyFloats = npt.NDArray[np.floating[Any]]

E5M2_MAX = 57344.0


def to_e5m2(values: AnyFloats) -> Codes8:
    """Round to FP8 e5m2 codes: to nearest even, saturating, without a negative zero."""
    x = np.asarray(values, dtype=np.float64)
    exponent = np.frexp(np.abs(x))[1] - 1
    step = np.ldexp(1.0, np.maximum(exponent, -14) - 2)
    rounded = np.clip(np.rint(x / step) * step, -E5M2_MAX, E5M2_MAX) + 0.0
    codes: Codes8 = (rounded.astype(np.float16).view(np.uint16) >> 8).astype(np.uint8)
    return codes


def from_e5m2(codes: Codes8) -> Floats:
    """Values of e5m2 codes: the top byte of an fp16."""
    return (codes.astype(np.uint16) << 8).view(np.float16).astype(np.float64)


def page_summaries(keys: Floats, page_tokens: int) -> tuple[Floats, Floats]:
    """Elementwise min and max of each page's keys; the last page may be partial.

    Parameters
    ----------
    keys
        Post-RoPE keys, [tokens, ...].

    Returns
    -------
    Min and max, [pages, ...].
    """
    starts = np.arange(0, len(keys), page_tokens)
    return np.minimum.reduceat(keys, starts), np.maximum.reduceat(keys, starts)


def rotate(queries: Floats, cos_sin: AnyFloats) -> Floats:
    """Rotate-half RoPE. queries [..., head_dim]; cos_sin [..., 2, head_dim / 2]."""
    half = queries.shape[-1] // 2
    low, high = queries[..., :half], queries[..., half:]
    cos, sin = cos_sin[..., 0, :], cos_sin[..., 1, :]
    rotated: Floats = np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
    return rotated


def latent(hidden: Floats, rows: Floats, eps: float) -> Floats:
    """Down-projection of the RMS-normalised hidden state.

    hidden [batch, d]; rows [r, d] with the norm's weight folded in. Returns [batch, r].
    """
    scale = 1.0 / np.sqrt(np.mean(hidden**2, axis=-1, keepdims=True) + eps)
    latents: Floats = scale * (hidden @ rows.T)
    return latents


def project(latents: Floats, up: Floats, cos_sin: AnyFloats) -> Floats:
    """Up-projection and RoPE.

    latents [batch, r]; up [r, heads, head_dim]; cos_sin of each sequence [batch, 2, head_dim / 2].

    Returns queries [batch, heads, head_dim].
    """
    queries: Floats = np.einsum("br,rhd->bhd", latents, up)
    return rotate(queries, cos_sin[:, None])


def choose_channels(queries: Floats, count: int) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Channels with the largest summed |q| (ties: the lowest), and whether each reads max.

    queries [group, head_dim]. Returns ascending channels [count] and flags [count].
    """
    order = np.argsort(-np.abs(queries).sum(axis=0), kind="stable")
    channels = np.sort(order[:count])
    return channels, queries.sum(axis=0)[channels] > 0


def page_scores(queries: Floats, low: Floats, high: Floats, count: int) -> Floats:
    """Score of each page: softmax over pages a head, summed over the group.

    queries [group, head_dim]; low, high [pages, head_dim]. Returns [pages].
    """
    channels, reads_max = choose_channels(queries, count)
    summary = np.where(reads_max, high[:, channels], low[:, channels])
    chosen = np.abs(queries[:, channels]).sum(axis=1)
    total = np.abs(queries).sum(axis=1)
    fraction = np.divide(chosen, total, out=np.zeros_like(total), where=total > 0)
    scale = np.where(chosen > 0, np.sqrt(queries.shape[1] * fraction), 1.0)
    scores = (queries[:, channels] @ summary.T) / scale[:, None]
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    group: Floats = (exponentials / exponentials.sum(axis=1, keepdims=True)).sum(axis=0)
    return group


def top_pages(scores: Floats, count: int) -> Ints:
    """The ``count`` best pages, ascending (ties: the lowest); all of them where there are fewer."""
    return np.sort(np.argsort(-scores, kind="stable")[:count])


def routable_pages(context_tokens: int, page_tokens: int) -> int:
    """Pages that compete: all before the tail page, which is always kept."""
    return (context_tokens - 1) // page_tokens
