"""The torch main flow against float64 numpy on fresh random inputs."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

from measure.kernels.flow import cpu as flow  # noqa: E402

B, H, G, D = 2, 6, 3, 16


@pytest.fixture
def rng(request) -> np.random.Generator:
    return np.random.default_rng(abs(hash(request.node.name)) % 2**32)


def tensor(values: np.ndarray):
    return torch.tensor(values, dtype=torch.float32)


def close(found, expected: np.ndarray, tolerance: float = 1e-5) -> None:
    found = found.double().numpy()
    assert found.shape == expected.shape
    error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
    assert error < tolerance


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """One token a sequence: q [b, H, D], k and v [b, G, S, D] -> [b, H D]."""
    k, v = (np.repeat(x, H // G, axis=1) for x in (k, v))
    weights = softmax(np.einsum("bhd,bhsd->bhs", q, k) / np.sqrt(D))
    return np.einsum("bhs,bhsd->bhd", weights, v).reshape(len(q), -1)


def test_norm_gemm_and_activation(rng) -> None:
    x, w = rng.standard_normal((3, 24)), rng.standard_normal((8, 24))
    close(flow.gemm(tensor(x), tensor(w)), x @ w.T)
    g = rng.standard_normal(24)
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * g
    close(flow.rms_norm(tensor(x), tensor(g)), expected)
    gate, up = x[:, :12], x[:, 12:]
    close(flow.silu_mul(tensor(x)), gate / (1 + np.exp(-gate)) * up)


def test_rope_turns_halves_and_appends(rng) -> None:
    qkv = rng.standard_normal((B, (H + 2 * G) * D))
    keys, values = torch.full((B, G, 9, D), -7.0), torch.full((B, G, 9, D), -7.0)
    position = 5
    query = flow.rope_append(tensor(qkv), flow.rope_table(9, D), keys, values, position)
    heads = qkv.reshape(B, -1, D)
    angle = position * 10000.0 ** (-np.arange(0, D, 2) / D)
    first, second = heads[..., : D // 2], heads[..., D // 2 :]
    turned = np.concatenate(
        (
            first * np.cos(angle) - second * np.sin(angle),
            second * np.cos(angle) + first * np.sin(angle),
        ),
        axis=-1,
    )
    close(query, turned[:, :H])
    close(keys[:, :, position], turned[:, H : H + G])
    close(values[:, :, position], heads[:, H + G :])
    assert (keys[:, :, [0, 4, 6]] == -7).all()


def test_dense_attention_reads_only_the_tokens_asked_for(rng) -> None:
    q = rng.standard_normal((B, H, D))
    k, v = rng.standard_normal((2, B, G, 33, D))
    close(
        flow.attend(tensor(q), tensor(k), tensor(v), 20), attention(q, k[:, :, :20], v[:, :, :20])
    )


@pytest.mark.parametrize("tokens", [21, 24])
def test_sparse_attention_reads_its_pages_and_the_tail(rng, tokens: int) -> None:
    q = rng.standard_normal((B, H, D))
    k, v = rng.standard_normal((2, B, G, 28, D))
    pages = np.array([[rng.permutation(5)[:3] for _ in range(G)] for _ in range(B)])
    found = flow.attend_pages(tensor(q), tensor(k), tensor(v), torch.tensor(pages), 4, tokens)
    expected = np.empty((B, H * D))
    tail = np.arange((tokens - 1) // 4 * 4, tokens)
    for b in range(B):
        for g in range(G):
            at = np.concatenate(((pages[b, g][:, None] * 4 + np.arange(4)).ravel(), tail))
            for h in range(g * H // G, (g + 1) * H // G):
                weights = softmax(k[b, g, at] @ q[b, h] / np.sqrt(D))
                expected[b, h * D : (h + 1) * D] = weights @ v[b, g, at]
    close(found, expected)


def test_with_every_page_sparse_equals_dense(rng) -> None:
    q = tensor(rng.standard_normal((B, H, D)))
    k, v = (tensor(rng.standard_normal((B, G, 23, D))) for _ in range(2))
    pages = torch.arange(5).expand(B, G, -1)
    sparse = flow.attend_pages(q, k, v, pages, 4, 23)
    close(sparse, flow.attend(q, k, v, 23).double().numpy())


def test_updating_a_summary_equals_building_it(rng) -> None:
    keys = tensor(rng.standard_normal((B, G, 24, D)))
    built = flow.build_summary(keys, 4)
    grown = torch.zeros(B, G, 6, 2, D).to(flow.SUMMARY_DTYPE)
    for position in range(24):
        flow.update_summary(grown, keys[:, :, position], position, 4)
    assert (built.float() == grown.float()).all()
    whole = keys.view(B, G, 6, 4, D)
    assert (built[:, :, :, 0].float() == whole.amin(3).to(flow.SUMMARY_DTYPE).float()).all()


def reference_route(q, summary, pages: int, top: int, channels: int) -> list[list[np.ndarray]]:
    """Float64 shares of every page, per sequence and KV head, as the method states it."""
    shares = np.zeros((B, G, pages))
    for b in range(B):
        for g in range(G):
            group = q[b, g * H // G : (g + 1) * H // G]
            best = np.argsort(-np.abs(group).sum(0), kind="stable")[:channels]
            side = np.where(group.sum(0)[best] > 0, 1, 0)
            for head in group:
                bound = summary[b, g, :pages, side, best]
                score = head[best] @ bound
                kept = np.abs(head[best]).sum() / np.abs(head).sum()
                shares[b, g] += softmax(score / np.sqrt(D * kept))
    return shares


@pytest.mark.parametrize(("channels", "pages"), [(4, 11), (D, 9)])
def test_the_router_chooses_the_pages_of_the_reference(rng, channels: int, pages: int) -> None:
    q = rng.standard_normal((B, H, D))
    keys = tensor(rng.standard_normal((B, G, 4 * 12, D)))
    summary = flow.build_summary(keys, 4)
    found = flow.route(tensor(q), summary, pages, 3, channels).numpy()
    shares = reference_route(q, summary.double().numpy(), pages, 3, channels)
    for b in range(B):
        for g in range(G):
            kth = np.sort(shares[b, g])[-3]
            assert len(set(found[b, g])) == 3
            assert (shares[b, g][found[b, g]] >= kth * (1 - 1e-5)).all()


def test_stage_1_keeps_the_window_and_the_best_pooled(rng) -> None:
    tokens, budget = 200, 80
    q = rng.standard_normal((1, H, flow.WINDOW_TOKENS, D))
    k = rng.standard_normal((1, G, tokens, D))
    kept = flow.stage1_select(tensor(q), tensor(k), budget).numpy()
    assert kept.shape == (1, G, budget)
    before = tokens - flow.WINDOW_TOKENS
    for g in range(G):
        rows = q[0, g * H // G : (g + 1) * H // G].reshape(-1, D)
        mass = softmax(rows @ k[0, g, :before].T / np.sqrt(D)).sum(0)
        half = flow.POOL_TOKENS // 2
        pooled = np.array([mass[max(0, i - half) : i + half + 1].max() for i in range(before)])
        kth = np.sort(pooled)[-(budget - flow.WINDOW_TOKENS)]
        chosen = kept[0, g, : budget - flow.WINDOW_TOKENS]
        assert (np.diff(kept[0, g]) > 0).all()
        assert (pooled[chosen] >= kth * (1 - 1e-5)).all()
        assert kept[0, g, -flow.WINDOW_TOKENS :].tolist() == list(range(before, tokens))


def test_prefill_attention_is_causal(rng) -> None:
    q = rng.standard_normal((1, H, 7, D))
    k, v = rng.standard_normal((2, 1, G, 7, D))
    found = flow.prefill_attention(tensor(q), tensor(k), tensor(v))
    rows = [attention(q[:, :, i], k[:, :, : i + 1], v[:, :, : i + 1]) for i in range(7)]
    close(found, np.stack(rows, axis=1))
