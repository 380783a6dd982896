"""BF16 as bits, and RoPE's angles: what goes into the CPU router and the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Codes16 = npt.NDArray[np.uint16]


def to_bf16(values: npt.NDArray[np.floating[Any]]) -> Codes16:
    """Round float32 values to BF16 bits, to nearest even."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(codes: Codes16) -> Floats:
    """Values of BF16 bits."""
    return (codes.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def rope_table(
    positions: int, head_dim: int, theta: float = 500000.0, inv_freq: Floats | None = None
) -> npt.NDArray[np.float32]:
    """Cosines and sines of every position, [positions, 2, head_dim / 2].

    ``inv_freq`` [head_dim / 2] replaces ``theta ** (-2 i / head_dim)``, for scaled RoPE.
    """
    if inv_freq is None:
        inv_freq = theta ** (-2.0 * np.arange(head_dim // 2) / head_dim)
    angles = np.arange(positions)[:, None] * inv_freq
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
