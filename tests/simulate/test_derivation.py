"""Every byte by line, and capacity as the inverse of bytes."""

from __future__ import annotations

import pytest
from firstday import FIRST_DAY
from hypothesis import given, settings
from hypothesis import strategies as st

from essim.hardware.profile import load_profile, shipped
from essim.simulate.derivation import derivation, facts, largest_batches, pool_bytes, pool_tokens
from essim.simulate.memory import memory
from essim.simulate.plan import load_scenario

PROFILE = load_profile(FIRST_DAY)
MAIN = shipped("scenarios") / "earlyselect-40k.yaml"


def lines(*overrides: str) -> dict[tuple[str, str], int]:
    base, _ = load_scenario(MAIN, overrides)
    return {(row["place"], row["what"]): row["bytes"] for row in derivation(base, PROFILE)}


def test_the_papers_arithmetic_comes_out() -> None:
    found = lines()
    assert found["per token", "KV"] == 131072
    assert found["per token", "summary"] == 16384
    assert found["per token", "summary that is read"] == 15872
    assert pytest.approx(1 / 9) == 16384 / (131072 + 16384)
    base, _ = load_scenario(MAIN)
    kv, summary = pool_bytes(base, 347_000)
    assert summary / 2**30 == pytest.approx(5.3, abs=0.01)
    assert summary / (kv + summary) == pytest.approx(1 / 9)
    pool = "tokens (86,750 KV blocks of 4): KV 42.36 GiB, summary 5.29 GiB."
    assert f"A pool of 347,000 {pool}" in facts(base, PROFILE, 347_000)


def test_pools_are_made_of_whole_blocks() -> None:
    base, _ = load_scenario(MAIN, ["selector.kv_block_tokens=64"])
    kv, summary = 64 * 16 * 131072, 64 * 16 * 16384
    for tokens, blocks in (
        (1024, "1,024 tokens (16 KV blocks of 64)"),
        (961, "961 tokens (16 KV blocks of 64, 1,024 token slots)"),
    ):
        assert pool_bytes(base, tokens) == (kv, summary)
        said = f"A pool of {blocks}: KV 128.00 MiB, summary 16.00 MiB."
        assert said in facts(base, PROFILE, tokens)
    left = 64 * 131072 * 3
    assert pool_tokens(base, left + 1) == pool_tokens(base, left) == 192
    assert pool_tokens(base, left - 1) == 128
    dense, _ = load_scenario(MAIN, ["selector={kind: dense}"])
    said = "A pool of 961 tokens: KV 120.12 MiB."
    assert said in facts(dense, PROFILE, 961)


@pytest.mark.parametrize("routing", ["gpu-target", "cpu-mid", "gpu_side-mid"])
@pytest.mark.parametrize("batch", [1, 7])
def test_the_lines_of_a_place_add_up_to_its_total(routing: str, batch: int) -> None:
    found = lines(f"routing={routing}", f"workload.batch={batch}")
    for place, has in (("GPU", 141_000_000_000), ("CPU", 125 * 2**30)):
        parts = [
            n for (p, what), n in found.items() if p == place and what not in ("total", "free")
        ]
        assert found[place, "total"] == sum(parts)
        assert found[place, "free"] == has - sum(parts)


def test_totals_are_those_that_decide_what_fits() -> None:
    base, _ = load_scenario(MAIN)
    need = memory(base, PROFILE)
    assert lines()["GPU", "total"] == need.gpu_bytes
    assert lines()["CPU", "total"] == need.cpu_bytes


def test_moving_the_summary_to_the_cpu_admits_more_sequences() -> None:
    base, _ = load_scenario(MAIN)
    assert largest_batches(base, PROFILE) == {"GPU": 62, "CPU": 70}
    dense, _ = load_scenario(MAIN, ["selector={kind: dense}"])
    assert largest_batches(dense, PROFILE) == {"GPU": 17}
    assert ("per token", "summary") not in lines("selector={kind: dense}")


def test_the_host_holds_the_summaries_of_every_rank() -> None:
    (row,) = (
        row
        for row in derivation(load_scenario(MAIN, ["model.tp=2"])[0], PROFILE)
        if row["what"] == "summary at the last token"
    )
    assert str(row["formula"]).endswith(", of 2 ranks")
    assert row["bytes"] == 2 * 8192 * 12288


def test_no_count_of_tokens_fits_a_pool_of_layers_with_windows() -> None:
    mixers = "[" + ", ".join(["full", "sliding"] * 16) + "]"
    windows = f"model={{preset: llama-3.1-8b, mixers: {mixers}, window_tokens: 64}}"
    base, _ = load_scenario(MAIN, [windows])
    assert not any("pool of all that is left" in text for text in facts(base, PROFILE, None))


@pytest.mark.filterwarnings("ignore:.*no power of two")
@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**13), st.sampled_from(["bf16", "fp8"]), st.sampled_from([1, 3, 4, 16]))
def test_capacity_is_the_inverse_of_bytes(budget: int, kv_dtype: str, page: int) -> None:
    overrides = [f"model.kv_dtype={kv_dtype}", f"selector.page_tokens={page}"]
    overrides += [f"selector.kv_block_tokens={page}"]
    base, _ = load_scenario(MAIN, [*overrides, "routing=gpu-target"])
    tokens = pool_tokens(base, budget)
    assert sum(pool_bytes(base, tokens)) <= budget < sum(pool_bytes(base, tokens + 1))
    base, _ = load_scenario(MAIN, [*overrides, "routing=cpu-mid"])
    tokens = pool_tokens(base, budget)
    assert pool_bytes(base, tokens)[0] <= budget < pool_bytes(base, tokens + 1)[0]


def test_what_is_left_on_the_gpu_is_said_for_where_the_summary_is() -> None:
    for routing, held, said in (
        ("gpu-target", 147456, "A KV + summary pool of all that is left on the GPU holds"),
        ("cpu-mid", 131072, "A KV pool of all that is left on the GPU holds"),
    ):
        base, _ = load_scenario(MAIN, [f"routing={routing}"])
        need = memory(base, PROFILE)
        fixed = need.weight_bytes + need.proxy_gpu_bytes + need.activation_bytes
        left = 141_000_000_000 - fixed - need.reserve_gpu_bytes
        blocks = left // (4 * held)
        holds = f"{said} {4 * blocks:,} tokens ({blocks:,} KV blocks of 4)."
        assert holds in facts(base, PROFILE, None)


@pytest.mark.parametrize(
    ("model", "formula"),
    [
        ("kv_dtype: fp8, kv_scale_group: 32", "8 heads x 128 x 1 B fp8 with a 16-bit scale for 32"),
        ("tp: 4", "K and V x 2 heads x 128 x 2 B bf16 x 32 layers"),
        (
            "layers: 2, mixers: [full, sliding], window_tokens: 64",
            "x 2 layers, 1 of which keep at most 64 tokens",
        ),
        (
            "layers: 2, mixers: [full, recurrent], recurrent: {weights: 5, state_bytes: 7}",
            "x 1 layers",
        ),
        (
            "head_dim: 192, kv_heads: 32, "
            "mla: {kv_rank: 512, rope_dim: 64, nope_dim: 128, v_dim: 128}",
            "a latent of 576 x 2 B bf16 x 32 layers",
        ),
    ],
)
def test_lines_say_what_holds_kv_and_still_add_up(model: str, formula: str) -> None:
    model = f"model={{preset: llama-3.1-8b, {model}}}"
    base, _ = load_scenario(MAIN, ["selector={kind: dense}", model])
    rows, need = derivation(base, PROFILE), memory(base, PROFILE)
    assert formula in str(rows[0]["formula"])
    assert rows[0]["bytes"] == base.model.rank().kv_bytes_per_token()
    parts = [r["bytes"] for r in rows if r["place"] == "GPU" and r["what"] not in ("total", "free")]
    assert sum(parts) == need.gpu_bytes


def test_block_and_token_utilisation_are_shown() -> None:
    overrides = ["selector.kv_block_tokens=16", "workload.input_tokens=17"]
    base, _ = load_scenario(MAIN, [*overrides, "workload.output_tokens=1"])
    said = "At the last token a sequence fills 17 of its 32 token slots (53.1%)"
    assert any(fact.startswith(said) for fact in facts(base, PROFILE, None))
