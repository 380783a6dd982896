from __future__ import annotations

import pytest

from essim.results.fidelity import setting_name


@pytest.mark.parametrize(
    ("row", "name"),
    [
        ({"selector": "dense"}, "dense"),
        ({"selector": "sink_recent", "query": None, "budget_tokens": 64}, "sink_recent 64"),
        (
            {"selector": "quest", "query": "mid", "projection_rank": 128, "budget_tokens": 64},
            "quest mid-r128 64",
        ),
    ],
)
def test_a_row_says_which_setting_it_is_of(row: dict[str, object], name: str) -> None:
    assert setting_name(row) == name
