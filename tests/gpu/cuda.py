"""What a test module needs to run kernels on a GPU."""

import pytest


def require_cuda() -> None:
    """Skip the calling module where there is no GPU, or no Triton for its kernels."""
    torch = pytest.importorskip("torch", reason="torch is an extra")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU here", allow_module_level=True)
    pytest.importorskip("triton")
