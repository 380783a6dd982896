"""Kernels of the GPU's decode run and its page summaries, interpreted on the CPU."""

import pytest
from interpreter import require_interpreter

require_interpreter()
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")

from measure.decode.gpu.cache import BLOCK_PAGES, block_tokens, paged, planes  # noqa: E402
from measure.decode.gpu.kernels import rope_append  # noqa: E402
from measure.kernels.attention.launch import random_cache  # noqa: E402
from measure.kernels.flow import gpu as flow  # noqa: E402
from measure.kernels.gpu_router.stepwise.widen import widen  # noqa: E402
from measure.kernels.numbers import rope_table  # noqa: E402
from measure.tables.gpu import handover  # noqa: E402

PAGE, DIM = 4, 64


def test_dense_attention_has_large_blocks_and_pages_are_read_alone() -> None:
    assert (block_tokens("dense"), block_tokens("gpu-target"), block_tokens("cpu-mid")) == (
        32,
        4,
        4,
    )


@pytest.mark.parametrize(("whole_s", "beyond_s"), [(4.02e-3, 2e-5), (3.99e-3, 0.0)])
def test_a_step_beyond_its_layers(
    whole_s: float, beyond_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = [(8, 1.1e-3), (16, 2.1e-3), (32, whole_s)]
    monkeypatch.setattr(handover, "graph_lengths", lambda counts: lengths)
    assert handover.step_beyond_layers_s() == pytest.approx(beyond_s)


def test_new_keys_are_those_that_the_cache_got() -> None:
    cache = random_cache(2, 70, kv_heads=2, dim=DIM)
    cache.context[1] = 33
    table, qkv = torch.as_tensor(rope_table(70, DIM)), torch.randn(2, 12 * DIM).bfloat16()
    queries, fresh = torch.zeros(2, 2, 4, DIM).bfloat16(), torch.zeros(2, 2, DIM).bfloat16()
    rope_append(qkv, table, queries, cache, fresh)
    slots = (cache.context - 1).long()
    blocks = cache.table[torch.arange(2), slots // 32].long()
    assert torch.equal(fresh, cache.keys[blocks, :, slots % 32])
    plain = torch.zeros_like(queries)
    flow.rope_append(qkv, table, plain, cache)
    assert torch.equal(queries, plain)


def codes_of(keys: "torch.Tensor", tokens: int) -> "torch.Tensor":
    """Codes [b, G, 2, D, pages] of the pages of `tokens` tokens, the last may be open."""
    pages = keys[:, :, :tokens].float().split(PAGE, dim=2)
    bounds = [torch.stack((page.amin(2), page.amax(2)), dim=2) for page in pages]
    return torch.stack(bounds, dim=-1).to(torch.float8_e5m2).view(torch.uint8)


@pytest.mark.parametrize("tokens", [20, 21, 23])
def test_a_summary_that_grows_by_keys_is_the_one_that_is_built(tokens: int) -> None:
    keys = torch.randn(2, 2, 24, DIM).half()
    built = planes(keys[:, :, :tokens], 40, PAGE)
    assert torch.equal(built[..., : -(-tokens // PAGE)], codes_of(keys, tokens))
    for token in range(tokens, 24):
        context = torch.full((2,), token + 1, dtype=torch.int32)
        widen(keys[:, :, token].contiguous(), built, context, PAGE)
        pages = token // PAGE + 1
        assert torch.equal(built[..., :pages], codes_of(keys, token + 1))


def test_the_paged_layout_holds_the_same_codes() -> None:
    codes = torch.randint(0, 120, (2, 3, 2, DIM, 128), dtype=torch.uint8)
    table = torch.randperm(8).reshape(2, 4).int()
    pool = paged(codes, table)
    assert pool.shape == (8, 3, BLOCK_PAGES, 2, DIM)
    for sequence, page in ((0, 0), (1, 13), (1, 31)):
        block = int(table[sequence, page // BLOCK_PAGES])
        got = pool[block, :, page % BLOCK_PAGES]
        assert torch.equal(got, codes[sequence, :, :, :, page])
