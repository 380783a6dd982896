"""Tables of what a prefill has beside GEMMs: causal attention, RocketKV's stage 1, summaries."""

from __future__ import annotations

from functools import partial

import torch

from measure.harness.campaign import Bench, Place
from measure.harness.gpu import Launch
from measure.kernels.flow import stage1
from measure.tables.gpu.bench import CACHE, PROMPTS, SHAPE, gpu_bench, integers

PROMPT_BUDGET = 4096


def prefill_benches() -> list[Bench]:
    """Return the benches over the tokens of a prompt."""
    rows = {"rows": PROMPTS}
    rocket = CACHE | {"selector": ["rocketkv"]}
    budget = rocket | {"prompt_budget": [PROMPT_BUDGET]}
    pages = rocket | {"page_tokens": [4]}
    return [
        gpu_bench("attn_prefill", rows, _attention, CACHE, least=2, calls=10),
        gpu_bench("stage1_select", rows, _select, budget, least=2, calls=10),
        gpu_bench("summary_build", rows, _summaries, pages, calls=20),
    ]


def _prompt(tokens: int, heads: int) -> torch.Tensor:
    return torch.randn(heads, tokens, SHAPE.dim).bfloat16()


def _attention(place: Place) -> tuple[list[Launch], int]:
    (tokens,) = integers(place, "rows")
    query = _prompt(tokens, SHAPE.heads)[None]
    keys, values = (_prompt(tokens, SHAPE.kv_heads)[None] for _ in range(2))
    return [lambda: stage1.prefill_attention(query, keys, values)], 0


def _select(place: Place) -> tuple[list[Launch], int]:
    (tokens,) = integers(place, "rows")
    keys, values = (_prompt(tokens, SHAPE.kv_heads) for _ in range(2))
    group = SHAPE.heads // SHAPE.kv_heads
    query = torch.randn(SHAPE.kv_heads, group, stage1.WINDOW, SHAPE.dim).bfloat16()

    def launch() -> None:
        kept = stage1.select_prompt(query, keys, PROMPT_BUDGET)
        stage1.compact(keys, kept)
        stage1.compact(values, kept)

    return [launch], 0


def _summaries(place: Place) -> tuple[list[Launch], int]:
    (tokens,) = integers(place, "rows")
    row = (tokens // 4 // 128 + 1) * 128
    codes = torch.empty(SHAPE.kv_heads, 2, SHAPE.dim, row, dtype=torch.uint8)
    keys = [_prompt(tokens, SHAPE.kv_heads) for _ in range(8)]
    return [partial(stage1.build_summaries, own, codes, 4) for own in keys], 0
