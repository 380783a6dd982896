"""Numbers that follow from sizes: what each selector's own formulas say of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from essim.methods.selectors.double_sparsity import HShare
from essim.methods.selectors.kept import KAP
from essim.methods.selectors.prhs import CIS
from essim.methods.selectors.prism import PRISM
from essim.methods.selectors.quest import Quest
from essim.methods.selectors.residualkv import ResidualKV
from essim.methods.selectors.sparq import SparQ
from essim.methods.selectors.vestigekv import VestigeKV
from essim.model.shape import PRESETS, ModelShape

_MHA = PRESETS["llama-3.1-8b"].model_copy(update={"kv_heads": 32})
_QWEN = PRESETS["qwen2.5-7b"]
_TOKENS = np.array([32768])
# A row of Kimi Linear's latent cache: 576 values of 2 bytes.
_MLA_ROW_BYTES = 1152
# NVIDIA's H100 SXM datasheet, and 7e9 weights of 16 bits as PRISM's authors count them.
_H100_BYTES_PER_S = 3.35e12
_PRISM_WEIGHT_BYTES = 14e9
_PRISM_BATCH = 128
K, M = 1024, 1024 * 1024


def _scan_share(selector: Any, of_bytes: float) -> float:
    """Return bytes that routing scans over some bytes a token, without GQA."""
    work = selector.route_work(_MHA, _TOKENS, None)
    return float(work.read_bytes[0]) / (float(_TOKENS[0]) * of_bytes)


def _labels_share(selector: HShare | CIS) -> float:
    """Return multiply-adds of label scans over those of dense attention."""
    flops = selector.retrieval(_MHA, _TOKENS).times(selector.retrieval_frac()).flops[0]
    return float(flops) / (4.0 * float(_TOKENS[0]) * _MHA.q_width)


def _hshare(shared: float) -> HShare:
    return HShare(per_steps=2, layers_frac=shared, heads_frac=shared)


def _vestige_speedup(crossover: float, at: float, speedup: float, wanted: float) -> float:
    """Return a speedup from the crossover and another: (1 + u S) / (1 + r u S + c).

    u is a row's share of a step without attention, r what its index leaves of a row, and c, what
    scanning costs each step, is that at the crossover: (1 - r) u S*.
    """
    left = VestigeKV().step_bytes(_MLA_ROW_BYTES) / _MLA_ROW_BYTES
    u = (speedup - 1) / (at - speedup * (left * at + (1 - left) * crossover))
    return (1 + u * wanted) / (1 + u * (left * wanted + (1 - left) * crossover))


def _photonic_s(context_tokens: int, model: ModelShape = _QWEN) -> float:
    layers = model.layers * _PRISM_BATCH
    return layers * float(PRISM().device_s(model, np.array([context_tokens]))[0])


def _fetch_s() -> float:
    selector = PRISM(local_tokens=0)
    tokens = float(selector.read_tokens(_QWEN, np.array([M]))[0])
    return tokens * _PRISM_BATCH * _QWEN.kv_bytes_per_token() / _H100_BYTES_PER_S


def _prism_ms(context_tokens: int) -> float:
    """Return a step: weights, KV of the chosen blocks, and the device."""
    weights_s = _PRISM_WEIGHT_BYTES / _H100_BYTES_PER_S
    return 1e3 * (weights_s + _fetch_s() + _photonic_s(context_tokens))


def _sparq_saved() -> float:
    """Return dense over sparse bytes: keys and values against channels and chosen tokens."""
    selector, tokens = (
        SparQ(rank=32, top_tokens=128),
        np.array([128 * K]),
    )
    row = _MHA.kv_bytes_per_token_layer()
    read = float(selector.read_tokens(_MHA, tokens)[0]) * row
    return 128 * K * row / (read + float(selector.route_work(_MHA, tokens, None).read_bytes[0]))


PREDICTIONS: dict[str, Callable[[], float]] = {
    "hshare-2": lambda: 100 * _hshare(0.5).retrieval_frac(),
    "hshare-1": lambda: 100 * _hshare(0.75).retrieval_frac(),
    "cis-ratio": lambda: 100 * CIS().retrieval_frac(),
    "comp-hshare-1": lambda: _labels_share(_hshare(0.75)),
    "comp-hshare-2": lambda: _labels_share(_hshare(0.5)),
    "comp-cis": lambda: _labels_share(CIS()),
    "comp-quest": lambda: _scan_share(
        Quest(budget_tokens=2048), _MHA.kv_bytes_per_token_layer() / 2
    ),
    "vestige-64": lambda: VestigeKV().step_bytes(_MLA_ROW_BYTES),
    "vestige-64-share": lambda: 100 * VestigeKV().step_bytes(_MLA_ROW_BYTES) / _MLA_ROW_BYTES,
    "vestige-192-share": lambda: (
        100 * VestigeKV(rank=192).step_bytes(_MLA_ROW_BYTES) / _MLA_ROW_BYTES
    ),
    "vestige-abstract": lambda: _vestige_speedup(40e3, 256 * K, 1.18, 496 * K),
    "vestige-readme": lambda: _vestige_speedup(28e3, 256 * K, 1.28, 496 * K),
    "prism-photonic": lambda: 1e6 * _photonic_s(M),
    "prism-16": lambda: PRISM().traffic_ratio(64 * K),
    "prism-weights": lambda: 1e6 * _PRISM_WEIGHT_BYTES / _H100_BYTES_PER_S,
    "prism-fetch": lambda: 1e6 * _fetch_s(),
    "prism-128k": lambda: _prism_ms(128 * K),
    "prism-1m": lambda: _prism_ms(M),
    "prism-10m": lambda: _prism_ms(10 * M),
    "prism-100m": lambda: _prism_ms(100 * M),
    "sparq-transfer": _sparq_saved,
    "kap-read": lambda: 100 * float(KAP().attended_tokens(np.array([128 * K]))[0]) / (128 * K),
    "residualkv-attended": lambda: 1 / ResidualKV().attended_frac,
}
