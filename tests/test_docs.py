"""What the docs claim, computed."""

from __future__ import annotations

import csv
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from essim.decode import run_decode
from essim.engines import finish_maxplus
from essim.hardware import find_profile, load_profile
from essim.model import ModelShape
from essim.results import COLUMNS
from essim.routing import Routing
from essim.scenario import Scenario, load_scenario
from essim.selectors import SELECTORS
from essim.yamlfile import key_paths

ROOT = Path(__file__).parent.parent
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
        op.name.split(".")[0]: row[-1] / 1e6
        for op, row in zip(run.ops, run.durations_ps, strict=True)
        if op.name.endswith(".10")
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
    assert parts["route"] == pytest.approx(59.21, abs=1e-3)
    assert period == pytest.approx(193.284, abs=1e-3)
    parts, period = layer_us("gpu-target-fused")
    assert parts["route"] == pytest.approx(6.78, abs=1e-3)
    assert period == pytest.approx(140.855, abs=1e-3)


def test_the_layer_by_hand_with_early_routing() -> None:
    parts, period = layer_us("cpu-mid")
    assert period == pytest.approx(142.762, abs=1e-3)
    added = {name: parts[name] for name in ("proxy_down", "publish", "await")}
    assert added == pytest.approx({"proxy_down": 3.406, "publish": 1.677, "await": 3.605}, abs=1e-3)
    window = sum(parts[op] for op in ("norm2", "gate_up", "act", "down", "norm1", "qkv", "rope"))
    assert window == pytest.approx(114.812, abs=1e-3)
    assert parts["anchor_d2h"] + parts["index_h2d"] == pytest.approx(0.13, abs=0.01)
    parts, period = layer_us("gpu_side-mid-fused")
    assert parts["slowdown"] == pytest.approx(1.4, abs=1e-3)
    assert period == pytest.approx(135.475, abs=1e-3)


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
    profile = load_profile(find_profile("h200-sxm", ROOT))

    def us(table: str, *point: float, **keys: object) -> float:
        grid = profile.tables[table].grid(keys)
        assert grid is not None
        return float(grid.at(point).mean_s) * 1e6

    text = (ROOT / "README.md").read_text()
    rows = {}
    for line in text.split("## Measured kernels")[1].split("##")[0].splitlines():
        if line.startswith("| ") and "---" not in line:
            label, *cells = (cell.strip() for cell in line.strip("|").split("|"))
            rows[label] = cells
    shapes = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]
    contexts = (4096, 12288)
    for column, batch in enumerate((1, 8)):
        gemms = sum(us("gemm", batch, n=n, k=k, dtype="bf16") for n, k in shapes)
        expected = {
            "GEMMs of a layer: QKV, o, gate_up, down": [gemms],
            "sparse attention, 128 tokens": [us("attn_sparse", batch, 128, kv_block_tokens=4)],
            "dense attention, 4096 / 12288 tokens": [us("attn_dense", batch, s) for s in contexts],
            "fused GPU router, 4096 / 12288 tokens": [
                us("gpu_route_fused", batch, s) for s in contexts
            ],
            "stepwise GPU router, 4096 / 12288 tokens": [
                us("gpu_route_stepwise", batch, s) for s in contexts
            ],
            "CPU router, 8 threads, 4096 / 12288 tokens": [
                us("cpu_route", 8, batch, s) for s in contexts
            ],
        }
        for label, values in expected.items():
            found = [float(number) for number in rows[label][column].split(" / ")]
            assert found == pytest.approx(values, abs=0.06), label


def test_the_chains_of_the_docs_are_those_that_were_measured() -> None:
    """Predicted and measured steps of docs/performance.md, and the sums of prices in the chain."""
    folder = ROOT / "hardware_profiles" / "h200-sxm" / "chain"
    with (folder / "prices-1.csv").open() as file:
        rows = list(csv.DictReader(file))
    sums = [float(r["price_us"]) for r in rows if r["op"] == "sum of prices / step"]
    assert len(sums) == 6
    assert all(1.001 <= ratio < 1.0085 for ratio in sums)
    steps = {
        (int(r["batch"]), int(r["context_tokens"])): float(r["price_us"])
        for r in rows
        if r["op"] == "step"
    }
    text = (DOCS / "performance.md").read_text()
    for (batch, tokens), measured_us in steps.items():
        overrides = ["routing=gpu-target-fused", f"workload.batch={batch}"]
        overrides += [f"workload.output_tokens={tokens - 4096 + 2}"]
        base, _ = load_scenario(ROOT / "scenarios" / "earlyselect-40k.yaml", overrides)
        # The chain attends over `tokens`; a run's step i attends over 4096 + i.
        profile = load_profile(find_profile("h200-sxm", ROOT))
        run = run_decode(base, profile, finish_maxplus, tokens - 4096 + 1)
        predicted_us = run.unrouted_ps[-1] / 1e6
        row = f"| {batch} | {tokens} | {measured_us:.1f} | {predicted_us:.1f} | "
        row += f"{100 * (predicted_us / measured_us - 1):.1f} % |"
        assert row in text
