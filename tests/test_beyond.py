"""What each call takes that its table does not hold (``beyond_s``)."""

from __future__ import annotations

import shutil
from dataclasses import replace
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


ONE = Point(1, 1, np.array([4096]))


def profile(folder: Path, number: str, table: str = "norm") -> Path:
    """Write the first day's profile, whose norm takes 2 us, with a number beyond a table."""
    file = folder / "h.yaml"
    before, found, after = FIRST_DAY.read_text().partition(f"\n  {table}:\n")
    beyond = f"    beyond_s: {{{number}, reference: a trial, date: 2026-11-30}}\n"
    file.write_text(before + found + beyond + after)
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


def test_it_may_be_of_some_keys_only(tmp_path: Path) -> None:
    number = "value: 0.5 us, source: measured, only: {dtype: bf16}"
    found = load_profile(profile(tmp_path, number, "gemm"))
    plain = load_profile(FIRST_DAY)
    for dtype, added_s in (("bf16", 0.5e-6), ("fp8", 0.0)):
        case = replace(CASE, model=CASE.model.model_copy(update={"weight_dtype": dtype}))
        before, after = (CostModel(p, case).price("gemm_qkv", ONE).mean_s for p in (plain, found))
        assert after - before == pytest.approx([added_s])


def test_a_scaled_price_has_it_as_it_is(tmp_path: Path) -> None:
    number = "value: 0.5 us, source: measured"
    models = (load_profile(FIRST_DAY), load_profile(profile(tmp_path, number)))
    wide = CASE.model.model_copy(update={"hidden": 8192})
    before, after = (CostModel(p, replace(CASE, model=wide)).price("norm", ONE) for p in models)
    assert SOURCES[before.rank[0]] == "scaled"
    assert after.mean_s - before.mean_s == pytest.approx([0.5e-6])


def test_it_is_said_where_tables_are_listed(tmp_path: Path) -> None:
    file = profile(tmp_path, "value: 0.357 us, source: measured")
    about = {entry["name"]: entry["about"] for entry in listing.tables(file)}
    norm, act = about["norm"].split("; "), about["act"].split("; ")
    assert norm[:3] == ["2 points", "nothing held out", "0.357 us a call are added to it"]
    assert act[:2] == norm[:2]
    assert norm[3:] == ["about 2 us each, one significant digit"]


def test_keys_that_the_table_has_not_are_refused(tmp_path: Path) -> None:
    for number, only in enumerate(("{dtpye: bf16}", "{dtype: BF16}", "{n: 1}")):
        (tmp_path / str(number)).mkdir()
        text = f"value: 0.5 us, source: measured, only: {only}"
        with pytest.raises(
            InputError, match=r"gemm\.beyond_s\.only: the table has no rows with these keys"
        ):
            load_profile(profile(tmp_path / str(number), text, "gemm"))
    (tmp_path / "n").mkdir()
    text = "value: 0.5 us, source: measured, only: {n: 6144}"
    found = CostModel(load_profile(profile(tmp_path / "n", text, "gemm")), CASE)
    plain = CostModel(load_profile(FIRST_DAY), CASE)
    for kind, added_s in (("gemm_qkv", 0.5e-6), ("gemm_o", 0.0)):
        added = found.price(kind, ONE).mean_s - plain.price(kind, ONE).mean_s
        assert added == pytest.approx([added_s])


def test_a_range_is_refused(tmp_path: Path) -> None:
    number = "value: 1 us, low: 0.5 us, high: 2 us, source: measured"
    with pytest.raises(InputError, match=r"norm\.beyond_s\.low: input should be None"):
        load_profile(profile(tmp_path, number))
