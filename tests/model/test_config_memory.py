"""``essim memory`` and ``essim run`` of configs of which bytes are known and times are not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hfconfigs import LLAMA, write
from publicconfigs import LAGUNA, LFM2
from test_config_weights import AWQ, QWEN_7B

from essim.errors import InputError, PricingError
from essim.model.shape import PRESETS
from essim.simulate.derivation import derivation, facts, largest_batches
from essim.simulate.plan import load_scenario
from essim.simulate.scenario import Scenario
from essim.simulate.sweep import Simulator

ROOT = Path(__file__).parents[2]
TEXT = """\
name: test
model: config.json
hardware: h200-sxm
selector: {kind: dense}
routing: gpu-target
workload: {batch: 1, input_tokens: 1024, output_tokens: 2}
"""


def scenario(folder: Path, fields: dict, overrides: list[str] | None = None) -> Scenario:
    write(folder, fields)
    file = folder / "s.yaml"
    file.write_text(TEXT)
    return load_scenario(file, overrides or [])[0]


def essim(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "essim", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT)


def lines(point: Scenario) -> dict[tuple[str, str], int]:
    rows = derivation(point, Simulator().profile(point.hardware))
    return {(str(row["place"]), str(row["what"])): int(row["bytes"] or 0) for row in rows}


def test_memory_shows_kv_where_weights_are_not_known(tmp_path: Path) -> None:
    point = scenario(tmp_path, LFM2)
    found = lines(point)
    assert found["per token", "KV"] == 12_288
    assert found["per sequence", "KV at the last token"] == 1025 * 12_288
    assert not {what for _, what in found} & {"weights", "recurrent states", "total", "free"}
    profile = Simulator().profile(point.hardware)
    assert largest_batches(point, profile) == {}
    said = facts(point, profile, 1000)
    assert said[0].startswith("Weights, totals and the largest batch are left out: 10 layers of")
    assert said[-1].startswith("A pool of 1,000 tokens: KV 11.72 MiB")
    sized = {"weights": 4 * 2048**2, "state_bytes": 8192}
    known = lines(scenario(tmp_path, LFM2, [f"model.recurrent={json.dumps(sized)}"]))
    assert known["GPU", "recurrent states"] == 10 * 8192
    assert ("GPU", "total") in known


def test_the_command_line_shows_bytes_and_refuses_times(tmp_path: Path) -> None:
    scenario(tmp_path, LFM2)
    file = str(tmp_path / "s.yaml")
    shown = essim("memory", file, "--json")
    assert shown.returncode == 0
    assert json.loads(shown.stdout)["largest_batch"] == {}
    assert essim("run", file).returncode == 2
    scenario(tmp_path, QWEN_7B | {"quantization_config": AWQ})
    shown = essim("memory", file, "--json")
    weights = [r for r in json.loads(shown.stdout)["lines"] if r["what"] == "weights"]
    assert [row["bytes"] for row in weights] == [5_570_489_344]
    assert weights[0]["formula"] == (
        "int4 with a 16-bit scale and a 4-bit zero point for 128; embedding, LM head, norms 16-bit"
    )
    refused = essim("run", file)
    assert refused.returncode == 3
    assert "a step with int4 weights cannot be timed" in refused.stderr


def test_layers_of_several_sizes_have_bytes_but_no_time(tmp_path: Path) -> None:
    point = scenario(tmp_path, LAGUNA)
    found = lines(point)
    assert found["per token", "KV"] == 163_840
    assert found["GPU", "weights"] == 2 * 33_437_681_664
    # 1,024 tokens of 2 x 2048 and of the widest, the dense MLP of 3 x 8192; then the logits.
    assert found["GPU", "activations"] == 1024 * (4096 + 24_576) * 2 + 100_352 * 4
    with pytest.raises(PricingError, match="layers of several sizes cannot be timed"):
        Simulator().rows([point])
    with pytest.raises(InputError, match=r"layers of several sizes\. Use kind: dense"):
        scenario(tmp_path, LAGUNA, ["selector={kind: quest, budget_tokens: 512}"])


def test_ranks_share_layers_of_several_sizes(tmp_path: Path) -> None:
    point = scenario(tmp_path, LAGUNA, ["model.tp=8"])
    assert point.model.rank().kv_bytes_per_token() == 163_840 // 8
    norms = 81 * 2048 * 2
    routers = 39 * 256 * 2048 * 2
    whole = 2 * 33_437_681_664
    assert point.model.rank().weight_bytes() - norms - routers == (whole - norms - routers) / 8


def test_memory_says_of_which_rank_and_the_sums(tmp_path: Path) -> None:
    point = scenario(tmp_path, LLAMA, ["model=llama-3.1-70b", "model.tp=16"])
    found = lines(point)
    assert found["per token", "KV"] == 40_960
    assert found["16 ranks", "KV per token"] == 655_360
    for what, own in (("weights", "weights"), ("KV pool", "KV pool"), ("GPU total", "total")):
        assert found["16 ranks", what] == 16 * found["GPU", own]
    profile = Simulator().profile(point.hardware)
    rows = {str(row["what"]): str(row["formula"]) for row in derivation(point, profile)}
    assert rows["KV"].endswith("of one of 16 ranks")
    assert rows["KV per token"] == "16 x 40,960; each head once: 327,680"
    said = "Bytes of the GPU are those of one of 16 ranks; the host serves all."
    assert facts(point, profile, None)[0] == said


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("routing.channels=129", "channels (129) is above head_dim (128). Use 128 at most"),
        ("routing.projection_rank=4097", "projection_rank (4097) is above hidden (4096). Use"),
        ("routing.channels=128", ""),
        ("routing.projection_rank=4096", ""),
    ],
)
def test_widths_above_the_models_are_refused(tmp_path: Path, setting: str, message: str) -> None:
    if not message:
        assert scenario(tmp_path, LLAMA, [setting]).model == scenario(tmp_path, LLAMA).model
        return
    with pytest.raises(InputError) as error:
        scenario(tmp_path, LLAMA, [setting])
    assert message in str(error.value)


def test_widths_that_nobody_gave_are_cut(tmp_path: Path) -> None:
    """The default of 128 is above the hidden size of a tiny model."""
    tiny = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4}
    assert scenario(tmp_path, LLAMA | tiny).routing.projection_rank == 128


def test_mixed_dtypes_price_each_matrix_at_its_own() -> None:
    shape = PRESETS["llama-3.1-8b"].model_copy(
        update={"weight_dtype": "fp8", "wide": ["attention"]}
    )
    assert [shape.matrix_dtype(name) for name in ("qkv", "o", "gate_up", "down")] == [
        *("bf16", "bf16", "fp8", "fp8")
    ]
