"""Work of routing: on the GPU, beside it, and on the CPU with its hand-over."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from essim.methods.selectors import Phase
from essim.step.kinds.case import Case, Device, Kind, Point, Pricer, Work

Values = NDArray[np.float64]


def _update_bytes(case: Case, batch: int) -> float:
    """New keys read, and their pages' summaries, where there are any, read and written."""
    page = case.selector.table_conditions().get("page_tokens", 1)
    summary = case.selector.summary_bytes_per_token_layer(case.model) * page
    if not summary:
        return 0.0
    return batch * (case.model.kv_width * case.model.activation_bytes + 2 * summary)


def _route_axes(case: Case, point: Point) -> dict[str, float | Values]:
    """Batch and context, and where the selector chooses pages how many."""
    axes: dict[str, float | Values] = {"batch": point.batch}
    axes["context_tokens"] = point.context_tokens.astype(np.float64)
    pages = case.selector.table_conditions().get("top_pages")
    return axes if pages is None else axes | {"top_pages": pages}


def _gpu_route(kernel: str) -> Pricer:
    def work(case: Case, point: Point) -> Work:
        stepwise = kernel == "stepwise"
        channels = None if stepwise else case.channels
        route = case.selector.route_work(case.model, point.context_tokens, channels)
        return Work(
            case.selector.router_table if stepwise else "gpu_route_fused",
            axes=_route_axes(case, point),
            keys={"per": case.settings()["per"]},
            byte_count=point.batch * route.read_bytes
            + route.weight_bytes
            + _update_bytes(case, point.batch),
            flops=point.batch * route.flops,
            launches=route.launches if stepwise else 1,
            units=("batch", float(case.model.kv_heads)),
            family="router",
            phases=route.phases if stepwise else _in_one_kernel(route.phases),
            other_s=np.asarray(point.batch * route.device_s + route.link_s, dtype=np.float64),
        )

    return work


def _in_one_kernel(phases: tuple[Phase, ...]) -> tuple[Phase, ...]:
    """Return phases of a fused router: launched once, work and waits as they are."""
    return tuple(replace(phase, launches=int(i == 0)) for i, phase in enumerate(phases))


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
        keys={"projection_rank": case.routing.projection_rank or "full"},
        byte_count=float(weights * case.model.activation_bytes),
        flops=2.0 * weights * point.batch,
        launches=3,
    )


def _gpu_side_slowdown(case: Case, point: Point) -> Work:
    """Floor: the bandwidth that router and projection take, and the fork and join."""
    route = _gpu_route(case.routing.kernel)(case, point)
    taken = route.byte_count + _gpu_proxy(case, point).byte_count
    return Work(
        "gpu_side_slowdown",
        axes=route.axes,
        keys={"kernel": case.routing.kernel},
        byte_count=taken,
        launches=2,
        units=route.units,
        family="router",
    )


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
        axes={"threads": threads, **_route_axes(case, point)},
        byte_count=point.batch * route.read_bytes
        + route.weight_bytes
        + weights * case.model.activation_bytes,
        flops=point.batch * (route.flops + 2.0 * weights),
        launches=0,
        device="cpu",
        units=("batch", float(case.model.kv_heads)),
        family="cpu",
    )


def _cpu_update(case: Case, point: Point) -> Work:
    return Work(
        "cpu_update",
        axes={"threads": case.routing.cpu_threads, "batch": point.batch},
        byte_count=_update_bytes(case, point.batch),
        launches=0,
        device="cpu",
        units=("batch", float(case.model.kv_heads)),
        family="cpu",
    )


def _anchor_bytes(case: Case, batch: int) -> float:
    """What the router needs of the anchor: the query, the latent, or the hidden state."""
    model = case.model
    if not case.projects:
        width = model.q_width
    elif case.down_on_gpu:
        width = case.routing.projection_rank or 0
    else:
        width = model.hidden
    return 1.0 * batch * width * model.activation_bytes


def _key_bytes(case: Case, batch: int) -> float:
    return 1.0 * batch * case.model.kv_width * case.model.activation_bytes


def _index_bytes(case: Case, point: Point) -> Values:
    """Return bytes of the chosen indices of a layer, one lane a context."""
    one = case.selector.index_bytes(case.model, point.context_tokens)
    return np.asarray(point.batch * one, dtype=np.float64)


def _publish(case: Case, point: Point) -> Work:
    """Anchor and the layer's new key to mapped memory, then their flags, by one kernel."""
    payload = _anchor_bytes(case, point.batch) + _key_bytes(case, point.batch)
    return Work("publish", axes={"payload_bytes": payload}, device="constant")


def _await(case: Case, point: Point) -> Work:
    """Spin on the answer's flag, then read the indices from mapped memory, by one kernel."""
    payload = _index_bytes(case, point)
    return Work("await", axes={"payload_bytes": payload}, device="constant")


def _in_flight(table: str, device: Device, moved: float | Values) -> Work:
    """A payload between host and GPU beyond what publish and await take: a pure delay."""
    return Work(table, axes={"payload_bytes": moved}, byte_count=moved, device=device)


def _anchor_d2h(case: Case, point: Point) -> Work:
    return _in_flight("anchor_d2h", "d2h", _anchor_bytes(case, point.batch))


def _key_d2h(case: Case, point: Point) -> Work:
    return _in_flight("key_d2h", "d2h", _key_bytes(case, point.batch))


def _index_h2d(case: Case, point: Point) -> Work:
    return _in_flight("index_h2d", "h2d", _index_bytes(case, point))


ROUTE_KINDS = {
    "gpu_route_stepwise": Kind(_gpu_route("stepwise"), "routing", tables=()),
    "gpu_route_fused": Kind(_gpu_route("fused"), "routing"),
    "gpu_proxy": Kind(_gpu_proxy, "routing"),
    "gpu_side_slowdown": Kind(_gpu_side_slowdown, "routing"),
    "proxy_down": Kind(_proxy_down, "routing"),
    "publish": Kind(_publish, "routing", constant=True),
    "await": Kind(_await, "routing", constant=True),
    "anchor_d2h": Kind(_anchor_d2h, "routing", constant=True),
    "key_d2h": Kind(_key_d2h, "routing", constant=True),
    "index_h2d": Kind(_index_h2d, "routing", constant=True),
    "cpu_route": Kind(_cpu_route, "routing"),
    "cpu_update": Kind(_cpu_update, "routing"),
}
