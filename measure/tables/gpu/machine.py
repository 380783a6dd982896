"""``essim measure`` on a machine with an NVIDIA GPU: every table, the hand-over, the peaks."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from measure.harness import campaign
from measure.harness import profile as calibrate
from measure.harness.gpu import require_gpu
from measure.harness.machine import machine_facts, thread_count
from measure.harness.profile import number, plain
from measure.harness.table import Progress
from measure.kernels.handover.mailbox import empty
from measure.tables.cpu.plan import ROUTER_PLAN, Plan
from measure.tables.cpu.routing import router_benches
from measure.tables.gpu.flow import flow_benches
from measure.tables.gpu.handover import (
    copy_bytes_per_s,
    handover_benches,
    round_trip_s,
    step_beyond_layers_s,
)
from measure.tables.gpu.routing import chained, median_s, side_stream_bench
from measure.tables.gpu.routing import router_benches as gpu_router_benches
from measure.tables.gpu.selector_routers import selector_benches

_QUICK_CALLS = 8
_STATE = "clocks.sm,clocks.mem,power.draw,temperature.gpu"


def measure_gpu(
    name: str, out: Path, quick: bool, on_progress: Callable[[str, Progress], None]
) -> Path:
    """Measure this machine and return the profile's YAML; see `measure.main.measure_machine`."""
    folder, cores = out / name, thread_count()
    threads = tuple(t for t in ROUTER_PLAN.threads if t < cores) or (max(1, cores - 1),)
    plan = Plan(**(vars(ROUTER_PLAN) | {"threads": threads}))
    routers = router_benches(plan)
    require_gpu()
    facts = machine_facts(("torch", "triton", "numpy", "essim")) | gpu_facts()
    spec = profile_spec(name, facts, cores)
    benches = [
        *gpu_router_benches(),
        *flow_benches(),
        *handover_benches(),
        *selector_benches(),
        side_stream_bench(),
    ]
    # Reading alone is a little faster than a copy, but never by half.
    most = 1.5 * float(spec["gpu"]["bandwidth_bytes_per_s"]["value"].split()[0])
    campaign.run(benches, folder, on_progress, _QUICK_CALLS if quick else None, most)
    # Last: on a host just started the router was seen to take half as long again for a minute.
    campaign.run(routers, folder, on_progress)
    spec["tables"] = calibrate.table_specs([*benches, *routers], folder, str(facts["date"]))
    file = out / f"{name}.yaml"
    calibrate.write_profile(file, spec)
    return file


def gpu_facts() -> dict[str, object]:
    """Return what this GPU and its driver are, its clocks as they are found, and under load."""
    facts = _smi("name,driver_version,pcie.link.gen.current", "gpu_")
    facts |= _smi(_STATE, "gpu_")
    square = torch.randn(8192, 8192, device="cuda").bfloat16()

    def ask_later() -> dict[str, object]:
        time.sleep(1.0)
        return _smi(_STATE, "gpu_load_")

    with ThreadPoolExecutor(1) as pool:
        loaded = pool.submit(ask_later)
        while not loaded.done():
            for _ in range(20):
                torch.mm(square, square)
            torch.cuda.synchronize()
    return facts | loaded.result() | {"cuda": torch.version.cuda}


def _smi(query: str, prefix: str) -> dict[str, object]:
    """Return what the driver says of the first GPU, by the query's names."""
    done = subprocess.run(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
        capture_output=True,
        text=True,
    )
    found = done.stdout.strip().splitlines()
    texts = found[0].split(", ") if found else []
    keys = [f"{prefix}{key.replace('.', '_')}" for key in query.split(",")]
    return dict(zip(keys, texts, strict=False))


def profile_spec(name: str, facts: dict[str, object], cores: int) -> dict[str, Any]:
    """Return the profile without its tables: peaks, links, hand-over, provenance."""
    date = str(facts["date"])
    properties = torch.cuda.get_device_properties(0)
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    host = host_peaks(cores)
    to_host, to_gpu = (copy_bytes_per_s(down=down) for down in (True, False))
    flag_us = max(0.0, round_trip_s()) * 1e6 / 2
    half = "half of what a ready query's route takes beyond publish, await and the router's median"

    def link(rate: float, what: str) -> dict[str, Any]:
        return {
            "bandwidth_bytes_per_s": number(f"{rate:.4g} B/s", date, f"{what}, 32 MiB, pinned"),
            "flag_latency_s": number(f"{flag_us:.4g} us", date, half),
        }

    return {
        "name": name,
        "description": (
            f"{properties.name} and {facts['cpu']}, measured with Llama-3.1-8B's shapes: cuBLAS "
            "GEMMs, Triton kernels, a fused CUDA router, the C++ CPU router."
        ),
        "gpu": {
            "name": str(properties.name),
            "memory_bytes": number(f"{properties.total_memory} B", date, "as the driver says"),
            "bandwidth_bytes_per_s": number(
                f"{device_copy_bytes_per_s():.4g} B/s", date, "device copy, read + written"
            ),
            "bf16_flops_per_s": number(
                f"{matmul_flops_per_s(torch.bfloat16):.4g} FLOP/s", date, "8192^3 matmul, random"
            ),
            "fp8_flops_per_s": number(
                f"{matmul_flops_per_s(torch.float8_e4m3fn):.4g} FLOP/s", date, "8192^3, random"
            ),
            "launch_s": number(
                f"{median_s(chained([empty], 1024)) * 1e6:.4g} us",
                date,
                "empty kernel inside a CUDA graph",
            ),
        },
        "cpu": {
            "name": str(facts["cpu"]),
            "cores": number(cores, date, "affinity and quota of the process"),
            "memory_bytes": number(f"{memory_bytes} B", date, "as the kernel says"),
            "bandwidth_bytes_per_s": number(f"{host[0]:.4g} B/s", date, "copy, all threads"),
            "fp32_flops_per_s": number(f"{host[1]:.4g} FLOP/s", date, "2048^3 fp32 matmul"),
        },
        "d2h": link(to_host, "GPU to host"),
        "h2d": link(to_gpu, "host to GPU"),
        "provenance": {key: plain(value) for key, value in facts.items()}
        | {"command": f"essim measure --profile {name}"},
        "constants": {
            "host": number(
                f"{step_beyond_layers_s() * 1e6:.4g} us",
                date,
                "a graph of 32 layers beyond what layers take in shorter ones, back to back",
            ),
            **{
                op: number(f"{flag_us:.4g} us", date, f"{half}; publish and await move the payload")
                for op in ("anchor_d2h", "key_d2h", "index_h2d")
            },
        },
    }


def device_copy_bytes_per_s(size_bytes: int = 4 << 30, copies: int = 10) -> float:
    """Return bytes read and written over the time of large copies on the GPU, outside a graph.

    Inside a graph a copy becomes a node of the slower copy engine.
    """
    source = torch.zeros(size_bytes, dtype=torch.uint8)
    target = torch.empty_like(source)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(2):
        start.record()
        for _ in range(copies):
            target.copy_(source)
        end.record()
        end.synchronize()
    return 2 * size_bytes * copies / (start.elapsed_time(end) * 1e-3)


def matmul_flops_per_s(dtype: torch.dtype, size: int = 8192) -> float:
    """Return the rate of a large product on random data."""
    a, b = (torch.randn(size, size).to(torch.bfloat16) for _ in range(2))
    if dtype is torch.bfloat16:
        sample = chained([lambda: torch.mm(a, b.t())], 4)
    else:
        x, w, one = a.to(dtype), b.to(dtype), torch.ones(())
        sample = chained(
            [
                lambda: torch._scaled_mm(
                    x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16
                )
            ],
            4,
        )
    return 2.0 * float(size) ** 3 / median_s(sample)


def host_peaks(cores: int) -> tuple[float, float]:
    """Return the host's copy bandwidth and fp32 rate over all its threads."""
    torch.set_num_threads(cores)
    source = torch.ones(1 << 28, device="cpu")
    target = torch.empty_like(source)
    a = torch.randn(2048, 2048, device="cpu")

    def best_s(call: Callable[[], object]) -> float:
        times = []
        for _ in range(6):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return min(times)

    copied = 2 * source.nbytes / best_s(lambda: target.copy_(source))
    return copied, 2 * 2048.0**3 / best_s(lambda: a @ a)
