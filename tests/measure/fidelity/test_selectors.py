"""Selectors against loops in float64 that follow their descriptions step by step."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

from measure.fidelity.selectors import (  # noqa: E402
    ExactTopK,
    Loki,
    Quest,
    RocketKV,
    Selector,
    SinkRecent,
    principal_directions,
)

H, G, D, S = 4, 2, 8, 37
GROUP = H // G
POSITIONS = torch.tensor([16, 21, 30, 31, 36])


@pytest.fixture
def case() -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(5)
    query = torch.randn(H, len(POSITIONS), D, generator=source)
    return query, torch.randn(G, S, D, generator=source)


def attended(selector: Selector, case, budget: int) -> list[list[set[int]]]:
    """Return the tokens of each query head and position."""
    query, keys = case
    mask = selector.choose(0, query, keys, POSITIONS, budget).attended
    mask = mask.repeat_interleave(H // len(mask), dim=0)
    return [[set(row.nonzero()[:, 0].tolist()) for row in head] for head in mask]


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


def hsa(case, group: int, row: int, *, page: int, r: int, tail: bool, top: int) -> set[int]:
    """RocketKV's second stage for one KV head and position."""
    position = int(POSITIONS[row])
    queries = case[0][group * GROUP : (group + 1) * GROUP, row].double().numpy()
    keys = case[1][group].double().numpy()
    channels = np.argsort(-np.abs(queries).sum(0))[:r]
    signs = queries.sum(0)
    starts = range(0, position, page)
    if tail:
        starts = range(0, position // page * page, page)
    total = np.zeros(len(starts))
    for q in queries:
        scores = []
        for start in starts:
            rows = keys[start : min(start + page, position)]
            read = np.where(signs > 0, rows.max(0), rows.min(0))
            scores.append((q * read)[channels].sum())
        scale = np.sqrt(D * np.abs(q[channels]).sum() / np.abs(q).sum())
        total += softmax(np.array(scores) / scale)
    chosen = [starts[i] for i in np.argsort(-total)[:top]]
    tokens = {t for start in chosen for t in range(start, min(start + page, position))}
    kept = range(position // page * page if tail else position, position + 1)
    return tokens | set(kept)


@pytest.mark.parametrize("tail", [True, False])
@pytest.mark.parametrize("channels", [None, 3])
def test_rocketkv_follows_its_steps(case, tail: bool, channels: int | None) -> None:
    found = attended(RocketKV(4, channels, tail), case, 12)
    for head in range(H):
        for row in range(len(POSITIONS)):
            expected = hsa(case, head // GROUP, row, page=4, r=channels or D, tail=tail, top=3)
            assert found[head][row] == expected


def test_rocketkv_attends_to_its_pages_and_the_newest(case) -> None:
    counts = [len(tokens) for tokens in attended(RocketKV(4, 4), case, 12)[0]]
    # k p + ((S-1) mod p) + 1 with S - 1 the position.
    assert counts == [12 + 1, 12 + 2, 12 + 3, 12 + 4, 12 + 1]


def test_rocketkv_keeps_the_first_page_if_asked(case) -> None:
    without, kept = (attended(RocketKV(4, 4, sink=sink), case, 8) for sink in (False, True))
    first = {0, 1, 2, 3}
    assert all(first <= tokens for head in kept for tokens in head)
    assert not all(first <= tokens for head in without for tokens in head)
    assert [len(tokens) for tokens in kept[0]] == [len(tokens) for tokens in without[0]]


def test_quest_takes_upper_bounds_by_query_head(case) -> None:
    found = attended(Quest(4), case, 12)
    query, keys = (x.double().numpy() for x in case)
    for head in range(H):
        for row, position in enumerate(POSITIONS.tolist()):
            q, own = query[head, row], keys[head // GROUP]
            pages = range(position // 4)
            bounds = [
                np.maximum(q * own[4 * p : 4 * p + 4].max(0), q * own[4 * p : 4 * p + 4].min(0))
                for p in pages
            ]
            best = np.argsort([-bound.sum() for bound in bounds])[:2]
            expected = {4 * int(p) + i for p in best for i in range(4)}
            assert found[head][row] == expected | set(range(position // 4 * 4, position + 1))


def test_exact_top_k_takes_the_largest_attention_of_a_group(case) -> None:
    found = attended(ExactTopK(), case, 5)
    query, keys = (x.double().numpy() for x in case)
    for group in range(G):
        for row, position in enumerate(POSITIONS.tolist()):
            own = query[group * GROUP : (group + 1) * GROUP, row]
            weights = sum(softmax(keys[group, :position] @ q / np.sqrt(D)) for q in own)
            expected = set(np.argsort(-weights)[:5].tolist()) | {position}
            assert found[group * GROUP][row] == found[group * GROUP + 1][row] == expected


def test_loki_with_all_directions_takes_the_largest_scores(case) -> None:
    bases = [principal_directions(case[1], D)]
    found = attended(Loki(bases), case, 6)
    for row, position in enumerate(POSITIONS.tolist()):
        scores = case[1][0, :position].double().numpy() @ case[0][0, row].double().numpy()
        assert found[0][row] == set(np.argsort(-scores)[:6].tolist()) | {position}


def test_principal_directions_find_the_axis_that_keys_lie_along() -> None:
    keys = torch.zeros(1, 10, 3)
    keys[0, :, 1] = torch.arange(10.0)
    keys[0, :, 2] = 0.1
    first = principal_directions(keys, 1)[0, :, 0].abs()
    assert first.tolist() == pytest.approx([0.0, 1.0, 0.0], abs=0.03)


def test_sink_and_recent_need_no_query(case) -> None:
    assert attended(SinkRecent(2), case, 6)[3] == [
        {0, 1, *range(position - 4, position + 1)} for position in POSITIONS.tolist()
    ]


@pytest.mark.parametrize(
    "selector",
    [RocketKV(4, 3), RocketKV(4, 3, tail=False), Quest(4), ExactTopK(), SinkRecent(2)],
    ids=lambda selector: repr(selector),
)
def test_keys_after_a_position_change_nothing(case, selector: Selector) -> None:
    query, keys = case
    before = attended(selector, case, 12)
    for row, position in enumerate(POSITIONS.tolist()):
        # The current token's key does not exist when a proxy chooses.
        later = keys.clone()
        later[:, position:] = 100.0
        assert [head[row] for head in attended(selector, (query, later), 12)] == [
            head[row] for head in before
        ]
        assert all(max(head[row]) == position for head in before)


@pytest.mark.parametrize(
    "selector", [RocketKV(4, 3), RocketKV(4, 3, tail=False), Quest(4), ExactTopK(), SinkRecent(2)]
)
def test_a_budget_of_everything_attends_to_everything(case, selector: Selector) -> None:
    for head in attended(selector, case, 64):
        assert head == [set(range(position + 1)) for position in POSITIONS.tolist()]
