"""Hashes of the kernels as they are now, to tell tables of older ones. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from essim.hardware import HardwareProfile
from measure.kernels.build import source_hash
from measure.kernels.router_library import SOURCES, router_hash

KERNELS = Path(__file__).parent / "kernels"
DECODE = Path(__file__).parent / "decode"


def flow_hash() -> str:
    """Return the source hash of the torch main flow."""
    return source_hash([KERNELS / "torch_flow.py"])


def gpu_sources() -> list[Path]:
    """Return the files of the GPU kernels."""
    names = (
        *("attention", "attention_kernels", "chain", "flow", "projection"),
        *("router_fused", "router_stepwise", "stage1", "stepwise_kernels"),
    )
    files = [KERNELS / f"{name}.py" for name in names]
    return [*files, *KERNELS.rglob("*.cu"), *KERNELS.rglob("*.cuh")]


def gpu_hash() -> str:
    """Return the source hash of the GPU kernels."""
    return source_hash(gpu_sources())


def selector_hash() -> str:
    """Return the source hash of the GPU routers of Quest and exact top-k."""
    names = ("router_exact_topk", "router_quest", "select_kernels", "stepwise_kernels")
    return source_hash([KERNELS / f"{name}.py" for name in names])


def summaries_hash() -> str:
    """Return the source hash of Quest's page summaries of a prompt."""
    return source_hash([KERNELS / f"{name}.py" for name in ("quest_summaries", "stepwise_kernels")])


def decode_hash() -> str:
    """Return the source hash of the decode run without a GPU, its kernels included."""
    names = (
        *("cpu_loop", "inline_routing", "kv_cache", "loop", "modes"),
        *("pool_routing", "prefill", "step_ops", "weights"),
    )
    files = [DECODE / f"{name}.py" for name in names]
    return source_hash([*files, KERNELS / "torch_flow.py", KERNELS / "cpu_router.py", *SOURCES])


def gpu_decode_hash() -> str:
    """Return the source hash of the decode run on a GPU, its kernels included."""
    names = ("loop", "modes", "prefill", "weights", "mailbox")
    files = [*sorted(DECODE.glob("gpu_*.py")), *(DECODE / f"{name}.py" for name in names)]
    return source_hash([*files, DECODE / "mailbox.cu", *gpu_sources(), *SOURCES])


def stale_tables(profile: HardwareProfile) -> list[str]:
    """Return the tables that were measured with kernels that have changed since."""
    current = {flow_hash(), gpu_hash(), router_hash(), selector_hash(), summaries_hash()}
    return [name for name, table in profile.tables.items() if table.source_hashes - current]
