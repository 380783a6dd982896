"""Compare the kernels of Quest and exact top-k with float64 on random inputs."""

from __future__ import annotations

import numpy as np
import torch

from float64.attention import sequence
from float64.errors import floats, selection_error
from float64.page_routers import paged_summaries
from float64.router import page_summaries, routable_pages
from measure.kernels.gpu_router.exact_topk.router import ExactTopKRouter
from measure.kernels.gpu_router.quest.router import QuestRouter
from measure.kernels.gpu_router.quest.summaries import build_summaries
from measure.kernels.numbers import Floats

UNSET = 1 << 30
"""An index that no kernel may leave: out of every range."""


def weights(scores: Floats) -> Floats:
    """Softmax of each head over pages or tokens, summed over the heads; scores [heads, items]."""
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    total: Floats = (exponentials / exponentials.sum(axis=1, keepdims=True)).sum(axis=0)
    return total


def quest_scores(queries: Floats, low: Floats, high: Floats) -> Floats:
    """Upper bounds of attention scores: queries [heads, dim]; low, high [pages, dim]."""
    larger = np.maximum(queries[:, None] * low, queries[:, None] * high)
    scores: Floats = larger.sum(axis=2) / np.sqrt(queries.shape[1])
    return scores


def appended(before: Floats, key: Floats, place: int) -> Floats:
    """A page's summary [2 (min, max), dim] after the key of its token ``place``."""
    if place == 0:
        return np.stack([key, key])
    return np.stack([np.minimum(before[0], key), np.maximum(before[1], key)])


def check_quest(router: QuestRouter) -> dict[str, float]:
    """Run once; the share of wrong summaries, and how much worse the worst chosen page is."""
    expected = floats(paged_summaries(router))
    router.indices.fill_(UNSET)
    router()
    chosen, worst = router.indices.cpu().numpy(), 0.0
    choosers = expected.shape[1] if router.shared else chosen.shape[1]
    for row, tokens in enumerate(router.context.tolist()):
        pages = routable_pages(tokens, router.page_tokens)
        queries = floats(router.queries[row]).reshape(choosers, -1, router.queries.shape[-1])
        for chooser in range(choosers):
            head = chooser * expected.shape[1] // choosers
            low, high = expected[row, head, :, :pages]
            found = chosen[row, chooser]
            if pages:
                scores = weights(quest_scores(queries[chooser], low, high))
                worst = max(worst, selection_error(found, scores))
            elif np.any(found != -1):
                worst = float("inf")
        for head, key in enumerate(floats(router.keys[row])):
            at = (row, head, slice(None), pages)
            expected[at] = appended(expected[at], key, (tokens - 1) % router.page_tokens)
    wrong = float(np.mean(expected != floats(paged_summaries(router))))
    return {"summaries": wrong, "selection": worst}


def check_quest_summaries(
    kv_heads: int, tokens: int, dim: int, page_tokens: int, block_pages: int = 8
) -> float:
    """Build those of a random prompt; the share of the pool that is wrong.

    What belongs to no page of the prompt, a block of another sequence included, must stay as it is.
    """
    keys = torch.randn(kv_heads, tokens, dim).bfloat16()
    pages = -(-tokens // page_tokens)
    blocks = -(-pages // block_pages)
    table = torch.randperm(blocks + 1)[:blocks].int()
    shape = (blocks + 1, kv_heads, block_pages, 2, dim)
    pool = torch.full(shape, float("nan"), dtype=torch.bfloat16)
    build_summaries(keys, pool, table, page_tokens)
    expected = np.full(shape, np.nan)
    low, high = page_summaries(floats(keys).swapaxes(0, 1), page_tokens)
    order = table.cpu().numpy()
    for page in range(pages):
        summary = np.stack([low[page], high[page]], axis=1)
        expected[order[page // block_pages], :, page % block_pages] = summary
    found = floats(pool)
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    return float(np.mean(~same))


def check_exact_topk(router: ExactTopKRouter) -> float:
    """Run once; how much worse the worst chosen token is than the worst of the true top."""
    router.indices.fill_(UNSET)
    router()
    chosen, worst = router.indices.cpu().numpy(), 0.0
    for row in range(len(chosen)):
        keys, _ = sequence(router.cache, row)
        for head, queries in enumerate(floats(router.queries[row])):
            scores = weights(queries @ keys[:, head].T / np.sqrt(queries.shape[1]))
            worst = max(worst, selection_error(chosen[row, head], scores))
    return worst
