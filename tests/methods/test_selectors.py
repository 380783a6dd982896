import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from essim.methods.selectors import SELECTORS
from essim.methods.selectors.dense import Dense
from essim.methods.selectors.exact_topk import ExactTopK
from essim.methods.selectors.quest import Quest
from essim.methods.selectors.rocketkv import RocketKV
from essim.model.shape import PRESETS

LLAMA = PRESETS["llama-3.1-8b"]
DEPLOYED = RocketKV(prompt_budget=4096, page_tokens=4, top_pages=32)


def at(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int64)


def test_every_selector_is_found_by_its_kind() -> None:
    known = {"dense": Dense, "exact_topk": ExactTopK, "quest": Quest, "rocketkv": RocketKV}
    assert known.items() <= SELECTORS.items()


def test_dense_attends_to_and_reads_everything() -> None:
    assert Dense().attended_tokens(at(1, 50)).tolist() == [1, 50]
    assert Dense().read_tokens(LLAMA, at(1, 50)).tolist() == [1.0, 50.0]
    assert Dense().kept_prompt_tokens(40960) == 40960
    assert Dense().summary_bytes_per_token_layer(LLAMA) == 0.0


def test_rocketkv_attends_to_its_pages_and_the_tail_page() -> None:
    # k p + ((S-1) mod p) + 1 with k p = 128
    assert DEPLOYED.attended_tokens(at(4097, 4098, 4099, 4100, 4101)).tolist() == [
        129,
        130,
        131,
        132,
        129,
    ]
    assert DEPLOYED.attended_tokens(at(5, 128, 129)).tolist() == [5, 128, 129]


def test_only_the_prompt_is_evicted() -> None:
    assert DEPLOYED.kept_prompt_tokens(40960) == 4096
    assert DEPLOYED.kept_prompt_tokens(1000) == 1000


def test_a_summary_is_a_ninth_of_the_pool() -> None:
    per_token = LLAMA.layers * DEPLOYED.summary_bytes_per_token_layer(LLAMA)
    assert per_token == 16384
    assert (LLAMA.layers - 1) * DEPLOYED.summary_bytes_per_token_layer(LLAMA) == 15872
    assert per_token / (per_token + LLAMA.kv_bytes_per_token()) == pytest.approx(1 / 9)


@pytest.mark.parametrize(("block", "expected"), [(4, 132.0), (8, 252), (16, 489), (32, 922)])
def test_scattered_pages_read_whole_kv_blocks(block: int, expected: float) -> None:
    selector = RocketKV(prompt_budget=4096, page_tokens=4, top_pages=32, kv_block_tokens=block)
    tail = 4
    assert selector.read_tokens(LLAMA, at(4096 + tail))[0] == pytest.approx(
        expected + (0 if block == 4 else tail), abs=0.5
    )


def test_64_pages_of_4_select_256_tokens_and_read_up_to_2048() -> None:
    selector = RocketKV(prompt_budget=4096, page_tokens=4, top_pages=64, kv_block_tokens=32)
    assert selector.selected_tokens(at(10**6)).tolist() == [256]
    read = selector.read_tokens(LLAMA, at(4096, 32768, 10**8)) - 4
    assert (np.diff(read) > 0).all()
    assert read[-1] == pytest.approx(2048, abs=0.05)
    assert (read <= 2048).all()


def test_expected_blocks_equal_the_mean_over_every_choice() -> None:
    """6 pages of 2 tokens in blocks of 4 tokens, 2 chosen: count the blocks of each choice."""
    selector = RocketKV(prompt_budget=32, page_tokens=2, top_pages=2, kv_block_tokens=4)
    choices = list(itertools.combinations(range(6), 2))
    mean_blocks = np.mean([len({page // 2 for page in choice}) for choice in choices])
    assert selector.read_tokens(LLAMA, at(13))[0] == pytest.approx(4 * mean_blocks + 1)


@given(
    st.integers(1, 20000),
    st.integers(1, 16),
    st.integers(1, 64),
    st.sampled_from([1, 2, 4, 8]),
)
def test_read_tokens_lie_between_attended_and_whole_blocks(context, page, top, factor) -> None:
    selector = RocketKV(
        prompt_budget=4096, page_tokens=page, top_pages=top, kv_block_tokens=page * factor
    )
    attended = selector.attended_tokens(at(context))[0]
    read = selector.read_tokens(LLAMA, at(context))[0]
    assert attended <= context
    assert attended - 1e-6 <= read <= min(context, top * page * factor + page) + 1e-6


def test_the_policy_by_hand() -> None:
    # c = 32, rho = 0.5, M = 8192/32^0.5 = 1448.15, c2 = 5.657, p = min(5, 3) = 3, r = 68
    selector = RocketKV(budget_tokens=256).resolve(8192, 128, 128)
    assert (selector.prompt_budget, selector.page_tokens, selector.top_pages) == (1320, 3, 42)
    assert selector.channels(32, 128) == 68
    assert RocketKV(budget_tokens=512).resolve(8192, 128, 128).channels(None, 128) == 81
    assert DEPLOYED.channels(None, 128) == 128
    assert DEPLOYED.channels(32, 128) == 32
    assert DEPLOYED.channels(256, 128) == 128


@pytest.mark.parametrize(
    ("budget", "page", "channels"),
    [(2048, 2, 100), (1024, 2, 71), (512, 3, 81), (256, 3, 68), (128, 3, 62)],
)
def test_the_policy_at_8k_is_that_of_the_reference_code(budget, page, channels) -> None:
    selector = RocketKV(budget_tokens=budget).resolve(8192, 1, 128)
    assert (selector.page_tokens, selector.channels(None, 128)) == (page, channels)


def test_a_policy_that_leaves_no_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="leaves a prompt budget of -839 tokens"):
        RocketKV(budget_tokens=256).resolve(4096, 2048, 128)


def test_a_context_below_the_budget_is_kept_whole() -> None:
    selector = RocketKV(prompt_budget=64, page_tokens=16, top_pages=4)
    assert selector.attended_tokens(at(50)).tolist() == [50]
    assert selector.read_tokens(LLAMA, at(50)).tolist() == [50.0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "give budget_tokens, or"),
        ({"prompt_budget": 4096}, "give budget_tokens, or"),
        (
            {"budget_tokens": 256, "prompt_budget": 64, "page_tokens": 4, "top_pages": 2},
            "Give one way",
        ),
        (
            {"prompt_budget": 64, "page_tokens": 4, "top_pages": 2, "kv_block_tokens": 6},
            r"kv_block_tokens \(6\) must be a multiple of page_tokens \(4\)",
        ),
        (
            {"prompt_budget": 64, "page_tokens": 4, "top_pages": 2, "summary_dtype": "fp7"},
            "unknown dtype 'fp7'",
        ),
        ({"prompt_budget": 16, "page_tokens": 4, "top_pages": 2}, "greater than or equal to 32"),
    ],
)
def test_impossible_settings_are_refused(fields, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RocketKV(**fields)
