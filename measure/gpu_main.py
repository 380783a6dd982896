"""``essim measure`` on a machine with an NVIDIA GPU: every table, the hand-over, the peaks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from essim.model import PRESETS
from essim.selectors.rocketkv import RocketKV
from measure import calibrate, campaign
from measure.cpu import Plan
from measure.cpu_routing import router_benches
from measure.gpu import Launch, require_gpu
from measure.gpu_flow import flow_benches
from measure.gpu_routers import selector_benches
from measure.gpu_tables import chained, side_stream_bench
from measure.gpu_tables import router_benches as gpu_router_benches
from measure.kernels.handover import Channel, empty
from measure.machine import machine_facts, thread_count
from measure.main import number, plain
from measure.table import Progress

# What the CPU router is measured for on the GPU's host: Llama-3.1-8B, as deployed.
ROUTER_PLAN = Plan(
    model=PRESETS["llama-3.1-8b"],
    selector=RocketKV(prompt_budget=4096, page_tokens=4, top_pages=32, kv_block_tokens=4),
    rank=128,
    channels=32,
    threads=(8, 15),
    batches=(1, 4, 8, 16),
    contexts=(4096, 8192, 12288),
    prompts=(),
    selected=(128,),
)
_QUICK_CALLS = 8


def measure_gpu(
    name: str, out: Path, quick: bool, on_progress: Callable[[str, Progress], None]
) -> Path:
    """Measure this machine and return the profile's YAML; see `measure.main.measure_machine`."""
    folder, cores = out / name, thread_count()
    threads = tuple(t for t in ROUTER_PLAN.threads if t < cores) or (max(1, cores - 1),)
    plan = Plan(**(vars(ROUTER_PLAN) | {"threads": threads}))
    routers = router_benches(plan)
    campaign.run(routers, folder, on_progress)
    require_gpu()
    facts = machine_facts(("torch", "triton", "numpy", "essim")) | gpu_facts()
    spec = profile_spec(name, facts, cores)
    benches = [
        *gpu_router_benches(),
        *selector_benches(),
        *flow_benches(),
        side_stream_bench(),
    ]
    # Reading alone is a little faster than a copy, but never by half.
    most = 1.5 * float(spec["gpu"]["bandwidth_bytes_per_s"]["value"].split()[0])
    campaign.run(benches, folder, on_progress, _QUICK_CALLS if quick else None, most)
    spec["tables"] = calibrate.table_specs([*benches, *routers], folder, str(facts["date"]))
    file = out / f"{name}.yaml"
    calibrate.write_profile(file, spec)
    return file


def gpu_facts() -> dict[str, object]:
    """Return what this GPU and its driver are, and its clocks as they are found."""
    import subprocess

    query = (
        "name,driver_version,clocks.sm,clocks.mem,power.draw,temperature.gpu,pcie.link.gen.current"
    )
    done = subprocess.run(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"],
        capture_output=True,
        text=True,
    )
    found = done.stdout.strip().splitlines()
    texts = found[0].split(", ") if found else []
    keys = [f"gpu_{key.replace('.', '_')}" for key in query.split(",")]
    return dict(zip(keys, texts, strict=False)) | {"cuda": torch.version.cuda}


def profile_spec(name: str, facts: dict[str, object], cores: int) -> dict[str, Any]:
    """Return the profile without its tables: peaks, links, hand-over, provenance."""
    date = str(facts["date"])
    properties = torch.cuda.get_device_properties(0)
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    host = host_peaks(cores)
    channel = handover_s()
    to_host, to_gpu = (copy_bytes_per_s(down=down) for down in (True, False))
    flag_us = max(0.0, channel["latency"]) * 1e6 / 2
    half = "half of what a round trip takes beyond publish, await and the CPU's own time"

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
            "publish": number(
                f"{channel['publish'] * 1e6:.4g} us", date, "8 KiB to mapped memory, then a flag"
            ),
            "await": number(
                f"{channel['await'] * 1e6:.4g} us", date, "flag there already, 1 KiB of indices"
            ),
            "host": number("0 us", date, "graph launches back to back", "assumed"),
        },
    }


def median_s(sample: Callable[[], float], calls: int = 30) -> float:
    """Return the median of some samples after a few more."""
    return float(np.median([sample() for _ in range(calls)][calls // 5 :]))


def handover_s() -> dict[str, float]:
    """Return seconds of publish and of await with the answer there, and the flags' latency."""
    source = torch.zeros(8192, dtype=torch.uint8)
    indices = torch.zeros(256, dtype=torch.int32)

    def timed(busy_s: float | None, launches: Callable[[Channel], Sequence[Launch]]) -> float:
        channel = Channel()
        if busy_s is None:
            channel.answered()
        else:
            channel.serve(busy_s)
        chain = launches(channel)
        found = median_s(chained(chain, 256)) * len(chain)
        channel.close()
        return found

    def publish(channel: Channel) -> Sequence[Launch]:
        return [lambda: channel.publish(source)]

    def both(channel: Channel) -> Sequence[Launch]:
        return [lambda: channel.publish(source), lambda: channel.await_answer(indices)]

    busy_s = 50e-6
    published, pair = timed(None, publish), timed(None, both)
    latency = timed(busy_s, both) - pair - busy_s
    return {"publish": published, "await": pair - published, "latency": latency}


def copy_bytes_per_s(*, down: bool, size_bytes: int = 32 << 20) -> float:
    """Return the bandwidth of a bulk copy between GPU and pinned host memory."""
    here = torch.empty(size_bytes, dtype=torch.uint8)
    there = torch.empty(size_bytes, dtype=torch.uint8, device="cpu").pin_memory()
    source, target = (here, there) if down else (there, here)
    return size_bytes / median_s(chained([lambda: target.copy_(source, non_blocking=True)], 8))


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
