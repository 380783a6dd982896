"""Attention, GEMMs and the other kernels of a decode layer and of a prefill against float64."""

from __future__ import annotations

import pytest
from cuda import require_cuda

require_cuda()
torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

from float64 import flow  # noqa: E402
from float64.attention import attention  # noqa: E402
from float64.errors import floats, relative_error  # noqa: E402

from measure.kernels.attention.launch import (  # noqa: E402
    Attention,
    dense_attention,
    random_cache,
    random_pages,
    sparse_attention,
)

BF16, ATTENTION, PROXY = 4e-3, 1e-2, 1e-2
# Tensor cores add FP8 products up with few bits more than BF16 has.
FP8 = 1e-2


def attention_error(op: Attention) -> dict[str, float]:
    op()
    return {"result": relative_error(floats(op.result), attention(op))}


@pytest.mark.parametrize("splits", [1, 7, None])
@pytest.mark.parametrize("tokens", [1000, 4097])
def test_dense_attention(tokens: int, splits: int | None, check) -> None:
    queries, cache = torch.randn(2, 8, 4, 128).bfloat16(), random_cache(2, tokens)
    if splits is None:
        op = dense_attention(queries, cache, tokens)
    else:
        op = Attention(queries, cache, splits)
    op.cache.context[1] = tokens - 3
    check(attention_error(op), ATTENTION)


@pytest.mark.parametrize("splits", [None, 3])
@pytest.mark.parametrize("block_tokens", [4, 8, 16, 32])
def test_sparse_attention(block_tokens: int, splits: int | None, check) -> None:
    cache, pages = random_cache(2, 1003, block_tokens=block_tokens), random_pages(2, 8, 250, 32)
    queries = torch.randn(2, 8, 4, 128).bfloat16()
    if splits is None:
        op = sparse_attention(queries, cache, pages)
    else:
        op = Attention(queries, cache, splits, pages)
    check(attention_error(op), ATTENTION)


def test_sparse_attention_with_pages_of_16_tokens(check) -> None:
    queries, cache = torch.randn(2, 8, 4, 128).bfloat16(), random_cache(2, 4003, block_tokens=16)
    op = sparse_attention(queries, cache, random_pages(2, 8, 250, 127), 16)
    check(attention_error(op), ATTENTION)


def test_attention_of_a_prefill(check) -> None:
    check({"result": flow.check_prefill(2, 4, 1037, 128)}, ATTENTION)


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize(("n", "k"), [(6144, 4096), (1024, 14336)])
@pytest.mark.parametrize("rows", [1, 16, 300])
def test_gemm(rows: int, n: int, k: int, fp8: bool, check) -> None:
    check({"result": flow.check_gemm(rows, n, k, fp8=fp8)}, FP8 if fp8 else BF16)


@pytest.mark.parametrize(
    ("error", "bound"),
    [
        (lambda: flow.check_norm(8, 4096), BF16),
        (lambda: flow.check_rope(4, 500, 8, 4, 128), BF16),
        (lambda: flow.check_silu(4, 14336), BF16),
        (lambda: flow.check_ends(4, 128256, 256), 0.0),
        (lambda: flow.check_down(8, 4096, 128), BF16),
        (lambda: flow.check_summary_build(8, 4097, 128, 4), 0.0),
        (lambda: flow.check_stage1(4, 4, 5000, 1024), 1e-2),
    ],
    ids=["norm", "rope", "silu", "embed and sample", "down-projection", "summaries", "stage 1"],
)
def test_an_op(error, bound: float, check) -> None:
    check({"result": error()}, bound)


@pytest.mark.parametrize("batch", [1, 20])
@pytest.mark.parametrize(("width", "full"), [(4096, True), (128, False)])
def test_proxy_query(width: int, full: bool, batch: int, check) -> None:
    check({"query": flow.check_query(batch, width, 8, 4, 128, full)}, PROXY)
