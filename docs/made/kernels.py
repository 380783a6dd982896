"""What kernels of the H200 take, beside what they could."""

from __future__ import annotations

import numpy as np

from made.data import floor_us, profile, table, table_us

# Bytes of a token's keys in a layer; of its keys and values.
KEYS, KV = 8 * 128 * 2, 2 * 8 * 128 * 2
GEMMS = {
    "gate_up": (28672, 4096),
    "down": (4096, 14336),
    "QKV": (6144, 4096),
    "o_proj": (4096, 4096),
}
PROMPT = 40960

Kernel = tuple[str, float, float, str]
"""Name, microseconds, the least its bytes (or FLOPs) and launches need, what limits it."""


def us(name: str, *point: float, digits: int = 1, **keys: object) -> str:
    """Return a table's mean at a point, in microseconds."""
    return f"{table_us(name, *point, **keys):.{digits}f}"


def copy_tb_per_s() -> str:
    """Return the copy bandwidth that limits are of."""
    return f"{profile().spec.gpu.bandwidth_bytes_per_s.value / 1e12:.2f}"


def launch_us() -> str:
    """Return what a launch takes."""
    return f"{profile().spec.gpu.launch_s.value * 1e6:.2f}"


def constant_us(name: str) -> str:
    """Return a constant of the profile, in microseconds."""
    return f"{profile().spec.constants[name].value * 1e6:.1f}"


def held_out(name: str) -> str:
    """Return a table's median and largest error at its held-out points."""
    held = profile().spec.tables[name].heldout
    assert held is not None
    return f"{100 * held.median_frac:.1f} %, worst {100 * held.worst_frac:.1f} %"


def cpu_route(*point: float) -> str:
    """Return the CPU router's median and 99th percentile at a tick: threads, batch, context."""
    grid = profile().tables["cpu_route"].grid({})
    assert grid is not None
    at = tuple(np.searchsorted(axis, v) for axis, v in zip(grid.axes, point, strict=True))
    median, tail = (grid.values[name][at] * 1e6 for name in ("p50_s", "high_s"))
    return f"{median:.1f} us median and {tail:.1f} us at the 95th percentile"


def prices() -> list[str]:
    """Some prices, batch 1 and 8."""
    columns = [_prices(batch) for batch in (1, 8)]
    body = [[label, *(column[label] for column in columns)] for label in columns[0]]
    return table(("op, us", "batch 1", "batch 8"), body)


def _prices(batch: int) -> dict[str, str]:
    def at(name: str, *before: float) -> str:
        return " / ".join(us(name, *before, batch, tokens) for tokens in (4096, 12288))

    gemms = [
        sum(table_us("gemm", batch, n=n, k=k, dtype=dtype) for n, k in GEMMS.values())
        for dtype in ("bf16", "fp8")
    ]
    fused = [us("gpu_route_fused", batch, tokens, 32) for tokens in (4096, 12288)]
    return {
        "GEMMs of a layer (QKV, o, gate_up, down), BF16 / FP8": " / ".join(
            f"{value:.1f}" for value in gemms
        ),
        "sparse attention, 128 tokens": us(
            "attn_sparse", batch, 128, page_tokens=4, kv_block_tokens=4
        ),
        "dense attention, 4096 / 12288 tokens": at("attn_dense"),
        "fused GPU router, 4096 / 12288 tokens": " / ".join(fused),
        "stepwise GPU router, 4096 / 12288 tokens": at("gpu_route_stepwise"),
        "CPU router, 8 threads, 4096 / 12288 tokens": at("cpu_route", 8),
        "GPU router of Quest (a KV head chooses), 32768 tokens": us(
            "gpu_route_quest", batch, 32768, per="kv_head"
        ),
        "GPU router of exact top-k, 32768 tokens": us("gpu_route_exact_topk", batch, 32768),
    }


def limits() -> list[str]:
    """Each kernel at batch 1 beside its limit, and what limits it."""
    body = [
        [name, f"{own:.1f}", f"{least:.1f}", f"{100 * least / own:.0f} %", why]
        for name, own, least, why in (*_gemms(), *_attention(), *_routers(), *_small(), *_prefill())
    ]
    return table(("kernel", "us", "limit us", "limit / time", "what limits it"), body)


def _gemms() -> list[Kernel]:
    tail, short = "bytes, then too few tiles", "launch and tail beside bytes"
    why = {"gate_up": "bytes", "down": tail, "QKV": short, "o_proj": short}
    return [
        (
            f"{name} GEMM, {dtype.upper()}",
            table_us("gemm", 1, n=n, k=k, dtype=dtype),
            floor_us(n * k * size, 1),
            why[name],
        )
        for dtype, size in (("bf16", 2), ("fp8", 1))
        for name, (n, k) in GEMMS.items()
    ]


def _attention() -> list[Kernel]:
    dense = [
        (f"dense attention, 12288 tokens{label}", batch, why)
        for label, batch, why in (("", 1, "two kernels: split and join"), (", batch 8", 8, "bytes"))
    ]
    sparse = (
        (128, 4, 132, 1, "the chain index -> page -> softmax"),
        (2032, 16, 2048, 2, "the same chain, split and join"),
    )
    return [
        (label, table_us("attn_dense", b, 12288), floor_us(b * 12288 * KV, 2), why)
        for label, b, why in dense
    ] + [
        (
            f"sparse attention, {tokens} tokens in pages of {page}",
            table_us("attn_sparse", 1, tokens, page_tokens=page, kv_block_tokens=page),
            floor_us(read * KV, launches),
            why,
        )
        for tokens, page, read, launches, why in sparse
    ]


def _routers() -> list[Kernel]:
    def quest(per: str) -> tuple[float, float]:
        # Tokens and pages before the tail page, which a router does not score.
        return table_us("gpu_route_quest", 1, 32768, per=per), floor_us(2047 * KV, 2)

    return [
        (
            "fused router",
            table_us("gpu_route_fused", 1, 4096, 32),
            floor_us(8 * 1023 * 32, 1),
            "its chain of block and cluster barriers (below)",
        ),
        (
            "stepwise router",
            table_us("gpu_route_stepwise", 1, 4096),
            floor_us(8 * 1023 * 256, 6),
            "six launches; one block a sequence and KV head scans all pages",
        ),
        (
            "Quest router, 32768 tokens, a query head chooses",
            *quest("query_head"),
            "the top-k behind the scan: a block a chooser",
        ),
        (
            "Quest router, 32768 tokens, a KV head chooses",
            *quest("kv_head"),
            "the same, over the softmax of four heads",
        ),
        (
            "exact top-k router, 32768 tokens",
            table_us("gpu_route_exact_topk", 1, 32768),
            floor_us(32768 * KEYS, 4),
            "four kernels, three of them over the scores alone",
        ),
    ]


def _small() -> list[Kernel]:
    latent_and_key = 2 * 128 + KEYS
    rows = [
        (
            "norm with residual",
            "norm",
            (1,),
            3 * 4096 * 2,
            1,
            "what it delays of the GEMM behind it",
        ),
        (
            "RoPE and KV append",
            "rope",
            (1,),
            2 * 6144 * 2,
            1,
            "latency of a small kernel between GEMMs",
        ),
        ("SiLU times the other half", "act", (1,), 3 * 14336 * 2, 1, "the same"),
        ("embedding", "embed", (1,), 2 * 4096 * 2, 1, "latency"),
        ("LM head and sampling", "head", (1,), 128256 * 4096 * 2, 3, "bytes"),
        (
            "down-projection, rank 128",
            "proxy_down",
            (1,),
            128 * 4096 * 2,
            1,
            "the norm's sum before the product",
        ),
        (
            "publish of latent and key",
            "publish",
            (latent_and_key,),
            0,
            1,
            "a write and a flag over PCIe",
        ),
        (
            "await, 1 KiB of indices",
            "await",
            (1024,),
            0,
            1,
            "two reads over PCIe, one after the other",
        ),
    ]
    proxy = table_us("gpu_proxy", 1, projection_rank=128), floor_us(2 * 128 * 4096 * 2, 2)
    return [
        (label, table_us(name, *point), floor_us(moved, launches), why)
        for label, name, point, moved, launches, why in rows
    ] + [("proxy query, rank 128", *proxy, "two dependent kernels with few programs")]


def _prefill() -> list[Kernel]:
    flops = 4 * PROMPT**2 / 2 * 32 * 128
    rows = [
        (
            "stage 1, 40960 tokens",
            "stage1_select",
            PROMPT,
            PROMPT * KEYS + 2 * 4096 * KV,
            "torch operations that write and read fp32 scores of 32 queries",
        ),
        (
            "page summaries of 4096 kept tokens",
            "summary_build",
            4096,
            4096 * (KEYS + 512),
            "rows of pages are written a byte at a time, channel by channel",
        ),
        (
            "Quest summaries of 40960 tokens",
            "summary_build_quest",
            PROMPT,
            PROMPT * (KEYS + 2 * KEYS / 16),
            "bytes",
        ),
    ]
    attention = (
        f"prefill attention, {PROMPT} tokens",
        table_us("attn_prefill", PROMPT),
        flops / profile().spec.gpu.bf16_flops_per_s.value * 1e6,
        "FLOPs (half of all pairs over the peak of an 8192^3 product)",
    )
    return [attention] + [
        (label, table_us(name, tokens), floor_us(moved, 1), why)
        for label, name, tokens, moved, why in rows
    ]
