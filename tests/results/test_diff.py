"""Two results side by side: what changed, largest first, and what may be why."""

from __future__ import annotations

from typing import Any

import pytest

from essim.errors import InputError
from essim.results.columns import COLUMNS
from essim.results.diff import diff, manifest_changes

POINT: dict[str, Any] = dict.fromkeys(COLUMNS) | {
    **{"name": "n", "model": "m", "hardware": "h200", "selector": "quest", "batch": 1, "tp": 1},
    **{"routing": "gpu-target", "where": "gpu", "anchor": "target", "status": "ok"},
}
MID = {"routing": "cpu-mid", "where": "cpu", "anchor": "mid", "cpu_threads": 8}


def point(rate: float | None, **fields: Any) -> Any:
    return POINT | {"decode_tokens_per_s": rate} | fields


def test_points_are_paired_and_the_largest_change_comes_first() -> None:
    before = [point(100.0), point(200.0, batch=2), point(50.0, **MID), point(70.0, batch=4, **MID)]
    after = [point(60.0, **MID), point(202.0, batch=2), point(100.0), point(35.0, batch=4, **MID)]
    found = diff(before, [row | {"hardware": "b200"} for row in after])
    assert found.apart == [{"key": "hardware", "before": "h200", "after": "b200"}]
    assert found.keys == ["routing", "batch"]
    assert [(p["routing"], p["batch"], p["before"], p["after"]) for p in found.points] == [
        ("cpu-mid", 4, 70.0, 35.0),
        ("cpu-mid", 1, 50.0, 60.0),
        ("gpu-target", 2, 200.0, 202.0),
        ("gpu-target", 1, 100.0, 100.0),
    ]
    assert [p["change_frac"] for p in found.points] == pytest.approx([-0.5, 0.2, 0.01, 0.0])
    assert (found.largest_frac, found.median_frac) == pytest.approx((0.5, 0.005))
    assert (found.alone, found.sources) == ([], [])


def test_shares_change_by_points_and_something_from_nothing_comes_first() -> None:
    before = [point(1.0, decode_gain_frac=0.10), point(1.0, batch=2, decode_gain_frac=-0.05)]
    after = [point(1.0, decode_gain_frac=0.08), point(1.0, batch=2, decode_gain_frac=0.05)]
    found = diff(before, after, "decode_gain_frac")
    assert [p["change_frac"] for p in found.points] == pytest.approx([0.10, -0.02])
    before = [point(1.0, exposed_routing_s=1e-6), point(1.0, batch=2, exposed_routing_s=0.0)]
    after = [point(1.0, exposed_routing_s=9e-6), point(1.0, batch=2, exposed_routing_s=1e-9)]
    found = diff(before, after, "exposed_routing_s")
    assert [p["batch"] for p in found.points] == [2, 1]
    assert found.points[0]["change_frac"] is None
    assert found.largest_frac == float("inf")
    assert found.median_frac == pytest.approx(8.0)


def test_points_of_one_side_alone_are_told_with_the_reason() -> None:
    full = {"status": "infeasible", "reason": "needs more"}
    before = [point(1.0), point(1.0, batch=2), point(1.0, batch=3), point(None, batch=5, **full)]
    after = [point(1.0), point(None, batch=2, **full), point(1.0, batch=4), point(1.0, batch=5)]
    found = diff(before, after)
    assert [(row["runs"], row["batch"], row["reason"]) for row in found.alone] == [
        ("before", 2, "needs more"),
        ("before", 3, "the other result does not have it"),
        ("after", 4, "the other result does not have it"),
        ("after", 5, "needs more"),
    ]
    assert [p["batch"] for p in found.points] == [1]


def test_prices_of_another_source_are_counted_by_op_kind() -> None:
    before = [point(1.0, batch=b, price_sources="measured: gemm norm") for b in (1, 2)]
    now = ["measured: norm; transferred: gemm", "interpolated: norm; transferred: gemm"]
    after = [point(1.0, batch=b, price_sources=text) for b, text in zip((1, 2), now, strict=True)]
    assert diff(before, after).sources == [
        {"kind": "gemm", "before": "measured", "after": "transferred", "points": 2},
        {"kind": "norm", "before": "measured", "after": "interpolated", "points": 1},
    ]


def test_swept_keys_without_a_column_tell_points_apart() -> None:
    rows = [point(1.0) | {"memory.reserve_frac": share} for share in (0.1, 0.2)]
    found = diff(rows, [rows[0], rows[1] | {"decode_tokens_per_s": 2.0}])
    assert found.keys == ["memory.reserve_frac"]
    assert [(p["memory.reserve_frac"], p["change_frac"]) for p in found.points] == [
        (0.2, 1.0),
        (0.1, 0.0),
    ]


@pytest.mark.parametrize(
    ("before", "after", "column", "message"),
    [
        ([point(1.0)], [point(1.0)], "rate", "--column: no column 'rate' of numbers. Such as"),
        ([point(1.0)], [point(1.0)], "stp_s", "--column: no column 'stp_s' of numbers. Did you"),
        ([point(1.0)], [point(1.0)], "batch", "--column: no column 'batch' of numbers"),
        ([point(1.0)], [point(1.0)], "reason", "--column: no column 'reason' of numbers"),
        ([], [point(1.0)], "step_s", "before: there is no row"),
        ([point(1.0)], [], "step_s", "after: there is no row"),
        (
            [point(1.0), point(2.0)],
            [point(1.0)],
            "step_s",
            "before: a point is there twice: one alone",
        ),
        (
            [point(1.0, batch=1), point(1.0, batch=2)],
            [point(1.0, batch=3), point(1.0, batch=4)],
            "step_s",
            "no point is in both. They differ in batch: give results that share",
        ),
    ],
)
def test_what_cannot_be_compared_is_said(before, after, column: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        diff(before, after, column)
    assert str(error.value).startswith(message)


def test_manifests_say_what_made_the_difference() -> None:
    before = {
        **{"rows": 3, "essim": "0.1.0", "seed": 0, "scenario": {"sha256": "a", "text": "x"}},
        "profiles": {"h200": {"sha256": "c"}, "old": {"sha256": "e"}},
    }
    after = {
        **{"rows": 4, "essim": "0.2.0", "seed": 0, "scenario": {"sha256": "b", "text": "y"}},
        "profiles": {"h200": {"sha256": "d"}},
    }
    assert manifest_changes(before, after) == [
        {"key": "essim", "before": "0.1.0", "after": "0.2.0"},
        {"key": "scenario.sha256", "before": "a", "after": "b"},
        {"key": "profiles.h200.sha256", "before": "c", "after": "d"},
    ]
