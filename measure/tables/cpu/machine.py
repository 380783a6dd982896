"""``essim measure`` on a machine without a GPU: every table, the hand-over, the peaks."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from essim.errors import AbsentError
from essim.methods.selectors.rocketkv import RocketKV
from essim.model.shape import PRESETS
from measure.harness import campaign
from measure.harness import profile as calibrate
from measure.harness.machine import machine_facts, thread_count
from measure.harness.profile import number, provenance
from measure.harness.table import Progress
from measure.tables.cpu.flow import flow_benches
from measure.tables.cpu.peaks import copy_bytes_per_s, dispatch_s, matmul_flops_per_s
from measure.tables.cpu.plan import Plan
from measure.tables.cpu.routing import hand_over_s, routing_benches

PLAN = Plan(
    model=PRESETS["smollm2-135m"].model_copy(update={"weight_dtype": "fp32", "kv_dtype": "fp32"}),
    selector=RocketKV(prompt_budget=512, page_tokens=4, top_pages=16, kv_block_tokens=4),
    rank=64,
    channels=16,
    threads=(1,),
    batches=(1, 2, 3, 4),
    contexts=(256, 512, 768, 1024, 1536, 2048),
    prompts=(64, 128, 256, 512, 1024),
    selected=(64,),
)
QUICK = replace(PLAN, batches=(1, 4), contexts=(512, 2048), prompts=(64, 512))
_QUICK_CALLS = 20
_ONE_CORE = "one core, by torch"


def measure_cpu(
    name: str, out: Path, quick: bool, on_progress: Callable[[str, Progress], None]
) -> Path:
    """Measure a machine without a GPU; see `measure.main.measure_machine`."""
    threads = thread_count()
    if threads < 2:
        raise AbsentError(
            "one core cannot play the main stream and the router at once",
            "Give this process two cores or more",
        )
    torch.set_num_threads(1)
    plan = QUICK if quick else PLAN
    folder = out / name
    benches = [*routing_benches(plan), *flow_benches(plan)]
    campaign.run(benches, folder, on_progress, _QUICK_CALLS if quick else None)
    facts = machine_facts(("torch", "numpy", "essim"))
    spec = profile_spec(name, plan, facts, threads)
    spec["tables"] = calibrate.table_specs(benches, folder, str(facts["date"]))
    file = out / f"{name}.yaml"
    calibrate.write_profile(file, spec)
    return file


def profile_spec(name: str, plan: Plan, facts: dict[str, object], threads: int) -> dict[str, Any]:
    """Return the profile without its tables: peaks, links, constants, provenance."""
    date = str(facts["date"])
    bandwidth, flops = copy_bytes_per_s(256 << 20, 5), matmul_flops_per_s(1024, 20)
    rate = f"{bandwidth:.4g} B/s"
    link = {
        "bandwidth_bytes_per_s": number(rate, date, "copy within memory, one core"),
        "flag_latency_s": number("0 us", date, "inside the measured router times"),
    }
    return {
        "name": name,
        "description": (
            f"{facts['cpu']}: torch on one core plays the GPU's main stream in fp32, the C++ "
            "router runs on the other cores. For going through measure and simulate without "
            "a GPU."
        ),
        "gpu": {"name": "torch on one core"} | _memory(rate, date) | _main_core(flops, date),
        "cpu": {"name": str(facts["cpu"])}
        | _memory(rate, date)
        | _router_cores(flops, threads - 1, date),
        "d2h": link,
        "h2d": link,
        "provenance": provenance(name, facts),
        "constants": _constants(plan, date),
    }


def _memory(rate: str, date: str) -> dict[str, Any]:
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    return {
        "memory_bytes": number(f"{half} B", date, "half of the machine's memory", "assumed"),
        "bandwidth_bytes_per_s": number(rate, date, f"copy, {_ONE_CORE}"),
    }


def _main_core(flops: float, date: str) -> dict[str, Any]:
    matmul = f"fp32 matmul of 1024^3, {_ONE_CORE}"
    launch = f"{dispatch_s() * 1e6:.4g} us"
    return {
        "bf16_flops_per_s": number(f"{flops:.4g} FLOP/s", date, matmul),
        "launch_s": number(launch, date, "a torch operation on one element"),
    }


def _router_cores(flops: float, cores: int, date: str) -> dict[str, Any]:
    matmul = f"fp32 matmul of 1024^3, {_ONE_CORE}, x cores"
    return {
        "cores": number(cores, date, "cores left to the router"),
        "fp32_flops_per_s": number(f"{flops * cores:.4g} FLOP/s", date, matmul),
    }


def _constants(plan: Plan, date: str) -> dict[str, Any]:
    publish_s, take_s = hand_over_s(plan)
    return {
        "publish": number(f"{publish_s * 1e6:.4g} us", date, "latent into the router's mailbox"),
        "await": number(f"{take_s * 1e6:.4g} us", date, "taking indices that are there"),
        "host": number("0 us", date, "the loop's own time is inside the operations", "assumed"),
    }
