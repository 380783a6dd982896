"""Triton on the CPU: what a test module needs to run kernels in its interpreter."""

import os

import numpy as np
import pytest


def require_interpreter() -> None:
    """Skip the calling module where Triton cannot interpret its kernels."""
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("set TRITON_INTERPRET=1", allow_module_level=True)
    if np.lib.NumpyVersion(np.__version__) >= "2.4.0":
        pytest.skip("Triton's interpreter needs NumPy below 2.4", allow_module_level=True)
