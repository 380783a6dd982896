"""The kernels of Quest and exact top-k against float64, interpreted on the CPU.

Routers in fp16: the interpreter has no product of BF16.
"""

import pytest
from interpreter import require_interpreter

require_interpreter()
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")

from float64.selectors import (  # noqa: E402
    check_exact_topk,
    check_quest,
    check_quest_summaries,
)

from measure.kernels.attention.launch import random_cache  # noqa: E402
from measure.kernels.gpu_router.exact_topk.router import ExactTopKRouter  # noqa: E402
from measure.kernels.gpu_router.quest.router import random_router  # noqa: E402
from measure.kernels.gpu_router.quest.summaries import build_summaries  # noqa: E402


def quest(tokens: int, **more: object):
    return random_router(2, tokens, kv_heads=2, dim=64, dtype=torch.float16, **more)


def exact(tokens: int, top: int, spread: float = 1.0):
    cache = random_cache(2, tokens, kv_heads=2, dim=64, dtype=torch.float16)
    queries = spread * torch.randn(2, 2, 4, 64)
    return ExactTopKRouter(queries.half(), cache, tokens, top)


@pytest.mark.parametrize("context_tokens", [3, 17, 300, 2100])
@pytest.mark.parametrize("shared", [False, True])
def test_quest_selection_and_update(context_tokens: int, shared: bool) -> None:
    router = quest(context_tokens, top=20, shared=shared)
    router.context[1] = max(1, context_tokens - 2)
    errors = check_quest(router)
    assert errors["summaries"] == 0
    assert errors["selection"] < 1e-4


def test_quest_pads_and_never_chooses_the_tail_page() -> None:
    router = quest(49, top=5)
    router.context[1] = 48
    router()
    found = router.indices.sort(dim=-1).values
    assert found.shape == (2, 8, 5)
    assert (found[0] == torch.tensor([-1, -1, 0, 1, 2])).all()
    assert (found[1] == torch.tensor([-1, -1, -1, 0, 1])).all()


def test_quest_chooses_among_equal_pages_without_doubling() -> None:
    router = quest(641, top=7)
    router.queries.zero_()
    router()
    found = router.indices.sort(dim=-1).values
    assert (found == torch.arange(7)).all()


@pytest.mark.parametrize("top", [3, 20, 50])
def test_quest_where_few_scores_differ(top: int) -> None:
    """A query of ones and zeros, summaries of whole numbers: ten values for 100 pages."""
    router = quest(1601, top=top)
    router.pool.round_()
    router.queries.zero_()[..., 0] = 1
    assert check_quest(router)["selection"] == 0


@pytest.mark.parametrize("tokens", [1, 16, 300, 1041])
@pytest.mark.parametrize("page_tokens", [1, 4, 16, 21])
def test_quest_summaries_of_a_prompt(tokens: int, page_tokens: int) -> None:
    assert check_quest_summaries(2, tokens, 64, page_tokens) == 0


def test_quest_summaries_of_known_keys() -> None:
    """Ten keys of value 4 - t in pages of 4, two pages a block; the sequence has blocks 1 and 0."""
    keys = (4 - torch.arange(10.0))[None, :, None].expand(1, 10, 16).bfloat16().contiguous()
    pool = torch.full((2, 1, 2, 2, 16), 99, dtype=torch.bfloat16)
    build_summaries(keys, pool, torch.tensor([1, 0], dtype=torch.int32), page_tokens=4)
    assert (pool == pool[..., :1]).all()
    assert pool[..., 0].tolist() == [[[[-5, -4], [99, 99]]], [[[1, 4], [-3, 0]]]]


def test_quests_router_goes_on_with_the_open_page_of_a_prompt() -> None:
    keys = torch.randn(2, 50, 64).half()
    router = quest(50, top=2)
    router.keys[0] = keys[:, 49]
    build_summaries(keys[:, :49].contiguous(), router.pool, router.table[0], router.page_tokens)
    router()
    whole = torch.empty_like(router.pool)
    build_summaries(keys, whole, router.table[0], router.page_tokens)
    block = int(router.table[0, 0])
    assert torch.equal(router.pool[block, :, :4], whole[block, :, :4])


@pytest.mark.parametrize("context_tokens", [3, 150, 2050])
def test_exact_topk_selection(context_tokens: int) -> None:
    router = exact(context_tokens, top=100)
    router.cache.context[1] = max(1, context_tokens - 5)
    assert check_exact_topk(router) < 1e-4


@pytest.mark.parametrize("spread", [0.01, 5.0])
def test_exact_topk_of_flat_and_peaked_scores(spread: float) -> None:
    assert check_exact_topk(exact(1500, top=300, spread=spread)) < 1e-4


def test_exact_topk_pads_where_tokens_are_few() -> None:
    router = exact(6, top=8)
    router()
    found = router.indices.sort(dim=-1).values
    assert (found == torch.tensor([-1, -1, 0, 1, 2, 3, 4, 5])).all()


def test_exact_topk_takes_the_first_of_more_equal_tokens_than_it_lists_at_once() -> None:
    router = exact(4100, top=2500, spread=0.0)
    router()
    found = router.indices.sort(dim=-1).values
    assert (found == torch.arange(2500)).all()
