"""Time the CPU router over threads x batch x context, with nothing but numpy and a compiler.

    python3 measure/studies/cpu_router.py --out DIR

A row gives, in microseconds, a route from a latent (`route`), scoring alone (`score`, a route from
a ready query) and a plain read of the same bytes by the same threads (`read`, `read_score`), all
back to back; and a route after an idle gap, without and with prefetching of the next layer while
idle (`idle`, `prefetched`). All are timed inside C++ from the request word to the answer word, over
layers in rotation.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from measure.harness.router_timing import LATENT, QUERY, READ_LATENT, READ_QUERY, sample
from measure.kernels.cpu_router.abi import STORAGES, RouterShape
from measure.kernels.cpu_router.library import best_isa, router_hash
from measure.kernels.cpu_router.router import Router
from measure.kernels.numbers import rope_table

COLUMNS = (
    "threads",
    "batch",
    "context_tokens",
    "route_p50_us",
    "route_p99_us",
    "idle_p50_us",
    "idle_p99_us",
    "prefetched_p50_us",
    "prefetched_p99_us",
    "score_p50_us",
    "score_p99_us",
    "read_p50_us",
    "read_score_p50_us",
    "score_gb_per_s",
    "score_read_frac",
)
SETTINGS = (
    "isa",
    "storage",
    "row_pages",
    "gap_us",
    "prefetch_bytes",
    "prefetch_chunks",
    "update",
    "calls",
    "source_hash",
)


def shape(args: argparse.Namespace, batch: int, tokens: int) -> RouterShape:
    """Llama-3.1-8B by default."""
    same = (
        "layers",
        "heads",
        "kv_heads",
        "head_dim",
        "page_tokens",
        "top_pages",
        "channels",
        "rank",
    )
    sizes = {name: getattr(args, name) for name in same}
    return RouterShape(batch=batch, capacity_tokens=tokens, **sizes)


def measure(args: argparse.Namespace, threads: int, batch: int, tokens: int) -> dict[str, object]:
    """One row of the table."""
    gap_s = args.gap_us * 1e-6
    cases = (
        ("route", LATENT, 0.0, 0),
        ("idle", LATENT, gap_s, 0),
        ("prefetched", LATENT, gap_s, args.prefetch_bytes),
        ("score", QUERY, 0.0, 0),
        ("read", READ_LATENT, 0.0, 0),
        ("read_score", READ_QUERY, 0.0, 0),
    )
    row: dict[str, object] = {"threads": threads, "batch": batch, "context_tokens": tokens}
    p50 = {}
    with Router(
        shape(args, batch, tokens), threads, storage=args.storage, row_pages=args.row_pages
    ) as router:
        router.set_rope(rope_table(tokens, args.head_dim))
        router.lib.essim_randomize(router.pool, args.seed)
        for name, kind, gap, prefetch_bytes in cases:
            router.lib.essim_tune(router.pool, prefetch_bytes, args.prefetch_chunks)
            update = args.update and kind == LATENT
            seconds = sample(router, kind, tokens, gap, args.calls, update)
            p50[name] = float(np.median(seconds))
            row[f"{name}_p50_us"] = round(p50[name] * 1e6, 2)
            row[f"{name}_p99_us"] = round(float(np.percentile(seconds, 99)) * 1e6, 2)
        row["isa"] = router.isa
    pages = (tokens - 1) // args.page_tokens
    element_bytes = (1, 2)[STORAGES.index(args.storage)]
    read_bytes = batch * args.kv_heads * pages * args.channels * element_bytes
    row["score_gb_per_s"] = round(read_bytes / p50["score"] / 1e9, 2)
    row["score_read_frac"] = round(p50["read_score"] / p50["score"], 3)
    settings = {name: getattr(args, name) for name in SETTINGS if hasattr(args, name)}
    return row | settings | {"source_hash": router_hash()}


def integers(text: str) -> list[int]:
    """``1,4,8`` -> [1, 4, 8]."""
    return [int(part) for part in text.split(",")]


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, required=True, help="folder of cpu_router.csv")
    parser.add_argument("--threads", type=integers, default=None)
    parser.add_argument("--batch", type=integers, default=[1, 4, 8])
    parser.add_argument("--tokens", type=integers, default=[4096, 12288])
    parser.add_argument(
        "--gap-us",
        type=float,
        default=100.0,
        help="idle time before each call of idle and prefetched",
    )
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--storage", choices=STORAGES, default="e5m2")
    parser.add_argument("--row-pages", type=int, default=65536)
    parser.add_argument("--prefetch-bytes", type=int, default=512 * 1024)
    parser.add_argument("--prefetch-chunks", type=int, default=3)
    parser.add_argument("--update", action="store_true", help="an update before each route")
    for name, value in (
        ("layers", 32),
        ("heads", 32),
        ("kv-heads", 8),
        ("head-dim", 128),
        ("page-tokens", 4),
        ("top-pages", 32),
        ("channels", 32),
        ("rank", 128),
        ("seed", 1),
    ):
        parser.add_argument(f"--{name}", type=int, default=value)
    return parser.parse_args(argv)


def main() -> None:
    """Print and append a row a point."""
    args = parse()
    cpus = len(os.sched_getaffinity(0))
    threads = args.threads or [t for t in (1, 2, 4, 8, 12, 15) if t < cpus or t == 1]
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "cpu_router.csv"
    fresh = not path.exists()
    print(f"isa {best_isa()}, {cpus} CPUs, source {router_hash()}")
    print("  ".join(COLUMNS))
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS + SETTINGS, extrasaction="ignore")
        if fresh:
            writer.writeheader()
        for batch, tokens, t in itertools.product(args.batch, args.tokens, threads):
            row = measure(args, t, batch, tokens)
            writer.writerow(row)
            file.flush()
            print("  ".join(f"{row[name]!s:>{len(name)}}" for name in COLUMNS), flush=True)


if __name__ == "__main__":
    main()
