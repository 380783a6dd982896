"""Published speedups whose settings are partly known: upper bounds, and a few dense kernels.

Where hardware is not published it is the H200, whose kernels were measured; elsewhere prices are
carried over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from essim.methods.selectors import SELECTORS
from essim.model.shape import PRESETS, ModelShape
from essim.simulate.plan import points_of
from essim.simulate.scenario import Scenario
from essim.simulate.sweep import Simulator
from essim.step.kinds import Case, Point
from essim.step.price import CostModel
from essim.text.yaml import Document

K = 1024
_GQA: dict[str, Any] = {"preset": "llama-3.1-8b"}
_MHA: dict[str, Any] = _GQA | {"name": "mha-7b", "kv_heads": 32, "ffn": 11008, "vocab": 32000}
_MHA_13B: dict[str, Any] = _MHA | {"name": "mha-13b", "hidden": 5120, "heads": 40, "kv_heads": 40}
_MHA_13B |= {"layers": 40, "ffn": 13824}


def _point(
    selector: Mapping[str, Any], model: Mapping[str, Any], hardware: str, batch: int, tokens: int
) -> Scenario:
    data = {
        **{"name": "published", "model": dict(model), "hardware": hardware},
        **{"selector": dict(selector), "routing": "gpu-target"},
        "workload": {"batch": batch, "input_tokens": tokens, "output_tokens": 2},
    }
    return points_of(Document(Path("<published>"), data, {}))[0]


def _attention_s(simulator: Simulator, point: Scenario, kinds: tuple[str, ...]) -> float:
    """Return what some ops of a layer take together."""
    load, selector = point.workload, point.resolved_selector()
    costs = CostModel(simulator.profile(point.hardware), Case(point.model, selector, point.routing))
    kept = selector.kept_prompt_tokens(load.input_tokens)
    at = Point(load.batch, load.batch, np.array([kept + 1]))
    return sum(float(costs.price(kind, at).mean_s[0]) for kind in kinds)


def _attention(
    kind: str, hardware: str, batch: int, tokens: int, model: Mapping[str, Any] = _GQA, **own: Any
) -> Callable[[Simulator], float]:
    """Return dense attention over routing, sparse attention and what follows it."""

    def predict(simulator: Simulator) -> float:
        point = _point({"kind": kind, **own}, model, hardware, batch, tokens)
        ops = ["gpu_route_stepwise", "attn_sparse"]
        ops += ["select_after"] if point.selector.has("after_work") else []
        dense_s = _attention_s(simulator, point.with_dense(), ("attn_dense",))
        return dense_s / _attention_s(simulator, point, tuple(ops))

    return predict


def _decode(
    kind: str, hardware: str, batch: int, tokens: int, model: Mapping[str, Any] = _GQA, **own: Any
) -> Callable[[Simulator], float]:
    """Return a dense decode step over a sparse one."""

    def predict(simulator: Simulator) -> float:
        point = _point({"kind": kind, **own}, model, hardware, batch, tokens)
        slow, fast = (simulator.decode(p).step_ps[0] for p in (point.with_dense(), point))
        return float(slow / fast)

    return predict


def _prefill_s(simulator: Simulator, kind: str, tokens: int) -> float:
    """Return a layer's prefill attention with what chooses for it, in seconds."""
    model, selector = PRESETS["llama-3.1-8b"], SELECTORS[kind].model_validate({"kind": kind})
    point = _point({"kind": "dense"}, _GQA, "h200-sxm", 1, K)
    costs = CostModel(simulator.profile("h200-sxm"), Case(model, selector, point.routing))
    at = Point(1, tokens, np.array([tokens]))
    thin = selector.has("prefill_density")
    ops = ("prefill_select", "attn_prefill_sparse") if thin else ("attn_prefill",)
    return sum(float(costs.price(op, at).mean_s[0]) for op in ops)


def _prefill(kind: str, tokens: int, over: str = "dense") -> Callable[[Simulator], float]:
    def predict(simulator: Simulator) -> float:
        return _prefill_s(simulator, over, tokens) / _prefill_s(simulator, kind, tokens)

    return predict


def _flash_ms(batch: int, tokens: int) -> Callable[[Simulator], float]:
    """Return dense causal attention of 32 heads and 2 KV heads of 128, forward, on an H100."""
    shape: ModelShape = PRESETS["llama-3.1-8b"].model_copy(update={"kv_heads": 2})

    def predict(simulator: Simulator) -> float:
        point = _point({"kind": "dense"}, _GQA, "h100-sxm", 1, K)
        case = Case(shape, point.selector, point.routing)
        costs = CostModel(simulator.profile("h100-sxm"), case)
        price = costs.price("attn_prefill", Point(1, tokens, np.array([tokens])))
        return 1e3 * batch * float(price.mean_s[0])

    return predict


_QUEST: dict[str, Any] = {"budget_tokens": 2048}
_ROCKET: dict[str, Any] = {"prompt_budget": 2048, "page_tokens": 4, "top_pages": 64}
PREDICTIONS: dict[str, Callable[[Simulator], float]] = {
    "quest-attention": _attention("quest", "rtx-4090", 1, 32 * K, _MHA, **_QUEST),
    "quest-decode": _decode("quest", "rtx-4090", 1, 32 * K, _MHA, **_QUEST),
    "loki-attention": _attention("loki", "a100-sxm-80gb", 16, 3 * K, _MHA_13B, top_tokens=768),
    "ds-attention": _attention("double_sparsity", "a100-sxm-80gb", 8, 16 * K, _MHA, top_tokens=K),
    "ds-decode": _decode("double_sparsity", "a100-sxm-80gb", 8, 16 * K, _MHA, top_tokens=K),
    "hshare-attention": _attention("hshare", "a100-sxm-80gb", 8, 16 * K, _MHA, top_tokens=2 * K),
    "hshare-decode": _decode("hshare", "a100-sxm-80gb", 8, 16 * K, _MHA, top_tokens=2 * K),
    "rocketkv-a100": _decode("rocketkv", "a100-sxm-80gb", 1, 120 * K, **_ROCKET),
    "compkv-attention": _attention("compkv", "h200-sxm", 8, 32 * K),
    "residualkv-decode": _decode("residualkv", "h200-sxm", 8, 32 * K),
    "basiskv-decode": _decode("basiskv", "h200-sxm", 1, 32 * K),
    "rabitqcache-decode": _decode("rabitqcache", "h200-sxm", 8, 32 * K),
    "compact-dense": _prefill("compactattention", 128 * K),
    "compact-flashprefill": _prefill("compactattention", 128 * K, "flashprefill"),
    "quoka-attention": _prefill("quoka", 128 * K),
    "flashprefill-256k": _prefill("flashprefill", 256 * K),
    "infllm-flash-32k": _flash_ms(8, 32 * K),
    "infllm-flash-64k": _flash_ms(4, 64 * K),
    "infllm-flash-128k": _flash_ms(2, 128 * K),
}
