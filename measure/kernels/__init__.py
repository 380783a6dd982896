"""Kernels that are measured, a folder a family; their float64 references are in ``tests``.

A folder's package declares the tables that are of its kernels: ``GPU_TABLES`` and ``CPU_TABLES``
map a table's name to the files, or folders of files, below this one that its hash is of. A folder
that is added is found by itself (`measure.harness.hashes`).
"""

from __future__ import annotations

from measure.kernels import attention, flow
from measure.kernels.gpu_router import fused, stepwise

# What a router beside the main stream costs it is timed with a chain of all of a step.
GPU_TABLES = {
    "gpu_side_slowdown": (
        *("chain.py", flow.GPU, flow.PROJECTION, *attention.SOURCES),
        *(*fused.SOURCES, *stepwise.SOURCES, "gpu_router/stepwise/widen.py"),
    )
}
