"""What a shipped profile says its tables are off by is what its held-out points say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from essim.errors import InputError
from essim.hardware.holdout import ratios
from essim.hardware.profile import HardwareProfile, load_profile
from essim.hardware.table import read_table

PROFILES = sorted((Path(__file__).parents[2] / "hardware_profiles").glob("*.yaml"))


def off_by(profile: HardwareProfile, table: str) -> np.ndarray:
    """Predicted over measured, less one, at all held-out points of a table."""
    found = [ratio for (name, *_), ratio in profile.heldout.items() if name == table]
    return np.abs(1 / np.concatenate(found) - 1)


@pytest.mark.filterwarnings("ignore:.*kept:UserWarning")
@pytest.mark.parametrize("file", PROFILES, ids=lambda file: file.stem)
def test_the_errors_of_the_yaml_are_those_of_the_points(file: Path) -> None:
    profile = load_profile(file)
    checked = {name: spec.heldout for name, spec in profile.spec.tables.items() if spec.heldout}
    assert {name for name, *_ in profile.heldout} == set(checked)
    for name, said in checked.items():
        errors = off_by(profile, name)
        found = len(errors), float(np.median(errors)), float(errors.max())
        want = said.points, said.median_frac, said.worst_frac
        assert found == pytest.approx(want, abs=1e-4), name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n,rows,mean_s\n64,3,nan\n", "h.csv:2: mean_s: 'nan' is not a finite number above zero"),
        ("n,rows,mean_s\n64,3,inf\n", "h.csv:2: mean_s: 'inf' is not"),
        ("n,rows,mean_s\n64,3,1e-6\n64,3,0\n", "h.csv:3: mean_s: '0' is not"),
        ("n,rows,mean_s\n64,3,-1e-6\n", "h.csv:2: mean_s: '-1e-6' is not"),
        ("n,rows,mean_s\n64,-3,1e-6\n", "h.csv:2: rows: '-3' is not"),
        ("n,rows,mean_s\n64,3\n", "h.csv:2: 2 cells in a row of 3 columns"),
        ("rows,mean_s\n3,1e-6\n", "h.csv:1: the table has no column 'n'"),
        ("n,mean_s\n64,1e-6\n", "h.csv:1: the table has no column 'rows'"),
        ("n,rows,p50_s\n64,3,1e-6\n", "h.csv:1: the table has no column 'mean_s'"),
    ],
)
def test_points_that_are_none_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.csv").write_text("n,rows,mean_s\n64,2,1e-6\n64,4,3e-6\n")
    table = read_table(tmp_path / "t.csv", "t", ("n",), ("rows",))
    file = tmp_path / "h.csv"
    file.write_text("n,rows,mean_s\n64,3,3e-6\n 64,3,1e-6\n65,3,none\n")
    assert ratios(table, file)["64",] == pytest.approx([1.5, 0.5])
    file.write_text(text)
    with pytest.raises(InputError) as error:
        ratios(table, file)
    assert message in str(error.value)
