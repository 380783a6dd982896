"""The bench script runs by one command and writes its table."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "measure" / "kernels" / "bench_cpu_router.py"


def test_one_command(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(SCRIPT),
        "--out",
        str(tmp_path),
        "--threads",
        "1",
        "--batch",
        "2",
        "--tokens",
        "300,900",
        "--calls",
        "5",
        "--layers",
        "3",
        "--heads",
        "4",
        "--kv-heads",
        "2",
        "--head-dim",
        "64",
        "--rank",
        "16",
        "--gap-us",
        "1",
        "--update",
    ]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    with (tmp_path / "cpu_router.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["context_tokens"] for row in rows] == ["300", "900"]
    assert all(float(row["route_p50_us"]) > 0 for row in rows)
