"""Measures of a choice: what they are where the answer is known."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

from tiny import tiny_run  # noqa: E402

from measure.fidelity.choice import measure_choices  # noqa: E402
from measure.fidelity.decode import Setting  # noqa: E402
from measure.fidelity.queries import Maker, Query  # noqa: E402
from measure.fidelity.selectors import ExactTopK, Quest, RocketKV, SinkRecent  # noqa: E402

QUERIES = [Query("target"), Query("in"), Query("mid"), Query("previous_token")]


@pytest.fixture(scope="module")
def measured():
    model, dense = tiny_run(96, 20)
    settings = [Setting(RocketKV(4, 4), query, 16) for query in QUERIES]
    settings += [Setting(ExactTopK(), query, 16) for query in QUERIES]
    settings += [Setting(Quest(8), Query("target"), 512), Setting(SinkRecent(), Query("in"), 16)]
    return dense, measure_choices(Maker(model), dense, QUERIES, settings, channels=4)


def test_the_real_query_is_itself(measured) -> None:
    _, found = measured
    assert found.queries["target"]["cosine"] == pytest.approx(1.0)
    assert found.queries["target"]["recall"] == pytest.approx(1.0)
    assert found.settings["rocketkv target 16"]["overlap"] == pytest.approx(1.0)
    assert found.settings["exact_topk target 16"]["oracle_recall"] == pytest.approx(1.0)


def test_arrays_have_a_place_for_each_layer_head_and_position(measured) -> None:
    _, found = measured
    everything = [*found.queries.values(), *found.settings.values()]
    assert {array.shape for arrays in everything for array in arrays.values()} == {(3, 4, 20)}


def test_exact_top_k_of_a_group_is_the_most_mass_there_is(measured) -> None:
    _, found = measured
    oracle = found.settings["exact_topk target 16"]["mass"]
    assert oracle == pytest.approx(found.settings["rocketkv target 16"]["oracle_mass"])
    # A group's tokens maximise its heads' mass together.
    groups = oracle.reshape(3, 2, 2, 20).sum(2)
    for query in ("in", "mid", "previous_token"):
        other = found.settings[f"exact_topk {query} 16"]["mass"].reshape(3, 2, 2, 20).sum(2)
        assert (other <= groups + 1e-5).all()
    assert found.settings["quest target 512"]["mass"] == pytest.approx(1.0)


def test_mass_is_attention_on_what_is_attended_to(measured) -> None:
    dense, found = measured
    query, keys = dense.queries[2][3, 1:].double(), dense.keys[2][1].double()
    position = int(dense.positions[7])
    weights = (keys[: position + 1] @ query[7] / 8**0.5).softmax(0)
    recent = [*range(4), *range(position - 12, position + 1)]
    expected = float(weights[recent].sum())
    assert found.settings["sink_recent 16"]["mass"][1, 3, 7] == pytest.approx(expected, abs=1e-5)


def test_cosine_is_that_of_vectors(measured) -> None:
    dense, found = measured
    now, before = dense.queries[1][2, 5].numpy(), dense.queries[1][2, 4].numpy()
    cosine = now @ before / np.linalg.norm(now) / np.linalg.norm(before)
    assert found.queries["previous_token"]["cosine"][0, 2, 4] == pytest.approx(cosine, abs=1e-5)


def test_signed_recall_counts_channels_with_their_sign() -> None:
    from measure.fidelity.choice import _signed_top

    real = torch.tensor([[[5.0, -4.0, 1.0, 0.0]], [[1.0, 0.0, 1.0, 0.0]]])
    proxy = torch.tensor([[[5.0, 4.0, 1.0, 0.0]], [[1.0, 0.0, 1.0, 0.0]]])
    chosen = [_signed_top(query, 1, 2)[0, 0].tolist() for query in (real, proxy)]
    assert chosen[0] == [True, False, False, False, False, True, False, False]
    assert chosen[1] == [True, True, False, False, False, False, False, False]


def test_every_other_position_is_the_same_measure(measured) -> None:
    model, dense = tiny_run(96, 20)
    setting = Setting(RocketKV(4, 4), Query("mid"), 16)
    some = measure_choices(Maker(model), dense, [Query("mid")], [setting], 4, stride=3)
    for arrays, all_of_them in (
        (some.settings[setting.name], measured[1].settings[setting.name]),
        (some.queries["mid"], measured[1].queries["mid"]),
    ):
        for name, array in arrays.items():
            assert array == pytest.approx(all_of_them[name][:, :, ::3], abs=1e-5)
