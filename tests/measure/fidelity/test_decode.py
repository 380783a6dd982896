"""Decode in one batch against decode token by token."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

from tiny import tiny_run  # noqa: E402

from measure.fidelity.decode import Setting, decode  # noqa: E402
from measure.fidelity.queries import Maker, Query, truncated  # noqa: E402
from measure.fidelity.selectors import (  # noqa: E402
    ExactTopK,
    Loki,
    Quest,
    RocketKV,
    SinkRecent,
    principal_directions,
)

MIX = ("mid", "in", "mid")


def one_by_one(model, dense, setting: Setting):
    """Decode a token at a time with a growing cache, as a server does."""
    first, sizes = int(dense.positions[0]), model.sizes
    caches = [(k[:, :first], v[:, :first]) for k, v in zip(dense.keys, dense.values, strict=True)]
    last = [queries[:, :1] for queries in dense.queries]
    result = []
    for position in dense.positions.tolist():
        at = torch.tensor([position])
        hidden = model.embed(dense.tokens[at])
        states, previous = (hidden, hidden), hidden
        for index, layer in enumerate(model.checkpoint.layers):
            query = model.query(layer, hidden, at)
            key, value = model.keys_values(layer, hidden, at)
            routed = slice(None)
            kind = MIX[index - 1] if setting.query.kind == "mix" else setting.query.kind
            if kind in ("in", "mid"):
                rank = setting.query.rank
                projection = truncated(layer, rank) if rank else layer
                route = model.query(projection, states[kind == "mid"], at)
            else:
                known = {"previous_token": last[index], "previous_layer": previous}
                route = known.get(kind, query)
            # The newest key is appended after routing: nobody can have looked at it.
            cache = torch.cat((caches[index][0], torch.full_like(key, 1e3)), 1)
            keys = torch.cat((caches[index][0], key), 1)
            values = torch.cat((caches[index][1], value), 1)
            heads = []
            if index:
                choose = setting.selector.choose
                chosen = choose(index, route, cache, at, setting.budget).attended
            for h in range(sizes.heads):
                g = h // sizes.group
                if index:
                    row = chosen[h * len(chosen) // sizes.heads, 0]
                    routed = row.nonzero()[:, 0]
                scores = keys[g, routed] @ query[h, 0] / math.sqrt(sizes.head_dim)
                heads.append(scores.softmax(0) @ values[g, routed])
            caches[index], last[index] = (keys, values), query
            before, previous = hidden, query
            middle = model.after_attention(layer, hidden, torch.stack(heads)[:, None])
            states = (before, middle)
            hidden = model.after_mlp(layer, middle)
        result.append(model.log_probabilities(hidden)[0])
    return torch.stack(result)


SETTINGS = [
    *(
        Setting(RocketKV(4, 4), Query(kind), 12)
        for kind in ("target", "in", "mid", "mix", "previous_token", "previous_layer")
    ),
    Setting(RocketKV(4, 4), Query("mid", 6), 12),
    Setting(RocketKV(4, 4, tail=False), Query("mid"), 12),
    Setting(RocketKV(4, None, sink=True), Query("in"), 8),
    Setting(Quest(8), Query("mid"), 24),
    Setting(ExactTopK(), Query("in"), 10),
    Setting(SinkRecent(2), Query("target"), 9),
]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
def test_a_batch_equals_token_by_token(setting: Setting) -> None:
    model, dense = tiny_run()
    found = decode(Maker(model, MIX), dense, setting).log_probabilities
    expected = one_by_one(model, dense, setting)
    assert found.numpy() == pytest.approx(expected.numpy(), abs=1e-4)


def test_loki_in_a_batch_equals_token_by_token() -> None:
    model, dense = tiny_run()
    loki = Loki([principal_directions(keys, 4) for keys in dense.keys])
    setting = Setting(loki, Query("mid"), 10)
    found = decode(Maker(model), dense, setting).log_probabilities
    assert found.numpy() == pytest.approx(one_by_one(model, dense, setting).numpy(), abs=1e-4)


def test_everything_attended_to_is_dense() -> None:
    model, dense = tiny_run()
    for selector in (RocketKV(4, 4), Quest(8), ExactTopK()):
        made = decode(Maker(model), dense, Setting(selector, Query("in"), 64))
        assert made.log_probabilities.numpy() == pytest.approx(
            dense.log_probabilities.numpy(), abs=1e-4
        )
        assert made.attended_tokens == pytest.approx(56.5)  # the mean of 49..64


def test_the_whole_rank_is_the_whole_projection() -> None:
    model, dense = tiny_run()
    whole, cut, poor = (
        decode(Maker(model), dense, Setting(RocketKV(4, 4), Query("mid", rank), 12))
        for rank in (None, 32, 2)
    )
    assert cut.log_probabilities.numpy() == pytest.approx(whole.log_probabilities.numpy(), abs=1e-4)
    assert not torch.allclose(poor.log_probabilities, whole.log_probabilities, atol=1e-2)
