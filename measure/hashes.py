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
        *("attention", "attention_kernels", "chain", "flow", "mailbox", "projection"),
        *("router_fused", "router_stepwise", "stage1", "stepwise_kernels", "widen"),
    )
    files = [KERNELS / f"{name}.py" for name in names]
    return [*files, *KERNELS.rglob("*.cu"), *KERNELS.rglob("*.cuh")]


# Files, by their stems, whose change makes a table one of older kernels.
_TABLE_SOURCES = {
    **dict.fromkeys(("attn_dense", "attn_sparse"), ("attention", "attention_kernels")),
    **dict.fromkeys(("norm", "act", "embed", "rope", "gemm", "head"), ("flow",)),
    **dict.fromkeys(
        ("attn_prefill", "stage1_select", "summary_build"), ("stage1", "stepwise_kernels")
    ),
    "gpu_route_fused": ("router_fused",),
    "gpu_route_stepwise": ("router_stepwise", "stepwise_kernels"),
    **dict.fromkeys(
        ("gpu_route_quest", "gpu_route_exact_topk"),
        ("router_exact_topk", "router_quest", "select_kernels", "stepwise_kernels"),
    ),
    "summary_build_quest": ("quest_summaries", "stepwise_kernels"),
    **dict.fromkeys(("gpu_proxy", "proxy_down"), ("flow", "projection")),
    **dict.fromkeys(("publish", "await", "summary_d2h"), ("mailbox",)),
    "gpu_side_slowdown": (
        *("chain", "flow", "projection", "attention", "attention_kernels"),
        *("router_fused", "router_stepwise", "stepwise_kernels", "widen"),
    ),
}


def gpu_table_hash(table: str) -> str:
    """Return the source hash of the kernels that a table of a GPU is of."""
    files: list[Path] = []
    for stem in _TABLE_SOURCES[table]:
        cuda = (*KERNELS.glob(f"{stem}.cu"), *(KERNELS / stem).glob("*.cuh"))
        files += [KERNELS / f"{stem}.py", *cuda]
    return source_hash(files)


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
    names = ("loop", "modes", "prefill", "weights")
    files = [*sorted(DECODE.glob("gpu_*.py")), *(DECODE / f"{name}.py" for name in names)]
    return source_hash([*files, *gpu_sources(), *SOURCES])


def stale_tables(profile: HardwareProfile) -> list[str]:
    """Return the tables that were measured with kernels that have changed since."""
    return [name for name, table in profile.tables.items() if table.source_hashes - _current(name)]


def _current(table: str) -> set[str]:
    """Return what rows of a table may say if the kernels they are of are those there are."""
    on_gpu = {gpu_table_hash(table)} if table in _TABLE_SOURCES else set()
    return {flow_hash(), router_hash()} | on_gpu
