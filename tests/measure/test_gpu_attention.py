"""Decode attention against float64, interpreted on the CPU.

In fp16: the interpreter has no product of BF16.
"""

import pytest
from interpreter import require_interpreter

require_interpreter()
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")

from float64.attention import attention  # noqa: E402
from float64.errors import floats, relative_error  # noqa: E402

from measure.kernels.attention.launch import (  # noqa: E402
    Attention,
    dense_attention,
    random_cache,
    random_pages,
)


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("tokens", [5, 300])
def test_dense(tokens: int, splits: int) -> None:
    cache = random_cache(2, tokens, kv_heads=2, dim=64, dtype=torch.float16)
    cache.context[1] = tokens - 3
    op = Attention(torch.randn(2, 2, 4, 64).half(), cache, splits)
    op()
    assert relative_error(floats(op.result), attention(op)) < 1e-2


@pytest.mark.parametrize("block_tokens", [4, 8, 16, 32])
@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize("tokens", [18, 301])
def test_sparse(tokens: int, splits: int, block_tokens: int) -> None:
    cache = random_cache(
        2, tokens, kv_heads=2, dim=64, block_tokens=block_tokens, dtype=torch.float16
    )
    cache.context[1] = tokens - 3
    pages = random_pages(2, 2, (tokens - 4) // 4, 8)
    op = Attention(torch.randn(2, 2, 4, 64).half(), cache, splits, pages)
    op()
    assert relative_error(floats(op.result), attention(op)) < 1e-2


@pytest.mark.parametrize(
    ("batch", "tokens", "step", "splits"),
    [(1, 100, 64, 1), (1, 4096, 64, 32), (1, 4480, 64, 35), (1, 12288, 64, 64), (17, 600, 128, 1)],
)
def test_dense_takes_two_steps_a_program_where_splits_allow(
    batch: int, tokens: int, step: int, splits: int
) -> None:
    cache = random_cache(batch, tokens, kv_heads=8, dim=16, dtype=torch.float16)
    op = dense_attention(torch.randn(batch, 8, 4, 16).half(), cache, tokens)
    assert (op.tokens_step, op.splits) == (step, splits)
    if tokens < 1000:
        op()
        assert relative_error(floats(op.result), attention(op)) < 1e-2
