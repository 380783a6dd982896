"""Every command of the documentation runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DATA = ("hardware_profiles", "scenarios", "tests")


def commands() -> list[str]:
    """Return each line of every ``sh`` block, in order."""
    found = []
    for page in sorted((ROOT / "docs").glob("*.md")):
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
            found += block.strip().splitlines()
    return found


@pytest.mark.parametrize("command", commands())
def test_the_command_runs(tmp_path: Path, command: str) -> None:
    program, *arguments = shlex.split(command)
    start = {"essim": ["-m", "essim"], "python": []}[program]
    for folder in DATA:
        (tmp_path / folder).symlink_to(ROOT / folder)
    done = subprocess.run(
        [sys.executable, *start, *arguments],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
