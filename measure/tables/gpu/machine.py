"""``essim measure`` on a machine with an NVIDIA GPU: every table, the hand-over, the peaks."""

from __future__ import annotations

import importlib
import os
import pkgutil
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from measure.harness import campaign
from measure.harness import profile as calibrate
from measure.harness.campaign import Bench
from measure.harness.gpu import require_gpu
from measure.harness.machine import machine_facts, thread_count
from measure.harness.profile import number, provenance
from measure.harness.table import Progress
from measure.kernels import gpu_router
from measure.kernels.handover.mailbox import empty
from measure.tables.cpu.peaks import copy_bytes_per_s as host_copy_bytes_per_s
from measure.tables.cpu.peaks import matmul_flops_per_s as host_matmul_flops_per_s
from measure.tables.cpu.plan import ROUTER_PLAN, Plan
from measure.tables.cpu.routing import router_benches
from measure.tables.gpu.attention import attention_benches
from measure.tables.gpu.bench import chained, median_s
from measure.tables.gpu.flow import flow_benches
from measure.tables.gpu.handover import (
    copy_bytes_per_s,
    handover_benches,
    round_trip_s,
    step_beyond_layers_s,
)
from measure.tables.gpu.prefill import prefill_benches
from measure.tables.gpu.proxy import proxy_benches
from measure.tables.gpu.side_stream import side_stream_bench

_QUICK_CALLS = 8
_HALF = "half of what a ready query's route takes beyond publish, await and the router's median"
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
    # Reading alone is a little faster than a copy, but never by half.
    most = 1.5 * float(spec["gpu"]["bandwidth_bytes_per_s"]["value"].split()[0])
    timed = benches()
    campaign.run(timed, folder, on_progress, _QUICK_CALLS if quick else None, most)
    # Last: on a host just started the router was seen to take half as long again for a minute.
    campaign.run(routers, folder, on_progress)
    spec["tables"] = calibrate.table_specs([*timed, *routers], folder, str(facts["date"]))
    file = out / f"{name}.yaml"
    calibrate.write_profile(file, spec)
    return file


def benches() -> list[Bench]:
    """Return the tables of the GPU: those of its routers are where their kernels are."""
    found = pkgutil.iter_modules(gpu_router.__path__, f"{gpu_router.__name__}.")
    tables = [importlib.import_module(f"{at.name}.tables") for at in found if at.ispkg]
    return [
        *(bench for router in tables for bench in router.benches()),
        *proxy_benches(),
        *attention_benches(),
        *flow_benches(),
        *prefill_benches(),
        *handover_benches(),
        side_stream_bench(),
    ]


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
    flag = f"{max(0.0, round_trip_s()) * 1e6 / 2:.4g} us"

    def link(what: str, *, down: bool) -> dict[str, Any]:
        rate = f"{copy_bytes_per_s(down=down):.4g} B/s"
        return {
            "bandwidth_bytes_per_s": number(rate, date, f"{what}, 32 MiB, pinned"),
            "flag_latency_s": number(flag, date, _HALF),
        }

    return {
        "name": name,
        "description": (
            f"{torch.cuda.get_device_properties(0).name} and {facts['cpu']}, measured with "
            "Llama-3.1-8B's shapes: cuBLAS GEMMs, Triton kernels, a fused CUDA router, the C++ "
            "CPU router."
        ),
        "gpu": _gpu(date),
        "cpu": _host(str(facts["cpu"]), cores, date),
        "d2h": link("GPU to host", down=True),
        "h2d": link("host to GPU", down=False),
        "provenance": provenance(name, facts),
        "constants": _constants(flag, date),
    }


def _gpu(date: str) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(0)
    copied = f"{device_copy_bytes_per_s():.4g} B/s"
    bf16, fp8 = (
        f"{matmul_flops_per_s(dtype):.4g} FLOP/s" for dtype in (torch.bfloat16, torch.float8_e4m3fn)
    )
    launch = f"{median_s(chained([empty], 1024)) * 1e6:.4g} us"
    return {
        "name": str(properties.name),
        "memory_bytes": number(f"{properties.total_memory} B", date, "as the driver says"),
        "bandwidth_bytes_per_s": number(copied, date, "device copy, read + written"),
        "bf16_flops_per_s": number(bf16, date, "8192^3 matmul, random"),
        "fp8_flops_per_s": number(fp8, date, "8192^3, random"),
        "launch_s": number(launch, date, "empty kernel inside a CUDA graph"),
    }


def _host(cpu: str, cores: int, date: str) -> dict[str, Any]:
    torch.set_num_threads(cores)
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    copied, flops = host_copy_bytes_per_s(1 << 30, 6), host_matmul_flops_per_s(2048, 6)
    return {
        "name": cpu,
        "cores": number(cores, date, "affinity and quota of the process"),
        "memory_bytes": number(f"{memory_bytes} B", date, "as the kernel says"),
        "bandwidth_bytes_per_s": number(f"{copied:.4g} B/s", date, "copy, all threads"),
        "fp32_flops_per_s": number(f"{flops:.4g} FLOP/s", date, "2048^3 fp32 matmul"),
    }


def _constants(flag: str, date: str) -> dict[str, Any]:
    beyond = f"{step_beyond_layers_s() * 1e6:.4g} us"
    graph = "a graph of 32 layers beyond what layers take in shorter ones, back to back"
    moved = f"{_HALF}; publish and await move the payload"
    flags = ("anchor_d2h", "key_d2h", "index_h2d")
    return {
        "host": number(beyond, date, graph),
        **{op: number(flag, date, moved) for op in flags},
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
    return 2 * size_bytes * copies / (float(start.elapsed_time(end)) * 1e-3)


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
