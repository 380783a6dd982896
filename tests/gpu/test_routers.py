"""The GPU's routers against float64."""

from __future__ import annotations

import itertools

import pytest
from cuda import require_cuda

require_cuda()
torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

from float64.page_routers import check_fused, check_stepwise  # noqa: E402
from float64.selectors import check_exact_topk, check_quest, check_quest_summaries  # noqa: E402

from measure.kernels.attention.launch import random_cache  # noqa: E402
from measure.kernels.gpu_router.exact_topk.router import ExactTopKRouter  # noqa: E402
from measure.kernels.gpu_router.fused import router as fused  # noqa: E402
from measure.kernels.gpu_router.fused.router import Tuning  # noqa: E402
from measure.kernels.gpu_router.quest import router as quest  # noqa: E402
from measure.kernels.gpu_router.stepwise import router as stepwise  # noqa: E402

TUNINGS = [Tuning(c, t, w) for c, t, w in itertools.product((1, 2, 8, 16), (256, 512), (1, 4))]
TUNINGS += [Tuning(4, 512, 2), Tuning(2, 512, 4, overlap=True)]
SELECTION = 1e-4


@pytest.mark.parametrize("number", range(len(TUNINGS)), ids=lambda i: str(TUNINGS[i]))
def test_fused_with_page_counts_around_tile_and_cluster_borders(number: int, check) -> None:
    tokens = (4096, 517, 6147)[number % 3]
    router = fused.random_router(2, tokens, kv_heads=2, tuning=TUNINGS[number])
    router.context[1] = tokens - 2 - 5 * (number % 2)
    check(check_fused(router), SELECTION)


@pytest.mark.parametrize(
    ("channels", "group", "tokens"), [(128, 4, 2049), (45, 8, 1300), (32, 1, 130), (32, 4, 6)]
)
def test_fused_with_other_channels_and_groups(
    channels: int, group: int, tokens: int, check
) -> None:
    router = fused.random_router(1, tokens, kv_heads=3, group=group, channels=channels, top=32)
    check(check_fused(router), SELECTION)


@pytest.mark.parametrize(
    ("top", "threads", "tokens"),
    [(33, 256, 4096), (48, 512, 6147), (64, 256, 517), (64, 512, 9999)],
)
def test_fused_with_more_pages(top: int, threads: int, tokens: int, check) -> None:
    tuning = Tuning(2, threads, 2)
    router = fused.random_router(2, tokens, kv_heads=2, top=top, tuning=tuning)
    check({"selection": check_fused(router)["selection"]}, SELECTION)


def test_fused_over_a_long_context(check) -> None:
    router = fused.random_router(2, 40000, kv_heads=1, top=64, page_tokens=4)
    check({"selection": check_fused(router)["selection"]}, SELECTION)


@pytest.mark.parametrize("channels", [32, 128])
@pytest.mark.parametrize("tokens", [4097, 12288, 130])
def test_stepwise_with_and_without_the_channel_filter(tokens: int, channels: int, check) -> None:
    router = stepwise.random_router(2, tokens, kv_heads=2, channels=channels)
    router.context[1] = tokens - 2
    check(check_stepwise(router), SELECTION)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("tokens", [6, 2049, 32768, 65530])
def test_quest_by_query_and_by_kv_head(tokens: int, shared: bool, check) -> None:
    router = quest.random_router(2, tokens, kv_heads=2, shared=shared)
    router.context[1] = tokens - 3
    check(check_quest(router), SELECTION)


@pytest.mark.parametrize("page_tokens", [4, 16, 33])
@pytest.mark.parametrize("tokens", [1, 2049, 32768, 40957])
def test_quests_summaries_of_a_prompt(tokens: int, page_tokens: int, check) -> None:
    check({"summaries": check_quest_summaries(8, tokens, 128, page_tokens)}, 0.0)


@pytest.mark.parametrize("scale", [0, 1, 4])
@pytest.mark.parametrize("tokens", [6, 2049, 4096, 32769, 65536])
def test_exact_topk_of_equal_plain_and_peaked_scores(tokens: int, scale: int, check) -> None:
    cache = random_cache(2, tokens, kv_heads=2)
    cache.context[1] = tokens - 3
    queries = (scale * torch.randn(2, 2, 4, 128)).bfloat16()
    check({"selection": check_exact_topk(ExactTopKRouter(queries, cache, tokens, 2048))}, SELECTION)
