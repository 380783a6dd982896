"""The main flow's kernels against float64, interpreted on the CPU."""

import pytest
from interpreter import require_interpreter

require_interpreter()
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")

from float64.flow import (  # noqa: E402
    check_down,
    check_ends,
    check_norm,
    check_query,
    check_rope,
    check_silu,
    check_stage1,
    check_summary_build,
)

ROUNDING = 2**-7
"""A unit in the last place of BF16: the interpreter cuts off, where a GPU rounds to nearest."""


def test_norm() -> None:
    assert check_norm(3, 200) < ROUNDING


def test_rope_and_append() -> None:
    assert check_rope(2, 70, 2, 4, 64) < ROUNDING


def test_silu() -> None:
    assert check_silu(2, 700) < ROUNDING


def test_embedding_and_sampling() -> None:
    assert check_ends(3, 5000, 96) == 0


def test_down_projection() -> None:
    assert check_down(3, 200, 6) < ROUNDING


@pytest.mark.parametrize("full", [False, True])
def test_proxy_query(full: bool) -> None:
    """In fp16: the interpreter has no product of BF16."""
    assert check_query(3, 128, 2, 2, 64, full, torch.float16) < 2e-3


@pytest.mark.parametrize("tokens", [64, 70])
def test_summary_build(tokens: int) -> None:
    assert check_summary_build(2, tokens, 32, 4) == 0


def test_stage1() -> None:
    assert check_stage1(2, 2, 600, 128) == 0
