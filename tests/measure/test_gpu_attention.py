"""Decode attention against float64, interpreted on the CPU.

In fp16: the interpreter has no product of BF16.
"""

import pytest
from interpreter import require_interpreter

require_interpreter()
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")

from measure.kernels import attention_reference  # noqa: E402
from measure.kernels.attention import Attention, random_cache, random_pages  # noqa: E402
from measure.kernels.compare import relative_error  # noqa: E402
from measure.kernels.router_checks import floats  # noqa: E402


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("tokens", [5, 300])
def test_dense(tokens: int, splits: int) -> None:
    cache = random_cache(2, tokens, kv_heads=2, dim=64, dtype=torch.float16)
    cache.context[1] = tokens - 3
    op = Attention(torch.randn(2, 2, 4, 64).half(), cache, splits)
    op()
    assert relative_error(floats(op.result), attention_reference.attention(op)) < 1e-2


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
    assert relative_error(floats(op.result), attention_reference.attention(op)) < 1e-2
