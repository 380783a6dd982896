"""One small calibration of this machine for all tests that need one."""

from __future__ import annotations

from pathlib import Path

import pytest
from decodes import Neighbours, essim


@pytest.fixture(scope="session")
def calibrated(tmp_path_factory) -> tuple[Path, float]:
    """A folder with the profile ``mine`` of a quick calibration; cores others took meanwhile."""
    pytest.importorskip("torch", reason="torch is an extra")
    folder, neighbours = tmp_path_factory.mktemp("measured"), Neighbours()
    done = essim("measure", "--profile", "mine", "--quick", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "gpu_route_stepwise" in done.stdout
    return folder, neighbours.cores()


@pytest.fixture(scope="session")
def measured(calibrated: tuple[Path, float]) -> Path:
    """The folder of the quick calibration."""
    return calibrated[0]
