"""What every op kind has to do: the table that prices it, the point in that table, and its floor.

The floor of an op is its least bytes over bandwidth or its FLOPs over the peak, plus its launches:
the roofline that prices it where no table does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from essim.model import ModelShape, dtype_bytes
from essim.routing import Routing
from essim.selectors import Selector

Values = NDArray[np.number[Any]]


@dataclass(frozen=True)
class Case:
    """What is priced: a model with a selector (resolved for its workload) and a routing."""

    model: ModelShape
    selector: Selector
    routing: Routing

    @property
    def channels(self) -> int:
        """Channels the scoring reads: the selector's policy, else the routing's, else all."""
        asked = self.selector.channels or self.routing.channels or self.model.head_dim
        return min(asked, self.model.head_dim)

    @property
    def projects(self) -> bool:
        """Whether a proxy query has to be made."""
        return self.routing.early

    @property
    def down_on_gpu(self) -> bool:
        """Whether the main stream computes the projection's first factor before it publishes."""
        low_rank = self.routing.projection_rank is not None
        return self.projects and low_rank and self.routing.down_projection == "gpu"

    def settings(self) -> dict[str, object]:
        """Return every setting a table may be tied to by its ``holds_for``."""
        rank: object = self.routing.projection_rank or "full"
        down = self.routing.down_projection if self.routing.projection_rank else "none"
        return {
            **self.model.model_dump(),
            **self.selector.table_conditions(),
            "channels": self.channels,
            "kernel": self.routing.kernel,
            "projection_rank": rank if self.projects else 0,
            "down_projection": down if self.projects else "none",
        }


@dataclass(frozen=True)
class Point:
    """Where on the axes a price is wanted.

    Attributes
    ----------
    batch
        Sequences in the batch.
    rows
        Rows of the GEMMs: the batch in decode, the prompt in prefill.
    context_tokens
        Tokens in the KV cache, the current one included; int64, one per lane.
    """

    batch: int
    rows: int
    context_tokens: NDArray[np.int64]


Device = Literal["gpu", "cpu", "d2h", "h2d", "constant"]


@dataclass(frozen=True)
class Work:
    """One op's table, its point there, and its floor.

    `flops` and `byte_count` may be one number or one per lane.
    """

    table: str
    axes: Mapping[str, float | Values] = field(default_factory=dict)
    keys: Mapping[str, object] = field(default_factory=dict)
    byte_count: float | Values = 0.0
    flops: float | Values = 0.0
    launches: int = 1
    device: Device = "gpu"


def _gemm(name: str) -> Callable[[Case, Point], Work]:
    def work(case: Case, point: Point) -> Work:
        model = case.model
        n, k = model.gemm_shape(name)
        weights = n * k * dtype_bytes(model.weight_dtype)
        return Work(
            "gemm",
            axes={"rows": point.rows},
            keys={"n": n, "k": k, "dtype": model.weight_dtype},
            byte_count=weights + point.rows * (n + k) * model.activation_bytes,
            flops=2.0 * n * k * point.rows,
        )

    return work


def _elementwise(table: str, width: Callable[[ModelShape], int]) -> Callable[[Case, Point], Work]:
    """Return the work of a memory-bound op that touches `width` activations a row."""

    def work(case: Case, point: Point) -> Work:
        moved = point.rows * width(case.model) * case.model.activation_bytes
        return Work(table, axes={"rows": point.rows}, byte_count=moved)

    return work


def _head(case: Case, point: Point) -> Work:
    """LM head and sampling; in prefill only the last token of a sequence needs it."""
    n, k = case.model.gemm_shape("head")
    weights = n * k * case.model.activation_bytes
    rows = point.batch
    return Work(
        "head",
        axes={"rows": rows},
        byte_count=weights + rows * (2.0 * n + k) * case.model.activation_bytes,
        flops=2.0 * n * k * rows,
        launches=2,
    )


def _attn_dense(case: Case, point: Point) -> Work:
    model, tokens = case.model, point.context_tokens * float(point.batch)
    return Work(
        "attn_dense",
        axes={"batch": point.batch, "context_tokens": point.context_tokens},
        byte_count=tokens * model.kv_bytes_per_token_layer(),
        flops=4.0 * tokens * model.q_width,
        launches=2,
    )


def _attn_sparse(case: Case, point: Point) -> Work:
    model, selector, context = case.model, case.selector, point.context_tokens
    read = selector.read_tokens(context) * point.batch
    attended = selector.attended_tokens(context) * float(point.batch)
    return Work(
        "attn_sparse",
        axes={"batch": point.batch, "selected_tokens": selector.selected_tokens(context)},
        byte_count=read * model.kv_bytes_per_token_layer(),
        flops=4.0 * attended * model.q_width,
    )


def _attn_prefill(case: Case, point: Point) -> Work:
    """Causal attention over the whole prompt: half the square."""
    model, tokens = case.model, float(point.rows)
    return Work(
        "attn_prefill",
        axes={"rows": point.rows},
        byte_count=tokens * (2 * model.q_width + 2 * model.kv_width) * model.activation_bytes,
        flops=2.0 * tokens * tokens * model.q_width,
    )


def _stage1_select(case: Case, point: Point) -> Work:
    """Scores of the last 32 queries against the prompt, softmax, pool, top-k, then compaction.

    Scores in fp32 are written once and read four times (softmax in three passes, then the sum).
    """
    model, tokens = case.model, float(point.rows)
    kept = case.selector.kept_prompt_tokens(point.rows)
    scores = model.heads * 32 * tokens
    keys = tokens * model.kv_bytes_per_token_layer() / 2
    compacted = 2.0 * kept * model.kv_bytes_per_token_layer()
    return Work(
        "stage1_select",
        axes={"rows": point.rows},
        byte_count=keys + 5 * 4 * scores + compacted,
        flops=2.0 * scores * model.head_dim,
        launches=10,
    )


def _summary_build(case: Case, point: Point) -> Work:
    kept = case.selector.kept_prompt_tokens(point.rows)
    keys = kept * case.model.kv_bytes_per_token_layer() / 2
    summaries = kept * case.selector.summary_bytes_per_token_layer(case.model)
    return Work("summary_build", axes={"rows": point.rows}, byte_count=keys + summaries)


def _summary_d2h(case: Case, point: Point) -> Work:
    kept = case.selector.kept_prompt_tokens(point.rows)
    moved = kept * case.selector.summary_bytes_per_token_layer(case.model)
    return Work("summary_d2h", byte_count=moved, device="d2h")


def _update_bytes(case: Case, batch: int) -> float:
    """New keys read, and their pages' summaries read and written."""
    page = case.selector.table_conditions().get("page_tokens", 1)
    summary = case.selector.summary_bytes_per_token_layer(case.model) * page
    return batch * (case.model.kv_width * case.model.activation_bytes + 2 * summary)


def _gpu_route(kernel: str) -> Callable[[Case, Point], Work]:
    def work(case: Case, point: Point) -> Work:
        # The stepwise scan reads min and max of every channel, whatever the filter says.
        both, channels = (2, case.model.head_dim) if kernel == "stepwise" else (1, case.channels)
        route = case.selector.route_work(case.model, point.context_tokens, channels)
        return Work(
            f"gpu_route_{kernel}",
            axes={"batch": point.batch, "context_tokens": point.context_tokens},
            byte_count=both * point.batch * route.read_bytes + _update_bytes(case, point.batch),
            flops=point.batch * route.flops,
            launches=6 if kernel == "stepwise" else 1,
        )

    return work


def _projection_elements(case: Case) -> int:
    """Weights of the whole proxy projection: W_q, or its two low-rank factors."""
    rank = case.routing.projection_rank
    if rank is None:
        return case.model.hidden * case.model.q_width
    return rank * (case.model.hidden + case.model.q_width)


def _gpu_proxy(case: Case, point: Point) -> Work:
    """norm1, the proxy projection and RoPE of the next layer's query, beside the main stream."""
    weights = _projection_elements(case)
    return Work(
        "gpu_proxy",
        axes={"batch": point.batch},
        byte_count=float(weights * case.model.activation_bytes),
        flops=2.0 * weights * point.batch,
        launches=3,
    )


def _gpu_side_slowdown(case: Case, point: Point) -> Work:
    """Floor: the bandwidth that router and projection take, and the fork and join."""
    route = _gpu_route(case.routing.kernel)(case, point)
    taken = route.byte_count + _gpu_proxy(case, point).byte_count
    return Work("gpu_side_slowdown", axes=route.axes, byte_count=taken, launches=2)


def _proxy_down(case: Case, point: Point) -> Work:
    """norm1 and the first low-rank factor, on the main stream."""
    rank = case.routing.projection_rank or 0
    weights = rank * case.model.hidden
    return Work(
        "proxy_down",
        axes={"batch": point.batch},
        byte_count=float(weights * case.model.activation_bytes),
        flops=2.0 * weights * point.batch,
    )


def _cpu_route(case: Case, point: Point) -> Work:
    route = case.selector.route_work(case.model, point.context_tokens, case.channels)
    threads = case.routing.cpu_threads
    weights = 0
    if case.projects:
        weights = _projection_elements(case)
        if case.down_on_gpu:
            weights -= (case.routing.projection_rank or 0) * case.model.hidden
    return Work(
        "cpu_route",
        axes={
            "threads": threads,
            "batch": point.batch,
            "context_tokens": point.context_tokens,
        },
        byte_count=point.batch * route.read_bytes + weights * case.model.activation_bytes,
        flops=point.batch * (route.flops + 2.0 * weights),
        launches=0,
        device="cpu",
    )


def _cpu_update(case: Case, point: Point) -> Work:
    return Work(
        "cpu_update",
        axes={"threads": case.routing.cpu_threads, "batch": point.batch},
        byte_count=_update_bytes(case, point.batch),
        launches=0,
        device="cpu",
    )


def _anchor_d2h(case: Case, point: Point) -> Work:
    """What the router needs of the anchor: the query, the latent, or the hidden state."""
    model = case.model
    if not case.projects:
        width = model.q_width
    elif case.down_on_gpu:
        width = case.routing.projection_rank or 0
    else:
        width = model.hidden
    return Work(
        "anchor_d2h", byte_count=float(point.batch * width * model.activation_bytes), device="d2h"
    )


def _key_d2h(case: Case, point: Point) -> Work:
    moved = point.batch * case.model.kv_width * case.model.activation_bytes
    return Work("key_d2h", byte_count=float(moved), device="d2h")


def _index_h2d(case: Case, point: Point) -> Work:
    moved = point.batch * case.selector.index_bytes(case.model)
    return Work("index_h2d", byte_count=float(moved), device="h2d")


def _constant(name: str, launches: int) -> Callable[[Case, Point], Work]:
    return lambda case, point: Work(name, launches=launches, device="constant")


KINDS: dict[str, Callable[[Case, Point], Work]] = {
    "embed": _elementwise("embed", lambda m: 2 * m.hidden),
    "norm": _elementwise("norm", lambda m: 3 * m.hidden),
    "rope": _elementwise("rope", lambda m: 2 * (m.q_width + 2 * m.kv_width)),
    "act": _elementwise("act", lambda m: 3 * m.ffn),
    "gemm_qkv": _gemm("qkv"),
    "gemm_o": _gemm("o"),
    "gemm_gate_up": _gemm("gate_up"),
    "gemm_down": _gemm("down"),
    "head": _head,
    "host": _constant("host", 0),
    "attn_dense": _attn_dense,
    "attn_sparse": _attn_sparse,
    "attn_prefill": _attn_prefill,
    "stage1_select": _stage1_select,
    "summary_build": _summary_build,
    "summary_d2h": _summary_d2h,
    "gpu_route_stepwise": _gpu_route("stepwise"),
    "gpu_route_fused": _gpu_route("fused"),
    "gpu_proxy": _gpu_proxy,
    "gpu_side_slowdown": _gpu_side_slowdown,
    "proxy_down": _proxy_down,
    "publish": _constant("publish", 1),
    "await": _constant("await", 1),
    "anchor_d2h": _anchor_d2h,
    "key_d2h": _key_d2h,
    "index_h2d": _index_h2d,
    "cpu_route": _cpu_route,
    "cpu_update": _cpu_update,
}
