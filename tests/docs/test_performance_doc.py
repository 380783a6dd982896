"""The kernels and chains of docs/performance.md, computed from the profile h200-sxm."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from h200 import H200, ROOT, chain, doc_table, floor_us, table_us

from essim.simulate.plan import load_scenario
from essim.step.kinds import Case, Point
from essim.step.price import CostModel

TEXT = (ROOT / "docs" / "performance.md").read_text()
WORDS = " ".join(TEXT.split())
POINTS = [(1, 4096), (1, 12288), (4, 4096), (4, 12288), (8, 4096), (8, 12288), (16, 4096)]
# Bytes of a token's keys in a layer; of its keys and values.
KEYS, KV = 8 * 128 * 2, 2 * 8 * 128 * 2
GEMMS = {
    "gate_up": (28672, 4096),
    "down": (4096, 14336),
    "QKV": (6144, 4096),
    "o_proj": (4096, 4096),
}


def documented_kernels() -> dict[str, tuple[float, float]]:
    """Each kernel's microseconds and the microseconds its bytes and launches need."""
    found = {
        f"{name} GEMM, {dtype.upper()}": (
            table_us("gemm", 1, n=n, k=k, dtype=dtype),
            floor_us(n * k * size, 1),
        )
        for dtype, size in (("bf16", 2), ("fp8", 1))
        for name, (n, k) in GEMMS.items()
    }
    sparse = "sparse attention, 128 tokens in pages of 4"
    paged = "sparse attention, 2032 tokens in pages of 16"
    quest = "Quest router, 32768 tokens, a {} head chooses"
    # Tokens and pages before the tail page, which a router does not score.
    scan = floor_us(2047 * KV, 2)
    return (
        found
        | {
            "dense attention, 12288 tokens": (
                table_us("attn_dense", 1, 12288),
                floor_us(12288 * KV, 2),
            ),
            "dense attention, 12288 tokens, batch 8": (
                table_us("attn_dense", 8, 12288),
                floor_us(8 * 12288 * KV, 2),
            ),
            sparse: (
                table_us("attn_sparse", 1, 128, page_tokens=4, kv_block_tokens=4),
                floor_us(132 * KV, 1),
            ),
            paged: (
                table_us("attn_sparse", 1, 2032, page_tokens=16, kv_block_tokens=16),
                floor_us(2048 * KV, 2),
            ),
            "fused router": (table_us("gpu_route_fused", 1, 4096, 32), floor_us(8 * 1023 * 32, 1)),
            "stepwise router": (
                table_us("gpu_route_stepwise", 1, 4096),
                floor_us(8 * 1023 * 256, 6),
            ),
            quest.format("query"): (table_us("gpu_route_quest", 1, 32768, per="query_head"), scan),
            quest.format("KV"): (table_us("gpu_route_quest", 1, 32768, per="kv_head"), scan),
            "exact top-k router, 32768 tokens": (
                table_us("gpu_route_exact_topk", 1, 32768),
                floor_us(32768 * KEYS, 4),
            ),
            "norm with residual": (table_us("norm", 1), floor_us(3 * 4096 * 2, 1)),
        }
        | small_and_prefill()
    )


def small_and_prefill() -> dict[str, tuple[float, float]]:
    """The rest of a layer, its ends, the hand-over, and what a prompt of 40960 tokens needs."""
    prompt, latent, key = 40960, 2 * 128, KEYS
    flops = 4 * prompt**2 / 2 * 32 * 128
    return {
        "RoPE and KV append": (table_us("rope", 1), floor_us(2 * 6144 * 2, 1)),
        "SiLU times the other half": (table_us("act", 1), floor_us(3 * 14336 * 2, 1)),
        "embedding": (table_us("embed", 1), floor_us(2 * 4096 * 2, 1)),
        "LM head and sampling": (table_us("head", 1), floor_us(128256 * 4096 * 2, 3)),
        "proxy query, rank 128": (
            table_us("gpu_proxy", 1, projection_rank=128),
            floor_us(2 * 128 * 4096 * 2, 2),
        ),
        "down-projection, rank 128": (table_us("proxy_down", 1), floor_us(128 * 4096 * 2, 1)),
        "publish of latent and key": (table_us("publish", latent + key), floor_us(0, 1)),
        "await, 1 KiB of indices": (table_us("await", 1024), floor_us(0, 1)),
        "prefill attention, 40960 tokens": (
            table_us("attn_prefill", prompt),
            flops / H200.spec.gpu.bf16_flops_per_s.value * 1e6,
        ),
        "stage 1, 40960 tokens": (
            table_us("stage1_select", prompt),
            floor_us(prompt * KEYS + 2 * 4096 * KV, 1),
        ),
        "page summaries of 4096 kept tokens": (
            table_us("summary_build", 4096),
            floor_us(4096 * (KEYS + 512 * 1), 1),
        ),
        "Quest summaries of 40960 tokens": (
            table_us("summary_build_quest", prompt),
            floor_us(prompt * (KEYS + 2 * KEYS / 16), 1),
        ),
    }


def test_the_kernels_beside_their_limits() -> None:
    shown = doc_table(TEXT, "The measured kernels beside their limits")
    expected = documented_kernels()
    assert set(shown) == {"kernel", *expected}
    for label, (us, limit_us) in expected.items():
        cells = [f"{us:.1f}", f"{limit_us:.1f}", f"{100 * limit_us / us:.0f} %"]
        assert shown[label][:3] == cells, label


def test_the_aims_of_the_routers() -> None:
    inline = {
        (int(row["batch"]), int(row["context_tokens"])): float(row["added_us"])
        for row in chain("chain_routing")
        if (row["routing"], row["kernel"]) == ("inline", "fused")
    }
    assert f"tokens it adds {inline[1, 4096]:.2f} us a routed layer to a whole step" in WORDS
    assert f"12288 tokens it adds {inline[8, 12288]:.2f} us" in WORDS
    fused, stepwise = "gpu_route_fused", "gpu_route_stepwise"
    assert f"{table_us(fused, 1, 4096, 32):.2f} us in the table" in WORDS
    assert f"12288 tokens ({table_us(fused, 8, 12288, 32):.2f})" in WORDS
    assert f"{table_us(stepwise, 1, 4096):.2f} us at batch 1" in WORDS
    assert f"{table_us(stepwise, 8, 12288):.2f} us at batch 8" in WORDS
    for context in (4096, 12288):
        before, after = (table_us(fused, batch, context, 32) for batch in (17, 24))
        assert re.search(rf"{before:.2f} to {after:.2f}( us)?\s+at\s+{context}", WORDS)
    grid = H200.tables["cpu_route"].grid({})
    assert grid is not None
    at = tuple(np.searchsorted(axis, v) for axis, v in zip(grid.axes, (8, 1, 4096), strict=True))
    median, tail = (grid.values[name][at] * 1e6 for name in ("p50_s", "p99_s"))
    assert f"{median:.1f} us median and {tail:.1f} us at the 99th percentile" in WORDS


def predicted_us(batch: int, tokens: int, counts: dict[str, int]) -> float:
    """Return what essim's prices of a step's ops add up to, with what a long graph takes beyond.

    Sampling is in the head's price.
    """
    base, _ = load_scenario(ROOT / "scenarios" / "earlyselect-40k.yaml", [])
    case = Case(base.model, base.resolved_selector(), base.routing)
    costs = CostModel(H200, case, strict=True)
    at = Point(batch, batch, np.array([tokens]))
    return sum(
        count * float(costs.price(op, at).mean_s[0]) * 1e6
        for op, count in (counts | {"host": 1}).items()
        if op != "sample"
    )


def test_prices_add_up_to_the_steps_that_were_measured() -> None:
    rows = chain("chain_prices")
    points = itertools.groupby(rows, key=lambda r: (int(r["batch"]), int(r["context_tokens"])))
    seen, sums = [], []
    for (batch, tokens), group in points:
        found = {row["op"]: row for row in group}
        measured = float(found.pop("step")["price_us"])
        sums.append(float(found.pop("sum of prices / step")["price_us"]))
        counts = {op: int(row["count"]) for op, row in found.items()}
        assert sum(counts.values()) == 2 + 65 + 32 * 6 + 32 + 1
        predicted = predicted_us(batch, tokens, counts)
        row = f"| {batch} | {tokens} | {measured:.1f} | {predicted:.1f} | "
        assert row + f"{100 * (predicted / measured - 1):+.2f} % |" in TEXT
        assert predicted == pytest.approx(measured, rel=0.004)
        seen.append((batch, tokens))
    assert sorted(seen) == POINTS
    assert f"is {100 * min(sums):.1f} to {100 * max(sums):.1f} %" in WORDS


def test_a_long_graph_takes_more_once() -> None:
    more_us = {int(row["layers"]): float(row["us_a_layer_more"]) for row in chain("graphs")}
    assert list(more_us) == list(range(2, 33, 2))
    once = more_us.pop(26)
    assert f"takes {min(more_us.values()):.1f} to {max(more_us.values()):.1f} us" in WORDS
    beyond_us = 2 * (once - np.median([*more_us.values()]))
    assert f"to 26 layers {once:.1f}, some {beyond_us:.0f} us" in WORDS
    host_us = H200.spec.constants["host"].value * 1e6
    assert f"takes in short graphs: {host_us:.1f} us on" in WORDS


def test_what_slows_what() -> None:
    shown = [line for line in TEXT.split("## What slows what")[1].splitlines() if line[:2] == "| "]
    columns = ["inline fused", "side fused", "inline stepwise", "side stepwise", "handover fused"]
    routing = chain("chain_routing")
    for batch, tokens in POINTS:
        added = {
            f"{row['routing']} {row['kernel']}": f"{float(row['added_us']):.2f}"
            for row in routing
            if (row["batch"], row["context_tokens"]) == (str(batch), str(tokens))
        }
        assert f"| {batch} | {tokens} | {' | '.join(added[c] for c in columns)} |" in shown
    hosts = chain("host")
    for row in hosts:
        cells = [row[key] for key in ("beside", "routers", "threads", "batch", "context_tokens")]
        cells += [f"{float(row[key]):.1f}" for key in ("mean_us", "p50_us", "p99_us")]
        assert f"| {' | '.join(cells)} | {100 * float(row['slowdown_frac']):.0f} % |" in shown
    assert len(hosts) == 12


def test_copies_over_their_size() -> None:
    shown = doc_table(TEXT, "Copies over their size")
    sizes = (256, 8 << 10, 64 << 10, 1 << 20, 8 << 20, 128 << 20)
    found = {(row["link"], int(row["size_bytes"])): float(row["copy_us"]) for row in chain("links")}
    for link, label in (("d2h", "to the host, us"), ("h2d", "to the GPU, us")):
        assert shown[label] == [f"{found[link, size]:.1f}" for size in sizes]
