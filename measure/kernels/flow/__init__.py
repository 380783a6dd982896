"""The main flow besides attention: norms, RoPE, activation, GEMMs, projection, stage 1.

``gpu`` has the kernels of a GPU; ``cpu`` has all ops as torch operations, attention, inline routing
and proxy among them.
"""

from __future__ import annotations

from measure.kernels.gpu_router import stepwise

OPS = ("norm", "act", "embed", "rope", "gemm", "head")
PREFILL_OPS = ("attn_prefill", "stage1_select", "summary_build")
GPU, PROJECTION = "flow/gpu.py", "flow/projection.py"

GPU_TABLES = {
    **dict.fromkeys(OPS, (GPU,)),
    **dict.fromkeys(PREFILL_OPS, ("flow/stage1.py", stepwise.KERNELS)),
    **dict.fromkeys(("gpu_proxy", "proxy_down"), (GPU, PROJECTION)),
}
CPU_TABLES = dict.fromkeys(
    (*OPS, *PREFILL_OPS, "attn_dense", "attn_sparse", "gpu_route_stepwise", "proxy_down"),
    ("flow/cpu.py",),
)
