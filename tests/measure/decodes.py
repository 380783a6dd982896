"""A tiny model, decode runs of it, and the command line, for tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from essim.methods.selectors.rocketkv import RocketKV
from essim.model.shape import ModelShape

TINY = ModelShape(
    name="tiny",
    layers=4,
    hidden=96,
    heads=6,
    kv_heads=2,
    head_dim=32,
    ffn=128,
    vocab=199,
    max_context_tokens=512,
    weight_dtype="fp32",
    kv_dtype="fp32",
)
MIX = ["in", "mid", "in"]
ROUTED = ["gpu-target", "cpu-target", "cpu-in", "cpu-mid", "cpu-mix"]
PAGE, CHANNELS, RANK = 4, 8, 16


def selector(top_pages: int = 5, prompt_budget: int = 48) -> RocketKV:
    return RocketKV(
        prompt_budget=prompt_budget, page_tokens=PAGE, top_pages=top_pages, kv_block_tokens=PAGE
    )


def tiny(mode: str, *, top_pages: int = 5, batch: int = 2, capacity: int = 160, **options: Any):
    """A run of the tiny model; worker and main thread are left to the scheduler."""
    from measure.decode.cpu.loop import CpuDecode
    from measure.decode.shared.loop import Settings

    fixed = {"rank": RANK, "channels": CHANNELS, "capture": True, "pin": False}
    if mode == "cpu-mix":
        fixed["mix"] = MIX
    return CpuDecode(Settings(TINY, selector(top_pages), mode, batch, capacity, **fixed | options))


def essim(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "essim", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, timeout=500, env=os.environ | environment
    )
