"""The dense pass against float64 loops."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

from tiny import SIZES, float64_log_probabilities, tiny_checkpoint  # noqa: E402

from measure.fidelity.model import Model  # noqa: E402
from measure.fidelity.trajectory import run_dense  # noqa: E402


@pytest.mark.parametrize("biases", [False, True], ids=["llama", "qwen2"])
def test_dense_pass_equals_loops_in_float64(biases: bool) -> None:
    checkpoint = tiny_checkpoint(3, biases)
    ids = torch.randint(0, SIZES.vocab, (24,), generator=torch.Generator().manual_seed(4))
    dense = run_dense(Model(checkpoint), ids, 10)
    expected = float64_log_probabilities(checkpoint, ids[:-1].numpy())
    found = dense.log_probabilities.double().numpy()
    assert found == pytest.approx(expected[-10:], abs=2e-4)
    assert dense.positions.tolist() == list(range(13, 23))
    assert dense.targets.tolist() == ids[-10:].tolist()


def test_anchors_and_queries_are_those_of_decode_positions() -> None:
    checkpoint = tiny_checkpoint()
    ids = torch.arange(12)
    dense = run_dense(Model(checkpoint), ids, 4)
    assert dense.before[0].numpy() == pytest.approx(checkpoint.embedding[7:11].numpy())
    assert [tuple(q.shape) for q in dense.queries] == [(4, 5, 8)] * 4
    assert np.shape(dense.keys[0]) == (2, 11, 8)
    # What a layer adds to its input before the MLP is in Mid and not in the next layer's input.
    assert not torch.allclose(dense.middle[0], dense.before[1])
