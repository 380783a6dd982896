"""Hashes of the kernels as they are now, to tell tables of older ones. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from essim.hardware.profile import HardwareProfile
from measure.kernels.build import code_hash
from measure.kernels.cpu_router.library import SOURCES, router_hash

KERNELS = Path(__file__).parents[1] / "kernels"
DECODE = Path(__file__).parents[1] / "decode"


def flow_hash() -> str:
    """Return the code hash of the torch main flow."""
    return code_hash([KERNELS / "flow" / "cpu.py"])


# Files below `KERNELS`, without their endings, whose change makes a table one of older kernels.
_FLOW, _PROJECTION = "flow/gpu", "flow/projection"
_ATTENTION = ("attention/launch", "attention/kernels")
_STAGE1 = ("flow/stage1", "gpu_router/stepwise/kernels")
_STEPWISE = ("gpu_router/stepwise/router", "gpu_router/stepwise/kernels")
_FUSED = ("gpu_router/fused/router", "gpu_router/fused/router_fused")
_MAILBOX = ("handover/mailbox",)
_SELECTORS = (
    *("gpu_router/exact_topk/router", "gpu_router/quest/router"),
    *("gpu_router/select", "gpu_router/stepwise/kernels"),
)
_TABLE_SOURCES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("attn_dense", "attn_sparse"), _ATTENTION),
    **dict.fromkeys(("norm", "act", "embed", "rope", "gemm", "head"), (_FLOW,)),
    **dict.fromkeys(("attn_prefill", "stage1_select", "summary_build"), _STAGE1),
    "gpu_route_fused": _FUSED,
    "gpu_route_stepwise": _STEPWISE,
    **dict.fromkeys(("gpu_route_quest", "gpu_route_exact_topk"), _SELECTORS),
    "summary_build_quest": ("gpu_router/quest/summaries", "gpu_router/stepwise/kernels"),
    **dict.fromkeys(("gpu_proxy", "proxy_down"), (_FLOW, _PROJECTION)),
    **dict.fromkeys(("publish", "await", "summary_d2h"), _MAILBOX),
    "gpu_side_slowdown": (
        *("chain", _FLOW, _PROJECTION, *_ATTENTION, *_FUSED, *_STEPWISE),
        "gpu_router/stepwise/widen",
    ),
}
_GPU_KERNELS = (
    *("chain", _FLOW, _PROJECTION, *_ATTENTION, *_MAILBOX, *_FUSED, *_STEPWISE),
    *("flow/stage1", "gpu_router/stepwise/widen"),
)


def _files(stems: tuple[str, ...]) -> list[Path]:
    """Return the Python, CUDA and header files of some stems."""
    files: list[Path] = []
    for stem in stems:
        python, cuda = KERNELS / f"{stem}.py", KERNELS / f"{stem}.cu"
        files += [file for file in (python, cuda) if file.exists()]
        files += (KERNELS / stem).glob("*.cuh")
    return files


def gpu_table_hash(table: str) -> str:
    """Return the code hash of the kernels that a table of a GPU is of."""
    return code_hash(_files(_TABLE_SOURCES[table]))


def decode_hash() -> str:
    """Return the code hash of the decode run without a GPU, its kernels included."""
    names = (
        *("cpu/loop", "cpu/inline_routing", "shared/kv_cache", "shared/loop", "shared/modes"),
        *("cpu/pool_routing", "shared/prefill", "cpu/ops", "shared/weights"),
    )
    files = [DECODE / f"{name}.py" for name in names]
    kernels = [KERNELS / "flow" / "cpu.py", KERNELS / "cpu_router" / "router.py", *SOURCES]
    return code_hash([*files, *kernels])


def gpu_decode_hash() -> str:
    """Return the code hash of the decode run on a GPU, its kernels included."""
    names = ("loop", "modes", "prefill", "weights")
    own = [file for file in sorted((DECODE / "gpu").glob("*.py")) if file.name != "__init__.py"]
    files = [*own, *(DECODE / "shared" / f"{name}.py" for name in names)]
    return code_hash([*files, *_files(_GPU_KERNELS), *SOURCES])


def stale_tables(profile: HardwareProfile) -> list[str]:
    """Return the tables that were measured with kernels that have changed since."""
    hashes = {name: table.kernel_hash for name, table in profile.spec.tables.items()}
    return [name for name, made in hashes.items() if made and made not in _current(name)]


def _current(table: str) -> set[str]:
    """Return what a table may say if the kernels that it is of are those there are."""
    on_gpu = {gpu_table_hash(table)} if table in _TABLE_SOURCES else set()
    return {flow_hash(), router_hash()} | on_gpu
