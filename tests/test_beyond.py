"""What each call takes that its table does not hold (``beyond_s``)."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from firstday import FIRST_DAY

from essim import listing
from essim.costs import SOURCES, CostModel
from essim.errors import InputError
from essim.hardware import load_profile
from essim.model import PRESETS
from essim.routing import Routing
from essim.selectors.rocketkv import RocketKV
from essim.work import Case, Point

CASE = Case(
    PRESETS["llama-3.1-8b"],
    RocketKV(prompt_budget=4096, page_tokens=4, top_pages=32, kv_block_tokens=4),
    Routing(where="gpu", anchor="target"),
)


def profile(folder: Path, number: str) -> Path:
    """Write the first day's profile, whose norm takes 2 us, with a number beyond it."""
    file = folder / "h.yaml"
    note = "    note: about 2 us each, one significant digit\n"
    text = FIRST_DAY.read_text()
    assert note in text
    beyond = f"    beyond_s: {{{number}, reference: a trial, date: 2026-11-30}}\n"
    file.write_text(text.replace(note, note + beyond, 1))
    shutil.copytree(FIRST_DAY.with_suffix(""), folder / "h")
    return file


@pytest.mark.parametrize(
    ("source", "batches", "expected"),
    [
        ("measured", (1, 4, 16), ["measured", "interpolated", "extrapolated"]),
        ("published", (1, 16), ["published", "extrapolated"]),
    ],
)
def test_it_is_added_to_every_price_of_the_table(tmp_path, source, batches, expected) -> None:
    model = CostModel(load_profile(profile(tmp_path, f"value: 0.5 us, source: {source}")), CASE)
    plain = CostModel(load_profile(FIRST_DAY), CASE)
    for batch, name in zip(batches, expected, strict=True):
        at = Point(batch, batch, np.array([4096]))
        found = model.price("norm", at)
        assert found.mean_s == pytest.approx([2.5e-6])
        assert SOURCES[found.rank[0]] == name
        assert (model.price("act", at).mean_s == plain.price("act", at).mean_s).all()


def test_it_is_said_where_tables_are_listed(tmp_path: Path) -> None:
    file = profile(tmp_path, "value: 0.357 us, source: measured")
    about = {entry["name"]: entry["about"] for entry in listing.tables(file)}
    assert about["norm"] == "2 points; nothing held out; 0.357 us a call are added to it"
    assert about["act"] == "2 points; nothing held out"


def test_a_range_is_refused(tmp_path: Path) -> None:
    number = "value: 1 us, low: 0.5 us, high: 2 us, source: measured"
    with pytest.raises(InputError, match="beyond_s has one value and no range"):
        load_profile(profile(tmp_path, number))
