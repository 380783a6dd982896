"""What simulating loads: nothing that measures, and no figures where none are asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = {
    "run": ("run", "earlyselect-40k", "--json"),
    "sweep": ("sweep", "earlyselect-40k", "--set", "workload.batch=1", "--out", "r.csv"),
    "list": ("list", "hardware"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_simulating_loads_nothing_that_measures(command: str, tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from essim.cli.app import app\n"
        "try:\n"
        "    app(sys.argv[1:])\n"
        "finally:\n"
        "    loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "    print(sorted(loaded & {'measure', 'torch', 'triton', 'plotly'}), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *COMMANDS[command]],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"
