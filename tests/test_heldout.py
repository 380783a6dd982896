"""What a shipped profile says its tables are off by is what its held-out points say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from essim.hardware import HardwareProfile, load_profile

PROFILES = sorted((Path(__file__).parent.parent / "hardware_profiles").glob("*.yaml"))


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
