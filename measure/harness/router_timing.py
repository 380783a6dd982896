"""Seconds of the CPU router's calls, from request to answer, timed beside its workers."""

from __future__ import annotations

import ctypes
import os
import time

import numpy as np
import numpy.typing as npt

from measure.kernels.cpu_router.abi import ROUTE_REQUEST, SPANS
from measure.kernels.cpu_router.router import Router

# Kinds of call: of a query, of a latent, and the same with only their reads.
QUERY, LATENT, READ_QUERY, READ_LATENT = 0, 1, 3, 4


def sample(
    router: Router, kind: int, tokens: int, gap_s: float, calls: int, update: bool = False
) -> npt.NDArray[np.float64]:
    """Seconds of each call, [calls]; each layer once as warm-up, four times over."""
    seconds = np.empty(calls)
    code = router.lib.essim_bench(
        router.pool,
        kind,
        tokens,
        int(update),
        ctypes.c_double(gap_s),
        4 * router.shape.layers,
        calls,
        ctypes.c_void_p(seconds.ctypes.data),
    )
    if code != 0:
        raise RuntimeError(f"router bench failed with {code}")
    return seconds


def spans_s(router: Router, last: int, count: int) -> npt.NDArray[np.float64]:
    """When the first worker saw and the last one ended the `count` routes up to ticket `last`.

    Returns
    -------
    Seconds of one clock, [count, 2]; at most `SPANS` routes are kept.
    """
    found = np.empty((SPANS, 2), np.int64)
    router.lib.essim_spans(router.pool, ctypes.c_void_p(found.ctypes.data))
    return found[np.arange(last - count + 1, last + 1) % SPANS].astype(np.float64) / 1e9


def last_ticket(router: Router) -> int:
    """Return the sequence of the last route that was asked for, by whoever asked."""
    address = router.lib.essim_mailbox(router.pool) + ROUTE_REQUEST
    return ctypes.c_uint32.from_address(address).value


def sample_updates(
    router: Router, tokens: int, gap_s: float, calls: int
) -> npt.NDArray[np.float64]:
    """Seconds of each update, from request to answer, [calls]: layer after layer, as in a step.

    The token's place in its page changes from call to call, since the one that completes a page,
    the only one that writes to the summaries, takes many times as long as the others. A route
    from another latent lies between two updates, so that summaries are as cold as a decode step
    finds them. What a call through ctypes takes by itself is subtracted. The caller keeps to the
    CPU that the workers leave free, where they do.
    """
    s, lib = router.shape, router.lib
    keys = np.full((s.batch, s.kv_heads, s.head_dim), 0x3F80, np.uint16)
    places = [np.full(s.batch, tokens - s.page_tokens + i, np.int32) for i in range(s.page_tokens)]
    wait, key = ctypes.c_double(10.0), ctypes.c_void_p(keys.ctypes.data)
    # BF16 from 1 to 2, of either sign: else all queries would choose much the same channels.
    rng, size = np.random.default_rng(0), (97, s.batch, s.rank)
    latents = rng.integers(0x3F80, 0x4000, size, np.uint16) | rng.choice([0, 0x8000], size)
    latents = latents.astype(np.uint16)
    cpus = os.sched_getaffinity(0)
    if len(cpus) > router.threads:
        os.sched_setaffinity(0, {min(cpus)})
    seconds, empty = np.empty(calls), []
    try:
        for call in range(-s.layers, calls):
            layer, at = 1 + call % (s.layers - 1), places[call % s.page_tokens]
            router.route(layer, "latent", latents[call % len(latents)], at, at + 1)
            place = ctypes.c_void_p(at.ctypes.data)
            _idle(gap_s)
            start = time.perf_counter()
            code = lib.essim_update(router.pool, layer - 1, key, place, wait)
            end = time.perf_counter()
            lib.essim_answered(router.pool, ctypes.c_uint32(0))
            empty.append(time.perf_counter() - end)
            if code != 0:
                raise RuntimeError(f"router update failed with {code}")
            if call >= 0:
                seconds[call] = end - start
    finally:
        os.sched_setaffinity(0, cpus)
    return np.maximum(seconds - np.median(empty), 1e-9)


def _idle(gap_s: float) -> None:
    end = time.perf_counter() + gap_s
    while time.perf_counter() < end:
        pass
