"""The examples of docs/api.md and the notebook run as they stand, from any folder."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import essim

DOCS = Path(__file__).parents[2] / "docs"


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / "api.md").read_text(), re.DOTALL)


def cells() -> list[dict]:
    return json.loads((DOCS / "notebook.ipynb").read_text())["cells"]


def execute(sources: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    """Run sources in order in one namespace; a failure names which."""
    monkeypatch.chdir(folder)
    names: dict = {}
    for number, source in enumerate(sources):
        exec(compile(source, f"<example {number}>", "exec"), names)
    return names


@pytest.mark.slow
def test_examples_run_in_order(tmp_path, monkeypatch, capsys) -> None:
    names = execute(blocks(), tmp_path, monkeypatch)
    out = capsys.readouterr().out
    assert "<dict>: hardwear: unknown key. Did you mean 'hardware'?" in out
    assert names["line"].end_tokens == 20000
    assert names["line"].ps(20000) == names["steps"].ps([20000] * 8)
    assert list(tmp_path.iterdir()) == []


def test_every_public_name_is_in_the_docs() -> None:
    text = (DOCS / "api.md").read_text()
    told = set(re.findall(r"\w+", text))
    # A line of `segments` is a Segment: nobody makes one.
    assert set(essim.__all__) - told == {"Segment"}


@pytest.mark.slow
def test_the_notebook_runs(tmp_path, monkeypatch, capsys) -> None:
    sources = ["".join(cell["source"]) for cell in cells() if cell["cell_type"] == "code"]
    names = execute(sources, tmp_path, monkeypatch)
    assert "<dict>: rooting: unknown key. Did you mean 'routing'?" in capsys.readouterr().out
    assert sorted(set(names["frame"]["batch"])) == [1, 4, 8]
    assert len(names["figure"].data) == 2


def test_the_notebook_is_kept_without_outputs() -> None:
    for cell in cells():
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
    assert len({cell["id"] for cell in cells()}) == len(cells())
