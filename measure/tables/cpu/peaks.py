"""What a host can do at most: copies, matrix products, operations on next to nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch


def _best_s(call: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def copy_bytes_per_s(size_bytes: int, repeats: int) -> float:
    """Return bytes read plus written over time of a large copy, over all threads of torch."""
    source = torch.ones(size_bytes // 4, device="cpu")
    target = torch.empty_like(source)
    return 2 * size_bytes / _best_s(lambda: target.copy_(source), repeats)


def matmul_flops_per_s(size: int, repeats: int) -> float:
    """Return the rate of a square fp32 matrix product, over all threads of torch."""
    a = torch.randn(size, size, device="cpu")
    return 2 * float(size) ** 3 / _best_s(lambda: a @ a, repeats)


def dispatch_s(calls: int = 2000) -> float:
    """Return the median time of a torch operation that does nothing much."""
    x = torch.zeros(1, device="cpu")
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        x.add_(1.0)
        times.append(time.perf_counter() - start)
    return float(np.median(times))
