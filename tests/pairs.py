"""Rows of a sweep and of a real run, as tests of their comparison write them."""

from __future__ import annotations

import csv
from pathlib import Path

from essim.results.columns import COLUMNS


def predicted(mode: str = "gpu-target", step_s: float | None = 4e-3, **other: object):
    """A row of a sweep: batch 2, a prompt of 600 of which 512 are kept, 64 tokens attended."""
    row = {
        **dict.fromkeys(COLUMNS),
        **{"name": "s", "model": "m", "hardware": "h200-sxm", "status": "ok", "reason": ""},
        **{"selector": "rocketkv", "routing": mode, "prompt_budget": 512, "page_tokens": 4},
        **{"top_pages": 16, "batch": 2, "input_tokens": 600, "output_tokens": 17},
        "step_s": step_s,
    }
    if mode == "dense":
        row |= {"selector": "dense", "routing": "none", "prompt_budget": None}
        row |= {"page_tokens": None, "top_pages": None, "input_tokens": 512}
    return row | other


def measured(mode: str, mean_s: float, repetition: int = 1, **other: object) -> dict[str, object]:
    attended = 512 if mode == "dense" else 64
    cell = {"mode": mode, "batch": 2, "context_tokens": 512, "attended_tokens": attended}
    times = {"repetition": repetition, "calls": 16, "mean_s": mean_s}
    return {"kind": "decode_step", **cell, **times, **other}


def write(file: Path, rows: list[dict[str, object]]) -> Path:
    with file.open("w", newline="") as text:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return file
