"""Bytes, and the largest batch as their inverse."""

from __future__ import annotations

import math

import pytest
from firstday import FIRST_DAY
from hypothesis import given, settings
from hypothesis import strategies as st

from essim.hardware.profile import load_profile
from essim.simulate.memory import max_batch, memory, shortage
from essim.simulate.plan import load_scenario

PROFILE = load_profile(FIRST_DAY)
KIB, MIB = 2**10, 2**20


def test_every_byte_of_the_main_scenario(scenario_file) -> None:
    base, _ = load_scenario(scenario_file(("output_tokens: 16", "output_tokens: 1")))
    need = memory(base, PROFILE)
    assert need.weight_bytes == 2 * 8_030_261_248
    assert need.kv_bytes == 4096 * 131072
    assert need.kv_peak_bytes == 40960 * 131072
    assert (need.summary_gpu_bytes, need.summary_cpu_bytes) == (0, 64 * MIB)
    # 31 layers of rank 128: the first factor on the GPU, the second with the router.
    assert (need.proxy_gpu_bytes, need.proxy_cpu_bytes) == (31 * MIB, 31 * MIB)
    scores = 32 * 32 * 40960 * 4
    assert need.activation_bytes == 40960 * (2 * 4096 + 3 * 14336) * 2 + scores + 128256 * 4
    assert need.reserve_gpu_bytes == 7_050_000_000


def test_summaries_lie_where_routing_reads_them(scenario_file) -> None:
    base, _ = load_scenario(scenario_file(), ["routing=gpu-target"])
    need = memory(base, PROFILE)
    # Blocks of 4 tokens: 4096 + 15 are 4112 slots.
    assert (need.summary_gpu_bytes, need.summary_cpu_bytes) == (4112 * 16384, 0)
    assert need.kv_bytes == 4112 * 131072
    share = need.summary_gpu_bytes / (need.summary_gpu_bytes + need.kv_bytes)
    assert share == pytest.approx(1 / 9)


def test_whole_blocks_are_allocated(scenario_file) -> None:
    """17-token prompts in 16-token blocks take 32 slots each."""
    overrides = [
        "selector.kv_block_tokens=16",
        "workload.input_tokens=17",
        "workload.output_tokens=1",
        "workload.batch=3",
    ]
    base, _ = load_scenario(scenario_file(), overrides)
    assert memory(base, PROFILE).kv_bytes == 3 * 32 * 131072


def test_the_full_projection_is_the_models_own_on_the_gpu(scenario_file) -> None:
    overrides = ["routing.projection_rank=null"]
    base, _ = load_scenario(scenario_file(), overrides)
    need = memory(base, PROFILE)
    assert (need.proxy_gpu_bytes, need.proxy_cpu_bytes) == (0, 31 * 32 * MIB)
    side, _ = load_scenario(scenario_file(), [*overrides, "routing=gpu_side-mid"])
    need = memory(side, PROFILE)
    assert (need.proxy_gpu_bytes, need.proxy_cpu_bytes) == (0, 0)


def test_a_point_that_does_not_fit_says_what_it_needs(scenario_file) -> None:
    base, _ = load_scenario(scenario_file(), ["model=llama-3.1-70b"])
    assert shortage(base, PROFILE).startswith("needs 1")
    assert "GB of GPU memory, which has 141.0 GB" in shortage(base, PROFILE)
    assert max_batch(base, PROFILE) == 0


def test_the_host_may_be_what_is_short(scenario_file) -> None:
    """BF16 summaries of every token are twice the FP8 KV: the host fills before the GPU."""
    overrides = [
        "model.kv_dtype=fp8",
        "selector.page_tokens=1",
        "selector.kv_block_tokens=1",
        "selector.summary_dtype=bf16",
    ]
    base, _ = load_scenario(scenario_file(), overrides)
    batch = max_batch(base, PROFILE)
    usable = 0.95 * PROFILE.spec.cpu.memory_bytes.value - 31 * MIB
    assert batch == math.floor(usable / (4111 * 131072)) == 236
    assert "of CPU memory" in shortage(base, PROFILE, batch + 1)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 60000), st.integers(1, 9000), st.sampled_from(["cpu-mid", "gpu-target"]))
def test_the_largest_batch_fits_and_one_more_does_not(
    input_tokens: int, output_tokens: int, routing: str
) -> None:
    from essim.hardware.profile import shipped

    overrides = [
        f"workload.input_tokens={input_tokens}",
        f"workload.output_tokens={output_tokens}",
        f"routing={routing}",
    ]
    base, _ = load_scenario(shipped("scenarios") / "earlyselect-40k.yaml", overrides)
    batch = max_batch(base, PROFILE)
    assert batch >= 1
    assert shortage(base, PROFILE, batch) == ""
    assert shortage(base, PROFILE, batch + 1) != ""
