"""What the docs say: made from the data, commands that run, links that lead somewhere."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from essim.engines import finish_maxplus
from essim.hardware.profile import find_profile, load_profile
from essim.methods.routing import Routing
from essim.methods.selectors import SELECTORS
from essim.model.shape import ModelShape
from essim.results.columns import COLUMNS
from essim.simulate.plan import load_scenario
from essim.simulate.replay import run_decode
from essim.simulate.scenario import Scenario
from essim.text.yaml import key_paths

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DATA = ("hardware_profiles", "scenarios", "tests")


def test_what_is_made_of_the_data_does_not_differ_from_it() -> None:
    done = subprocess.run(
        [sys.executable, DOCS / "build.py", "--check"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def commands() -> list[str]:
    """Return each line of the ``sh`` blocks of the worked example, in order."""
    text = (DOCS / "adding-a-selector.md").read_text()
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [line for block in blocks for line in block.strip().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("command", commands())
def test_the_commands_of_the_worked_example_run(tmp_path: Path, command: str) -> None:
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


def shown(kind: str) -> str:
    (block,) = re.findall(rf"```{kind}\n(.*?)```", (DOCS / "tutorial.md").read_text(), re.DOTALL)
    return block


def test_the_commands_of_the_tutorial_run_in_order(tmp_path: Path) -> None:
    (tmp_path / "my-model.json").write_text(shown("json"))
    (tmp_path / "my.yaml").write_text(shown("yaml"))
    blocks = re.findall(r"```sh\n(.*?)```", (DOCS / "tutorial.md").read_text(), re.DOTALL)
    written = []
    for command in blocks:
        program, *arguments = shlex.split(command)
        assert program == "essim"
        done = subprocess.run(
            [sys.executable, "-m", "essim", *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        written += re.findall(r"^wrote (.+)$", done.stderr, re.MULTILINE)
    assert written == ["hardware_profiles/my-gpu.yaml", "out/my.csv", "out/my.html"]


def test_the_glossary_has_its_words_in_one_or_two_sentences() -> None:
    entries = re.findall(r"^### (.+)\n((?:[^#\n].*\n)+)", (DOCS / "glossary.md").read_text(), re.M)
    words = {word for word, _ in entries}
    assert words >= {"exposed", "ceiling", "anchor", "publish and await", "tail page", "held out"}
    assert words >= {"kept prompt", "TPOT", "GQA", "page", "window", "side stream"}
    for word, text in entries:
        sentences = re.findall(r"[.:?](?:\s|$)", text)
        assert 1 <= len(sentences) <= 4, word
        assert len(text.split()) <= 45, word


def layer_us(routing: str) -> tuple[dict[str, float], float]:
    """Durations of layer 10's ops at S = 8192 on the shipped profile, and that layer's period."""
    overrides = [f"routing={routing}", "workload.output_tokens=4097"]
    base, _ = load_scenario(ROOT / "scenarios" / "earlyselect-40k.yaml", overrides)
    profile = load_profile(find_profile(base.hardware, ROOT))
    run = run_decode(base, profile, finish_maxplus, 4096)
    names = [op.name for op in run.ops]
    parts = {
        op.stage: row[-1] / 1e6
        for op, row in zip(run.ops, run.durations_ps, strict=True)
        if op.layer == 10
    }
    rows = [names.index("down.10"), names.index("down.9")]
    ends = finish_maxplus(run.ops, [row[-1:] for row in run.durations_ps], rows)[:, 0]
    return parts, (ends[0] - ends[1]) / 1e6


def documented(label: str) -> float:
    text = (DOCS / "model.md").read_text()
    row = rf"^\| \**{re.escape(label)}\** \| \**([\d.]+)\** \|"
    (number,) = re.findall(row, text, re.MULTILINE)
    return float(number)


MAIN_FLOW = {
    "norm1": "norm1",
    "QKV 4096 -> 6144": "qkv",
    "RoPE + KV append": "rope",
    "attention, 128 tokens": "attn",
    "o_proj": "o",
    "norm2": "norm2",
    "gate_up": "gate_up",
    r"SiLU\*mul": "act",
    "down": "down",
}


def test_the_layer_worked_by_hand() -> None:
    parts, period = layer_us("gpu-target")
    for label, op in MAIN_FLOW.items():
        assert documented(label) == pytest.approx(parts[op], abs=5e-4), label
    unrouted = documented("the layer without routing")
    assert unrouted == pytest.approx(sum(parts[op] for op in MAIN_FLOW.values()), abs=1e-3)
    assert parts["route"] == pytest.approx(61.266, abs=1e-3)
    assert period == pytest.approx(195.338, abs=1e-3)
    parts, period = layer_us("gpu-target-fused")
    assert parts["route"] == pytest.approx(6.974, abs=1e-3)
    assert period == pytest.approx(141.046, abs=1e-3)


def test_the_layer_by_hand_with_early_routing() -> None:
    parts, period = layer_us("cpu-mid")
    assert period == pytest.approx(147.092, abs=1e-3)
    added = {name: parts[name] for name in ("proxy_down", "publish", "await")}
    assert added == pytest.approx({"proxy_down": 3.648, "publish": 3.765, "await": 5.606}, abs=1e-3)
    window = sum(parts[op] for op in ("norm2", "gate_up", "act", "down", "norm1", "qkv", "rope"))
    assert window == pytest.approx(113.960, abs=1e-3)
    in_flight = {name: parts[name] for name in ("anchor_d2h", "key_d2h", "index_h2d")}
    assert in_flight == pytest.approx(dict.fromkeys(in_flight, 0.0), abs=5e-4)
    assert documented("the layer without routing") - parts["attn"] - parts["o"] == pytest.approx(
        window, abs=1e-3
    )


def test_the_layer_by_hand_with_routing_beside() -> None:
    parts, period = layer_us("gpu_side-mid-fused")
    unrouted = documented("the layer without routing")
    assert period == pytest.approx(unrouted + parts["slowdown"], abs=1e-3)
    text = (DOCS / "model.md").read_text()
    assert f"{parts['slowdown']:.3f} us: **{period:.3f} us**" in text


def test_every_key_and_column_is_described() -> None:
    text = (DOCS / "scenario.md").read_text()
    words = set(re.findall(r"[A-Za-z_0-9]+", " ".join(re.findall(r"`([^`]+)`", text))))
    keys = {part for path in key_paths(Scenario) for part in path.split(".")}
    assert keys - words == set()
    results = text.split("## Result columns")[1]
    fields = set(ModelShape.model_fields) | set(Routing.model_fields)
    fields |= {name for selector in SELECTORS.values() for name in selector.model_fields}
    scenario_fields = {"name", "model", "hardware", "selector", "routing", "batch"}
    scenario_fields |= {"input_tokens", "output_tokens"} | fields
    described = set(re.findall(r"[a-z_0-9]+", " ".join(re.findall(r"`([^`]+)`", results))))
    assert set(COLUMNS) - scenario_fields - described == set()


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def pages() -> list[Path]:
    written = [*ROOT.glob("*.md"), *DOCS.glob("*.md")]
    return sorted([*written, ROOT / "reports" / "data" / "README.md"])


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)]*)\)", page.read_text()):
        there = page.parent / target if target else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), f"{target}#{anchor}"


def test_the_scenario_in_the_readme_is_the_shipped_one(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "s.yaml").write_text(block)
    shown = load_scenario(tmp_path / "s.yaml")
    assert shown == load_scenario(ROOT / "scenarios" / "earlyselect-40k.yaml")
    assert len(shown[1]) == 7 * 3 * 7
