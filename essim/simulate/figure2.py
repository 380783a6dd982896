"""Routing's share of attention-side compute for four selectors (EarlySelectKV, Figure 2).

Multiply-accumulates (MACs) of one layer and one token at S cached tokens, with H query heads,
G KV heads of dimension D and a token budget B = S/c:

- sparse attention: 2 H B D
- Quest: H (S/16) D, one estimate a page of 16 tokens
- SparQ: H S r, r = 16 channels of every key
- Loki: H (S r + 2 D^2), r = 16 principal components, query and key projected by D x D each step;
  with cached projections H D r + G D r + H S r
- HSA (RocketKV's hybrid sparse attention): H (S/p) r with page p and channels r of RocketKV's
  policy, S/p not rounded; or H (M/p) r, the scan of no more than the capacity M that stage 1 keeps
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from essim.methods.selectors.rocketkv import policy
from essim.results.column import Row
from essim.results.tables import FIGURE2_COLUMNS

CONTEXT_TOKENS = 8192
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
COMPRESSIONS = (4, 8, 16, 32, 64)
QUEST_PAGE_TOKENS = 16
RANK = 16

Loki = Literal["pca", "cached"]
HsaScan = Literal["all", "stage1"]


def figure2(loki: Loki = "pca", hsa_scan: HsaScan = "all") -> list[Row]:
    """Return a row for each method and compression: 4 x 5.

    Parameters
    ----------
    loki
        ``pca``: query and key are rotated by the full D x D basis each step; ``cached``: only
        onto the r components that scoring uses.
    hsa_scan
        ``all``: HSA scans pages of all S tokens, as published; ``stage1``: only of the M it keeps.
    """
    methods: dict[str, Callable[[int], Row]] = {
        "Quest": lambda budget: _quest(),
        "SparQ": lambda budget: _sparq(),
        "Loki": lambda budget: _loki(loki),
        "HSA": lambda budget: _hsa(budget, hsa_scan),
    }
    rows: list[Row] = []
    for name, route in methods.items():
        for compression in COMPRESSIONS:
            budget = CONTEXT_TOKENS // compression
            row = dict.fromkeys(FIGURE2_COLUMNS) | route(budget)
            sparse_macs = 2.0 * HEADS * budget * HEAD_DIM
            route_macs = float(row["route_macs"] or 0)
            rows.append(
                row
                | {
                    "method": name,
                    "compression": compression,
                    "budget_tokens": budget,
                    "context_tokens": CONTEXT_TOKENS,
                    "sparse_macs": sparse_macs,
                    "route_share_frac": route_macs / (route_macs + sparse_macs),
                }
            )
    return rows


def _quest() -> Row:
    pages = CONTEXT_TOKENS // QUEST_PAGE_TOKENS
    return {
        "page_tokens": QUEST_PAGE_TOKENS,
        "channels": HEAD_DIM,
        "route_macs": float(HEADS * pages * HEAD_DIM),
    }


def _sparq() -> Row:
    return {"channels": RANK, "route_macs": float(HEADS * CONTEXT_TOKENS * RANK)}


def _loki(variant: Loki) -> Row:
    score = HEADS * CONTEXT_TOKENS * RANK
    if variant == "cached":
        project = (HEADS + KV_HEADS) * HEAD_DIM * RANK
    else:
        project = HEADS * 2 * HEAD_DIM**2
    return {"channels": RANK, "route_macs": float(score + project)}


def _hsa(budget_tokens: int, scan: HsaScan) -> Row:
    settings = policy(CONTEXT_TOKENS, budget_tokens, HEAD_DIM)
    scanned = settings.capacity_tokens if scan == "stage1" else CONTEXT_TOKENS
    return {
        "page_tokens": settings.page_tokens,
        "channels": settings.channels,
        "route_macs": HEADS * scanned / settings.page_tokens * settings.channels,
    }
