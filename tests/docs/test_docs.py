"""What the docs claim, computed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from h200 import doc_table, table_us

from essim.cli.pages import sweep_sentences
from essim.engines import finish_maxplus
from essim.hardware.profile import find_profile, load_profile
from essim.methods.routing import Routing
from essim.methods.selectors import SELECTORS
from essim.model.shape import ModelShape
from essim.results.columns import COLUMNS
from essim.simulate.plan import load_scenario
from essim.simulate.replay import run_decode
from essim.simulate.scenario import Scenario
from essim.simulate.sweep import Simulator
from essim.text.yaml import key_paths

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
DATA = ("hardware_profiles", "scenarios", "tests")


def commands() -> list[str]:
    """Return each line of the ``sh`` blocks of the worked example, in order."""
    text = (DOCS / "adding-a-selector.md").read_text()
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return [line for block in blocks for line in block.strip().splitlines()]


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


def test_links_between_docs_lead_somewhere() -> None:
    for file in [ROOT / "README.md", *DOCS.glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)\)", file.read_text()):
            assert (file.parent / target).exists(), f"{file.name}: {target}"


def test_the_scenario_in_the_readme_is_the_shipped_one(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "s.yaml").write_text(block)
    shown = load_scenario(tmp_path / "s.yaml")
    assert shown == load_scenario(ROOT / "scenarios" / "earlyselect-40k.yaml")
    assert len(shown[1]) == 7 * 3 * 7


def test_the_readmes_measured_kernels_are_those_of_the_profile() -> None:
    rows = doc_table((ROOT / "README.md").read_text(), "Measured kernels")
    shapes = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
    contexts = (4096, 12288)
    sparse = {"page_tokens": 4, "kv_block_tokens": 4}
    for column, batch in enumerate((1, 8)):
        gemms = [
            sum(table_us("gemm", batch, n=n, k=k, dtype=dtype) for n, k in shapes)
            for dtype in ("bf16", "fp8")
        ]
        quest = table_us("gpu_route_quest", batch, 32768, per="kv_head")
        expected = {
            "GEMMs of a layer (QKV, o, gate_up, down), BF16 / FP8": gemms,
            "sparse attention, 128 tokens": [table_us("attn_sparse", batch, 128, **sparse)],
            "dense attention, 4096 / 12288 tokens": at(contexts, "attn_dense", batch),
            "fused GPU router, 4096 / 12288 tokens": [
                table_us("gpu_route_fused", batch, tokens, 32) for tokens in contexts
            ],
            "stepwise GPU router, 4096 / 12288 tokens": at(contexts, "gpu_route_stepwise", batch),
            "CPU router, 8 threads, 4096 / 12288 tokens": at(contexts, "cpu_route", 8, batch),
            "GPU router of Quest (a KV head chooses), 32768 tokens": [quest],
            "GPU router of exact top-k, 32768 tokens": at([32768], "gpu_route_exact_topk", batch),
        }
        assert set(rows) == {"op", *expected}
        for label, values in expected.items():
            assert rows[label][column] == " / ".join(f"{value:.1f}" for value in values), label


def at(contexts: Sequence[int], table: str, *point: float) -> list[float]:
    return [table_us(table, *point, tokens) for tokens in contexts]


def test_the_readme_quotes_what_the_sweeps_print() -> None:
    blocks = re.findall(r"```\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (quoted,) = (block.splitlines() for block in blocks if block.startswith("Against"))
    _, points = load_scenario(ROOT / "scenarios" / "earlyselect-40k.yaml")
    simulator = Simulator(ROOT)
    said = sweep_sentences(points, simulator.rows(points), simulator)
    assert len(quoted) == 3
    assert set(quoted) <= set(said)
