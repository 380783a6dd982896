"""Prices carried over: from one shape, setting or device to another.

A time is latency (launches, phases that wait for each other) and work (bytes and FLOPs over the
device's peaks, at some efficiency). Work grows with the shape and with slower peaks. Latency does
not shrink with width, nor with bandwidth.
"""

from __future__ import annotations

from statistics import median_low

import numpy as np
from numpy.typing import NDArray

from essim.hardware.forms import FEW_ROWS, GemmForm, GemmWork, Peaks
from essim.hardware.profile import HardwareProfile
from essim.hardware.spec import ProfileSpec
from essim.model.shape import dtype_bytes
from essim.step.kinds import Case, Work

Values = NDArray[np.float64]

# What kernels that move much take of the least time for it, about (attention, large GEMMs).
_OVER_LEAST = 1.1
# Ops whose least time is that of a small kernel in a chain.
_SMALL = ("norm", "rope", "act", "embed")


def busy_s(work: Work, spec: ProfileSpec, case: Case) -> Values:
    """Return the larger of bytes and FLOPs over the peaks of the device that the op runs on."""
    if work.device == "d2h" or work.device == "h2d":
        link = spec.d2h if work.device == "d2h" else spec.h2d
        return np.asarray(work.byte_count / link.bandwidth_bytes_per_s.value)
    if work.device == "cpu":
        share = min(1.0, case.routing.cpu_threads / spec.cpu.cores.value)
        bandwidth = spec.cpu.bandwidth_bytes_per_s.value
        flops = spec.cpu.fp32_flops_per_s.value * share
    else:
        bandwidth = spec.gpu.bandwidth_bytes_per_s.value
        flops = spec.gpu.flops_per_s(work.dtype)
    return np.maximum(np.asarray(work.byte_count) / bandwidth, np.asarray(work.flops) / flops)


def floor_s(work: Work, spec: ProfileSpec, case: Case) -> Values:
    """Return the roofline: the larger of bytes and FLOPs over the peaks, plus launches."""
    busy = busy_s(work, spec, case)
    if work.device == "d2h" or work.device == "h2d":
        link = spec.d2h if work.device == "d2h" else spec.h2d
        return np.asarray(busy + link.flag_latency_s.value)
    return np.asarray(busy + work.launches * spec.gpu.launch_s.value)


def roofline_s(work: Work, profile: HardwareProfile, case: Case) -> Values:
    """Return what an op without any table takes: bytes or FLOPs over the peaks, and its kernels.

    A kernel of a chain takes longer than an empty one: as long as the smallest that were measured
    here or on the profile's reference.
    """
    least = floor_s(work, profile.spec, case)
    if work.device != "gpu":
        return least
    known = profile.tables or (profile.reference.tables if profile.reference else {})
    small = [g.least_s for name in _SMALL if name in known for g in known[name].grids.values()]
    each_s = median_low(small) if small else profile.spec.gpu.launch_s.value
    kernels_s = work.launches * max(0.0, each_s - profile.spec.gpu.launch_s.value)
    return np.asarray(least + kernels_s)


def carried_s(time_s: Values, latency_s: float, before_s: Values, after_s: Values) -> Values:
    """Return a time with other work: `before_s` and `after_s` are the least times of both.

    More work adds to the time; with less, what is beyond the latency shrinks.
    """
    more_s = np.maximum(after_s - before_s, 0.0)
    share = np.minimum(after_s / np.maximum(before_s, 1e-15), 1.0)
    waits_s = np.minimum(time_s, latency_s)
    return np.asarray(waits_s + (time_s - waits_s) * share + _OVER_LEAST * more_s)


def to_other_device_s(
    time_s: Values, latency_s: float, work: Work, case: Case, to: HardwareProfile
) -> Values:
    """Return a time of a profile's reference on the profile's own device."""
    assert to.reference is not None
    before_s = busy_s(work, to.reference.nominal, case)
    after_s = busy_s(work, to.spec, case)
    slower = _clock_ratio(to.reference, to) if work.device == "gpu" else 1.0
    waits_s = np.minimum(time_s, latency_s)
    changed_s = carried_s(time_s, latency_s, before_s, after_s)
    if any(np.any(phase.alone_bytes) for phase in work.phases):
        # Blocks that read one after the other wait for memory: its bandwidth changes nothing until
        # all of them together need more than there is.
        changed_s = np.maximum(time_s, waits_s + _OVER_LEAST * after_s)
    return np.asarray(changed_s + (slower - 1.0) * waits_s)


def _clock_ratio(measured: HardwareProfile, to: HardwareProfile) -> float:
    """Return how much longer latency takes: by the clocks of both GPUs, where both are known."""
    mine, theirs = to.spec.gpu.clock_hz, measured.spec.gpu.clock_hz
    return theirs.value / mine.value if mine and theirs else 1.0


def gemm_price_s(work: Work, measured: HardwareProfile, to: HardwareProfile) -> Values | None:
    """Return the time of a GEMM by the forms of `measured`, on the device of `to`, lane by lane.

    On the device itself it takes no less than a measured GEMM that is smaller in all of n and k,
    and no more than one that is larger. FP8 weights where FP8 has no kernels that were measured,
    or no peak, are read as such and multiplied in 16 bits.
    """
    rows, lane = np.unique(np.asarray(work.axes["rows"], dtype=np.float64), return_inverse=True)
    found = [_gemm_s(work, float(one), measured, to) for one in rows]
    if found[0] is None:
        return None
    return np.asarray(np.array(found)[lane].reshape(np.shape(work.axes["rows"])))


def _gemm_s(
    work: Work, rows: float, measured: HardwareProfile, to: HardwareProfile
) -> float | None:
    """Return what `gemm_price_s` does, for one number of rows."""
    assert work.gemm is not None
    n, k = work.gemm
    weights = dtype_bytes(work.dtype)
    own = work.dtype != "fp8" or to.spec.gpu.fp8_flops_per_s is not None
    forms = measured.gemm_forms(work.dtype, weights) if own else None
    dtype = work.dtype
    if forms is None:
        forms, dtype = measured.gemm_forms("bf16", dtype_bytes("bf16")), "bf16"
    if forms is None:
        return None
    gpu = to.spec.gpu
    peaks = Peaks(gpu.bandwidth_bytes_per_s.value, gpu.flops_per_s(dtype))
    found = _formed_s(forms, n, k, rows, weights, peaks, _clock_ratio(measured, to))
    if measured is to and dtype == work.dtype:
        low, high = _between_s(measured, n, k, rows, dtype)
        found = max(low, min(found, high))
    return found


def _formed_s(
    forms: tuple[GemmForm, GemmForm],
    n: int,
    k: int,
    rows: float,
    weight_bytes: float,
    peaks: Peaks,
    clock_ratio: float,
) -> float:
    """Return seconds by the form for so many rows; more rows never take less than few."""
    few, many = (form.slowed(clock_ratio) for form in forms)
    at_few = GemmWork(n, k, min(rows, FEW_ROWS), weight_bytes)
    found = float(few.time_s(at_few, peaks))
    if rows > FEW_ROWS:
        found = max(found, float(many.time_s(GemmWork(n, k, rows, weight_bytes), peaks)))
    return found


def _between_s(
    profile: HardwareProfile, n: int, k: int, rows: float, dtype: str
) -> tuple[float, float]:
    """Return the longest time of smaller measured GEMMs and the shortest of larger ones."""
    low, high = 0.0, np.inf
    table = profile.tables.get("gemm")
    for key, grid in table.grids.items() if table else ():
        named = dict(zip(table.keys, key, strict=True)) if table else {}
        if named.get("dtype", dtype) != dtype:
            continue
        outputs, inputs = int(named["n"]), int(named["k"])
        lookup = grid.at([rows])
        if not lookup.inside:
            continue
        if outputs <= n and inputs <= k:
            low = max(low, float(lookup.mean_s))
        if outputs >= n and inputs >= k:
            high = min(high, float(lookup.mean_s))
    return low, high
