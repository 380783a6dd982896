"""The frontier of a result: what nothing beats for both users and GPUs, and its knee."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from essim.results.columns import COLUMNS
from essim.results.pareto import FASTEST, KNEE, MOST, frontier

POINT: dict[str, Any] = dict.fromkeys(COLUMNS) | {
    **{"name": "n", "model": "m", "hardware": "h", "selector": "quest", "routing": "gpu-target"},
    **{"batch": 1, "tp": 1, "status": "ok", "measured_frac": 1.0},
}


def point(batch: int, rate: float | None, **fields: Any) -> Any:
    return POINT | {"batch": batch, "decode_tokens_per_s": rate} | fields


def test_a_frontier_names_its_ends_and_its_knee() -> None:
    rows = [
        point(1, 200.0),
        point(2, 300.0, routing="cpu-mid"),
        point(2, 390.0),
        point(4, 760.0),
        point(8, 1400.0),
        point(32, 1700.0),
        point(64, None),
    ]
    found = frontier(rows)
    assert [(p["batch"], p["user_tokens_per_s"], p["gpu_tokens_per_s"]) for p in found] == [
        (1, 200.0, 200.0),
        (2, 195.0, 390.0),
        (4, 190.0, 760.0),
        (8, 175.0, 1400.0),
        (32, 53.125, 1700.0),
    ]
    assert [p["point"] for p in found] == [FASTEST, None, None, KNEE, MOST]
    assert {p["routing"] for p in found} == {"gpu-target"}
    assert {p["setting"] for p in found} == {""}


def test_a_gpu_that_shares_a_model_counts_as_one() -> None:
    (one, two) = frontier([point(8, 800.0), point(8, 1200.0, tp=2)])
    assert (one["tp"], one["user_tokens_per_s"], one["gpu_tokens_per_s"]) == (2, 150.0, 600.0)
    assert (two["tp"], two["user_tokens_per_s"], two["gpu_tokens_per_s"]) == (1, 100.0, 800.0)


def test_what_changes_the_output_has_a_frontier_of_its_own() -> None:
    rows = [
        point(1, 200.0, selector="dense", input_tokens=64),
        point(1, 300.0, input_tokens=64),
        point(1, 250.0, input_tokens=128, name="other", baseline="cpu-in"),
    ]
    assert [p["setting"] for p in frontier(rows)] == [
        "selector dense, input_tokens 64",
        "selector quest, input_tokens 64",
        "selector quest, input_tokens 128",
    ]
    across = frontier(rows, ["selector"])
    assert [(p["setting"], p["selector"]) for p in across] == [
        ("input_tokens 64", "quest"),
        ("input_tokens 128", "quest"),
    ]
    assert {p["point"] for p in across} == {f"{FASTEST}, {MOST}"}


def test_a_frontier_that_sags_has_no_knee() -> None:
    rows = [point(1, 200.0), point(4, 400.0), point(8, 1200.0)]
    found = frontier([*rows, point(2, 201.0)])
    assert [p["point"] for p in found] == [FASTEST, MOST]
    sagging = [point(1, 300.0), point(2, 320.0), point(8, 1200.0)]
    assert [p["point"] for p in frontier(sagging)] == [FASTEST, None, MOST]


RATES = st.integers(1, 64), st.floats(1, 1e5, allow_subnormal=False)


@given(st.lists(st.tuples(*RATES), min_size=1, max_size=30))
def test_the_frontier_is_what_no_point_beats(pairs: list[tuple[int, float]]) -> None:
    """Compared with the definition: a point is beaten if one is better in one, worse in none."""
    found = frontier([point(batch, rate) for batch, rate in pairs])
    both = {(rate / batch, rate) for batch, rate in pairs}
    unbeaten = {
        own for own in both if not any(o != own and o[0] >= own[0] and o[1] >= own[1] for o in both)
    }
    shown = [(p["user_tokens_per_s"], p["gpu_tokens_per_s"]) for p in found]
    assert sorted(shown) == sorted(unbeaten)
    assert shown == sorted(shown, reverse=True)
