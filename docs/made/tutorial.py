"""The tutorial's figures: what its own files come to."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from essim.cli.app import app
from essim.simulate.derivation import largest_batches
from essim.simulate.memory import memory
from essim.simulate.plan import load_scenario
from essim.simulate.sweep import Simulator
from made.data import table

PAGE = Path(__file__).parents[1] / "tutorial.md"
Row = Mapping[str, Any]


def _block(kind: str, containing: str = "") -> str:
    """Return the first block of the page in a language."""
    blocks = re.findall(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return str(next(block for block in blocks if containing in block))


@cache
def _simulated() -> tuple[tuple[float, float, int], list[Any]]:
    """Return bytes of weights and of all of the base point, its largest batch; the sweep's rows."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            Path("my-model.json").write_text(_block("json"))
            Path("my.yaml").write_text(_block("yaml"))
            made = CliRunner().invoke(app, shlex.split(_block("sh", "profile new"))[1:])
            if made.exit_code:
                raise SystemExit(f"tutorial.md: {made.output}")
            base, points = load_scenario(Path("my.yaml"))
            simulator = Simulator()
            profile = simulator.profile(base.hardware)
            need = memory(base, profile)
            most = largest_batches(base, profile)["GPU"]
            return (need.weight_bytes, need.gpu_bytes, most), simulator.rows(points)
        finally:
            os.chdir(here)


def tutorial_memory() -> str:
    """Return what the point takes of the GPU's memory."""
    (weights, total, most), _ = _simulated()
    whole = f"the weights take {weights / 1e9:.1f} GB, the whole {total / 1e9:.1f} GB"
    return f"{whole}, and a batch of {most} fits"


def _rate(row: Row) -> str:
    low, high = row["decode_tokens_per_s_low"], row["decode_tokens_per_s_high"]
    gain = row["decode_gain_frac"]
    return f"{row['decode_tokens_per_s']:.0f} ({low:.0f} to {high:.0f})" + (
        f", {gain:+.1%}" if gain else ""
    )


def tutorial_rates() -> list[str]:
    """Return rates, their intervals and gains, by routing and batch."""
    _, rows = _simulated()
    routings = dict.fromkeys(row["routing"] for row in rows)
    body = [
        [f"`{name}`", *(_rate(row) for row in rows if row["routing"] == name)] for name in routings
    ]
    return table(
        ["routing", *(f"batch {b}" for b in dict.fromkeys(r["batch"] for r in rows))], body
    )


def tutorial_gains(routing: str) -> str:
    """Return a routing's least and largest gain over the batches."""
    _, rows = _simulated()
    gains = [row["decode_gain_frac"] for row in rows if row["routing"] == routing]
    return f"{min(gains):+.1%} to {max(gains):+.1%}"
