"""What columns are, and how their values are shown."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from essim.results.column import MISSING, number
from essim.results.columns import COLUMNS, columns_of
from essim.results.tables import column, columns_markdown


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("decode_tokens_per_s", 1234.56, "1,234.6 tokens/s"),
        ("decode_gain_frac", 0.0767, "+7.67 %"),
        ("decode_gain_frac", -0.01, "-1.00 %"),
        ("exposed_routing_s", 134e-6, "134.0 us"),
        ("tpot_s", 0.0049, "4.900 ms"),
        ("kv_bytes", 2**30, "1.000 GiB"),
        ("output_tokens", 8192, "8,192 tokens"),
        ("output_tokens", np.int64(8192), "8,192 tokens"),
        ("batch", 4, "4"),
        ("signed_error_frac", 0.5, "50.00 %"),
        ("gather_s", 0.25, "0.2500 s"),
        ("channels", 32.5, "32.5"),
        ("routing", "cpu-mid", "cpu-mid"),
        ("kv_bytes", None, MISSING),
        ("kv_bytes", float("nan"), MISSING),
        ("reason", "", MISSING),
        ("strict", True, "True"),
    ],
)
def test_text_with_unit(key: str, value: object, text: str) -> None:
    assert column(key).shown.text_with_unit(value) == text


def test_headings_carry_units() -> None:
    keys = ("step_s", "kv_bytes", "routing", "link_bytes_per_s", "top_pages")
    assert [column(key).title for key in keys] == [
        "mean step, ms",
        "KV cache, GiB",
        "routing",
        "link, GB/s",
        "top pages",
    ]


@given(st.one_of(st.none(), st.booleans(), st.text(), st.sampled_from([np.nan, np.inf, -np.inf])))
def test_what_is_no_finite_number(value: object) -> None:
    assert number(value) is None


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_finite_numbers_stay(value: float) -> None:
    assert number(value) == value


def test_a_column_says_what_it_is() -> None:
    step = COLUMNS["step_s"]
    assert (step.name, step.unit, step.heading, step.title) == (
        *("step_s", "s", "mean step"),
        "mean step, ms",
    )
    assert (step.brief(0.0049), step.shown.text(0.0049), step.short) == ("4.9 ms", "4.900", "step")
    assert all(c.heading and c.meaning for c in COLUMNS.values())


def test_swept_keys_come_first() -> None:
    columns = columns_of([{"workload.rate": 3, **dict.fromkeys(COLUMNS)}])
    assert list(columns) == ["workload.rate", *COLUMNS]
    assert columns["workload.rate"].unit == ""


def test_the_document_has_the_table_of_columns() -> None:
    text = (Path(__file__).parents[2] / "docs" / "scenario.md").read_text()
    shown = text.split("<!-- columns -->\n")[1].split("<!-- end -->")[0]
    assert shown == columns_markdown()
    assert "| `step_s` | s | mean decode step |\n" in shown
