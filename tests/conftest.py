"""Scenario files for tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from firstday import FIRST_DAY

SCENARIO = f"""\
name: small
model: llama-3.1-8b
hardware: {FIRST_DAY}
selector: {{kind: rocketkv, prompt_budget: 4096, page_tokens: 4, top_pages: 32, kv_block_tokens: 4}}
routing: cpu-mid
workload: {{batch: 1, input_tokens: 40960, output_tokens: 16}}
"""


@pytest.fixture
def scenario_file(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes the scenario above with some text replaced or added."""

    def write(*replacements: tuple[str, str], more: str = "") -> Path:
        text = SCENARIO
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        file = tmp_path / "s.yaml"
        file.write_text(text + more)
        return file

    return write
