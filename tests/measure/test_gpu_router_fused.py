"""The fused router without a GPU: its rules, its tuning, that it compiles, its comparisons."""

import shutil
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from float64.errors import selection_error, updated_summary  # noqa: E402
from float64.router import from_e5m2, to_e5m2  # noqa: E402

from essim.errors import InputError  # noqa: E402
from measure.kernels import cuda_build  # noqa: E402
from measure.kernels.gpu_router.fused import router as router_fused  # noqa: E402


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"top": 65}, "top pages"),
        ({"group": 9}, "heads a KV head"),
        ({"channels": 0}, "channels"),
        ({"context_tokens": 60000}, "shared memory"),
    ],
)
def test_refusals(change: dict[str, int], message: str) -> None:
    sizes = {"context_tokens": 1000, "kv_heads": 1} | change
    with pytest.raises(InputError, match=message):
        router_fused.random_router(1, sizes.pop("context_tokens"), **sizes)


@pytest.mark.parametrize("pairs", [1, 8, 16, 32, 64, 128, 256, 1024])
@pytest.mark.parametrize("pages", [1, 127, 1023, 3071, 10000])
def test_tuning_is_launchable(pairs: int, pages: int) -> None:
    tuning = router_fused.default_tuning(pairs, pages)
    assert tuning.cluster in (1, 2, 4, 8)
    assert tuning.threads in (256, 512)
    assert tuning.words in (1, 2, 4)


@pytest.mark.parametrize("name", ["router_fused", "mailbox"])
def test_compiles(name: str, tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc")
    library = cuda_build.compile_cuda(next(cuda_build.FOLDER.rglob(f"{name}.cu")), tmp_path)
    assert library.stat().st_size > 0


def test_selection_error() -> None:
    scores = np.array([0.1, 0.4, 0.2, 0.3])
    assert selection_error(np.array([1, 3]), scores) == 0
    assert selection_error(np.array([1, 2]), scores) == pytest.approx(1 / 3)
    assert selection_error(np.array([1, 1]), scores) == float("inf")
    assert selection_error(np.array([1, -1]), scores) == float("inf")
    assert selection_error(np.array([0, 1, 2, 3, -1]), scores) == 0


def test_updated_summary() -> None:
    before = to_e5m2(np.array([[-1.0, -1.0, -1.0], [1.0, 1.0, 1.0]]))
    after = updated_summary(before, np.array([-2.0, 0.5, 3.0]), opens=False)
    assert from_e5m2(after).tolist() == [[-2, -1, -1], [1, 1, 3]]
    opened = updated_summary(before, np.array([-2.0, 0.5, 3.0]), opens=True)
    assert from_e5m2(opened).tolist() == [[-2, 0.5, 3]] * 2
