"""A real run on this machine beside its prediction, from a calibration of this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

from decodes import essim  # noqa: E402

from essim.methods.selectors.rocketkv import RocketKV  # noqa: E402
from essim.model.shape import ModelShape  # noqa: E402
from essim.simulate.plan import load_scenario  # noqa: E402
from measure.decode.cpu.loop import CpuDecode  # noqa: E402
from measure.decode.shared.loop import Settings  # noqa: E402
from measure.decode.shared.weights import Weights  # noqa: E402
from measure.decode.validate import cpu_plan_of, gpu_plan_of, why_not  # noqa: E402
from measure.harness.machine import thread_count  # noqa: E402

# The tiny model chooses five pages, which kernels pad.
pytestmark = pytest.mark.filterwarnings("ignore:.*no power of two")

TINY = """
name: tiny
model: {name: tiny, layers: 4, hidden: 96, heads: 6, kv_heads: 2, head_dim: 32, ffn: 128,
  vocab: 199, max_context_tokens: 512, weight_dtype: fp32, kv_dtype: fp32}
hardware: cpu-2core
selector: {kind: rocketkv, prompt_budget: 48, page_tokens: 4, top_pages: 5, kv_block_tokens: 4}
routing: {where: cpu, anchor: mid, projection_rank: 16, channels: 8, cpu_threads: 1}
workload: {batch: 2, input_tokens: 40, output_tokens: 5}
sweep:
  selector:
    - {kind: dense}
    - {kind: rocketkv, prompt_budget: 48, page_tokens: 4, top_pages: 5, kv_block_tokens: 4}
  routing: [gpu-target, cpu-mid, gpu_side-mid]
"""

needs_two_cores = pytest.mark.skipif(thread_count() < 2, reason="needs two cores")


@pytest.fixture
def scenario(tmp_path: Path) -> Callable[..., Path]:
    def written(text: str = TINY) -> Path:
        file = tmp_path / "s.yaml"
        file.write_text(text)
        return file

    return written


@needs_two_cores
def test_every_point_that_can_run_is_run_and_laid_beside_its_prediction(
    scenario: Callable[..., Path], tmp_path: Path
) -> None:
    file, out = scenario(), tmp_path / "run"
    done = essim("validate", str(file), "--out", str(out), "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [(p["mode"], p["batch"], p["context_tokens"], p["attended_tokens"], p["steps"])
            for p in found["pairs"]] == [
        ("dense", 2, 40, 40, 4),
        ("gpu-target", 2, 40, 20, 4),
        ("cpu-mid", 2, 40, 20, 4),
    ]  # fmt: skip
    assert [(d["mode"], d["reason"]) for d in found["dropped"]] == [
        ("gpu_side-mid", "mode gpu_side-mid needs a GPU")
    ]
    assert {p["repetitions"] for p in found["pairs"]} == {3}
    assert {f.name for f in out.iterdir()} == {
        *("decode.csv", "provenance.json"),
        *("trace-dense.json", "trace-gpu-target.json", "trace-cpu-mid.json"),
    }
    assert json.loads((out / "provenance.json").read_text())["selector"]["top_pages"] == 5
    # Again: nothing is timed twice, and the table has a line a cell.
    before = (out / "decode.csv").read_bytes()
    done = essim("validate", str(file), "--out", str(out), "--tolerance", "1e-9", cwd=tmp_path)
    assert done.returncode == 1
    assert "the worst error is" in done.stderr
    assert "cpu-mid" in done.stdout
    assert (out / "decode.csv").read_bytes() == before
    other = ("--set", "routing.channels=16")
    done = essim("validate", str(file), "--out", str(out), *other, cwd=tmp_path)
    assert done.returncode == 2
    assert "provenance.json: channels of the run that is there differs. Give another" in done.stderr


def test_a_run_on_a_gpu_is_said_to_be_of_the_points_selector(
    scenario: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    of_the_campaign = {"selector": {"top_pages": 32}, "rank": 128}
    plan = cpu_plan_of(load_scenario(scenario())[1])

    def make_plan(modes: None, quick: bool, steps: int) -> object:
        return replace(plan, cells=(), facts=of_the_campaign)

    module = SimpleNamespace(make_plan=make_plan)
    monkeypatch.setitem(sys.modules, "measure.decode.gpu.plan", module)
    made = gpu_plan_of(load_scenario(scenario())[1])
    assert (made.facts["selector"]["top_pages"], made.facts["rank"]) == (5, 128)
    assert [cell.mode for cell in made.cells] == ["dense", "gpu-target", "cpu-mid", "gpu_side-mid"]


REFUSED = [
    (("selector.prompt_budget=32", "workload.input_tokens=4"), "the cache holds 4 tokens or fewer"),
    (("workload.output_tokens=1",), "one output token has no decode step"),
    (("workload.input_tokens=510",), "the cache ends at the model's context"),
    (("routing.projection_rank=null",), "early routing needs a projection_rank here, and down_"),
    (("routing.cpu_threads=999",), "999 router threads and the main stream on"),
    (("model.kv_dtype=bf16",), "the loop without a GPU is in fp32"),
]


@pytest.mark.parametrize(("overrides", "reason"), REFUSED)
def test_what_the_loop_cannot_run_is_said(
    scenario: Callable[..., Path], overrides: tuple[str, ...], reason: str
) -> None:
    text = TINY.split("sweep:")[0].replace("prompt_budget: 48", "prompt_budget: 600")
    base, _ = load_scenario(scenario(text), overrides)
    assert why_not(base, gpu=False).startswith(reason)


def test_nothing_to_run_and_several_output_lengths_are_errors(
    scenario: Callable[..., Path], tmp_path: Path
) -> None:
    file = str(scenario())
    done = essim("validate", file, "--set", "model.weight_dtype=bf16", cwd=tmp_path)
    assert done.returncode == 2
    assert "no point of the scenario can run here. Reasons: the loop without a GPU" in done.stderr
    done = essim("validate", file, "--html", "page", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "--html: page does not end in .html\n")
    (tmp_path / "provenance.json").write_text("{")
    for out, said in (("s.yaml", "cannot be written"), (".", "provenance.json:1: is not JSON")):
        done = essim("validate", file, "--out", out, cwd=tmp_path)
        assert done.returncode == 2
        assert said in done.stderr
    several = ("--set", "sweep.workload.output_tokens=[5, 9]")
    done = essim("validate", file, *several, cwd=tmp_path)
    assert done.returncode == 2
    assert "output lengths 5, 9: a real run times one" in done.stderr


def test_selectors_that_a_run_says_once_may_not_differ(
    scenario: Callable[..., Path], tmp_path: Path
) -> None:
    blocks = TINY.replace("kv_block_tokens: 4}\n  routing", "kv_block_tokens: 16}\n  routing")
    other = blocks.replace("    - {kind: dense}\n", "    - {kind: rocketkv, prompt_budget: 48, "
                           "page_tokens: 4, top_pages: 6, kv_block_tokens: 4}\n")  # fmt: skip
    done = essim("validate", str(scenario(other)), cwd=tmp_path)
    assert done.returncode == 2
    assert "selectors with kv_block_tokens 16, 4: a real run has one" in done.stderr


@needs_two_cores
def test_a_mix_may_come_later_but_not_change(scenario: Callable[..., Path], tmp_path: Path) -> None:
    routings = "[gpu-target, cpu-mid, gpu_side-mid]"
    plain, unswept = TINY.replace(routings, "[cpu-mid]"), TINY.replace(f"  routing: {routings}", "")
    first, second = (
        unswept.replace("anchor: mid", f"anchor: mix, mix: [{anchors}]")
        for anchors in ("in, mid, in", "mid, mid, in")
    )
    for text, code in ((plain, 0), (first, 0), (plain, 0), (second, 2)):
        run = ("validate", str(scenario(text)), "--out", str(tmp_path / "run"))
        done = essim(*run, cwd=tmp_path)
        assert done.returncode == code, done.stderr
    assert "mix of the run that is there differs" in done.stderr


def test_the_laptop_scenario_is_a_plan_of_the_loop() -> None:
    root = Path(__file__).parents[2]
    _, points = load_scenario(root / "scenarios" / "validate-laptop.yaml")
    assert {why_not(point, gpu=False) for point in points} <= {""}
    plan = cpu_plan_of(points)
    assert (len(plan.cells), plan.steps) == (20, 16)
    assert plan.facts["rank"] == 64


VALIDATED = """
name: this-machine
model: {preset: smollm2-135m, weight_dtype: fp32, kv_dtype: fp32}
hardware: mine
selector: {kind: rocketkv, prompt_budget: 2048, page_tokens: 4, top_pages: 16, kv_block_tokens: 4}
routing: {where: cpu, anchor: mid, projection_rank: 64, channels: 16, cpu_threads: 1}
workload: {batch: 1, input_tokens: 1200, output_tokens: 9}
sweep:
  selector:
    - {kind: dense}
    - {kind: rocketkv, prompt_budget: 2048, page_tokens: 4, top_pages: 16, kv_block_tokens: 4}
  routing: [gpu-target, cpu-mid]
"""


@needs_two_cores
def test_a_calibration_of_this_machine_prices_its_real_steps(measured: Path) -> None:
    (measured / "s.yaml").write_text(VALIDATED)
    done = essim("validate", "s.yaml", "--json", cwd=measured)
    assert done.returncode == 0, done.stderr
    pairs = json.loads(done.stdout)["pairs"]
    assert [pair["mode"] for pair in pairs] == ["dense", "gpu-target", "cpu-mid"]
    for pair in pairs:
        assert pair["predicted_low_s"] < pair["predicted_s"] < pair["predicted_high_s"]
        assert pair["error_frac"] == pytest.approx(pair["predicted_s"] / pair["measured_s"] - 1)
    done = essim("sweep", "s.yaml", "--json", cwd=measured)
    rows = json.loads(done.stdout)["rows"]
    assert [row["measured_frac"] for row in rows] == [1.0, 1.0, 1.0]


# Many query heads over a long context in pages of one token make the router long; the MLP is there
# to hide it.
WIDE = ModelShape(
    name="wide",
    layers=7,
    hidden=128,
    heads=64,
    kv_heads=4,
    head_dim=64,
    ffn=8192,
    vocab=1000,
    max_context_tokens=2100,
    weight_dtype="fp32",
    kv_dtype="fp32",
)
PAGES = RocketKV(prompt_budget=2048, page_tokens=1, top_pages=64, kv_block_tokens=1)
STEPS = 8


def answered_early(mode: str, weights: Weights) -> list[bool]:
    """Whether each route of some steps was answered before the main stream came to wait for it."""
    settings = Settings(WIDE, PAGES, mode, 2, 2100, rank=64, channels=64, trace=True)
    found = []
    with CpuDecode(settings, weights) as loop:
        loop.set_position(2048)
        for _ in range(STEPS):
            loop.step()
            awaits = {name: start for name, start, _, on in loop.events if on == "gpu"}
            found += [
                end < awaits[name.replace("route", "await")]
                for name, _, end, on in loop.events
                if on == "cpu"
            ]
    return found


@needs_two_cores
def test_an_early_route_is_answered_while_the_main_stream_goes_on() -> None:
    """Which of two events came first is asked, not how long they took."""
    weights = Weights.random(WIDE, 0)
    late, early = (answered_early(mode, weights) for mode in ("cpu-target", "cpu-mid"))
    assert len(late) == len(early) == STEPS * (WIDE.layers - 1)
    assert not any(late)
    assert any(early)
