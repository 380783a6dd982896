"""What the CPU router cannot do is refused; the instruction set can be forced."""

from __future__ import annotations

import numpy as np
import pytest

from essim.errors import AbsentError, InputError
from measure.kernels.cpu_router.abi import ISAS, RouterShape
from measure.kernels.cpu_router.library import available_isas, best_isa
from measure.kernels.cpu_router.router import Router


@pytest.mark.parametrize(
    "wrong",
    [
        {"heads": 3},
        {"head_dim": 48},
        {"channels": 65},
        {"rank": 3},
        {"batch": 0},
        {"hidden": 40},
        {"rank": 0},
        {"layers": 0},
        {"page_tokens": 0},
        {"heads": 64},
    ],
)
def test_a_shape_the_kernels_cannot_do_is_refused(wrong: dict[str, int]) -> None:
    sizes = {"layers": 1, "batch": 1, "heads": 4, "kv_heads": 2, "head_dim": 64}
    pages = {"page_tokens": 4, "capacity_tokens": 64, "top_pages": 4, "channels": 8}
    good = sizes | pages | {"rank": 2, "hidden": 32}
    with pytest.raises(InputError):
        Router(RouterShape(**(good | wrong)), 1)


def test_bad_calls_are_refused() -> None:
    one = np.array([1], np.int32)
    query, key = np.zeros((1, 64), np.uint16), np.zeros((1, 1, 64), np.uint16)
    with Router(RouterShape(1, 1, 1, 1, 64, 4, 64, 4, 8), 1, pin=False) as router:
        for layer, tokens in ((1, one), (0, one * 0), (0, one * 65)):
            with pytest.raises(InputError, match="out of range"):
                router.route(layer, "query", query, one, tokens)
        with pytest.raises(InputError, match="out of range"):
            router.update(0, key, one * 64)
        with pytest.raises(InputError, match="values is uint16"):
            router.route(0, "query", query[:, 1:], one, one)
        with pytest.raises(InputError, match="no weights"):
            router.route(0, "latent", np.zeros((1, 0), np.uint16), one, one)
        with pytest.raises(InputError, match="no layer 3"):
            router.build(3, 0, key)
        assert (router.route(0, "query", query, one, one) == -1).all()
    with pytest.raises(InputError, match="closed"):
        router.route(0, "query", query, one, one)


def test_the_instruction_set_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESSIM_ROUTER_ISA", "portable")
    assert best_isa() == "portable"
    shape = RouterShape(1, 1, 1, 1, 64, 4, 64, 4, 8)
    with pytest.raises(InputError, match="sse9"):
        Router(shape, 1, isa="sse9")
    missing = [isa for isa in ISAS if isa not in available_isas()]
    for isa in missing:
        with pytest.raises(AbsentError):
            Router(shape, 1, isa=isa)
