"""How far a kernel's output is from its float64 reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from float64.router import from_e5m2, page_scores, to_e5m2, top_pages
from measure.kernels.numbers import Floats

if TYPE_CHECKING:
    import torch


def floats(tensor: torch.Tensor) -> Floats:
    """As float64 on the CPU."""
    return np.asarray(tensor.detach().cpu().double().numpy(), dtype=np.float64)


def relative_error(out: npt.ArrayLike, reference: npt.ArrayLike) -> float:
    """Norm of the difference over the norm of the reference; NaN counts as infinite."""
    difference = np.asarray(out, dtype=np.float64) - np.asarray(reference, dtype=np.float64)
    error = float(np.linalg.norm(difference) / np.linalg.norm(np.asarray(reference)))
    return error if np.isfinite(error) else float("inf")


def selection_error(chosen: npt.NDArray[np.integer[Any]], scores: Floats) -> float:
    """How much worse the worst chosen page is than the worst of the true top pages, relatively.

    Infinite where pages repeat, are out of range or are missing.
    """
    pages = chosen[chosen >= 0]
    best = top_pages(scores, len(chosen))
    if len(np.unique(pages)) != len(best) or np.any(pages >= len(scores)):
        return float("inf")
    if len(best) == 0:
        return 0.0
    true, got = float(scores[best].min()), float(scores[pages].min())
    return max(0.0, (true - got) / max(true, 1e-30))


def routed_error(
    queries: Floats,
    low: npt.NDArray[np.uint8],
    high: npt.NDArray[np.uint8],
    chosen: npt.NDArray[np.integer[Any]],
    channels: int,
) -> float:
    """`selection_error` of one (sequence, KV head).

    queries [group, head_dim]; low, high [pages, head_dim] in e5m2 codes; chosen [top].
    """
    if len(low) == 0:
        return float("inf") if np.any(chosen >= 0) else 0.0
    scores = page_scores(queries, from_e5m2(low), from_e5m2(high), channels)
    return selection_error(chosen, scores)


def updated_summary(
    before: npt.NDArray[np.uint8], key: Floats, opens: bool
) -> npt.NDArray[np.uint8]:
    """Codes of a page after a key is appended.

    before [2 (min, max), head_dim]; key [head_dim]; ``opens`` where the key is the page's first.
    """
    code = to_e5m2(key)
    if opens:
        return np.stack([code, code])
    value, old = from_e5m2(code), from_e5m2(before)
    return np.stack(
        [np.where(value < old[0], code, before[0]), np.where(value > old[1], code, before[1])]
    )
