"""One small calibration of this machine for all tests that need one."""

from __future__ import annotations

from pathlib import Path

import pytest
from decodes import essim


@pytest.fixture(scope="session")
def measured(tmp_path_factory) -> Path:
    """A folder with the profile ``mine`` of a quick calibration."""
    pytest.importorskip("torch", reason="torch is an extra")
    folder = tmp_path_factory.mktemp("measured")
    done = essim("measure", "--profile", "mine", "--quick", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "gpu_route_stepwise" in done.stdout
    return folder
