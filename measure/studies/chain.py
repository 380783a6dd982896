"""Do prices add up, and what does routing cost? ``python -m measure.studies.chain --out DIR``.

``chain_prices.csv``: what each op adds to a whole decode step (the step minus the step without it),
and how far the sum of these prices is from the step. ``chain_routing.csv``: microseconds that each
kind of routing adds a routed layer.
"""

from __future__ import annotations

import argparse
import csv
import gc
from pathlib import Path

import numpy as np
import torch

from measure.harness.gpu import capture, replay_s, require_gpu
from measure.kernels.chain import Chain, Shape

ROUTINGS = (
    ("inline", "fused"),
    ("side", "fused"),
    ("inline", "stepwise"),
    ("side", "stepwise"),
    ("handover", "fused"),
)


def step_s(chain: Chain, without: tuple[str, ...] = (), replays: int = 15) -> float:
    """Median seconds of a step."""
    return float(np.median(replay_s(capture(chain.launches(without)), replays)))


def price_rows(chain: Chain) -> list[dict[str, object]]:
    """A row an op, the sum last."""
    whole = min(step_s(chain), step_s(chain))
    point = {"batch": chain.batch, "context_tokens": chain.tokens}
    rows: list[dict[str, object]] = []
    total = 0.0
    for name, count in chain.counts().items():
        share = whole - step_s(chain, (name,))
        total += share
        rows.append(point | {"op": name, "count": count, "price_us": round(share / count * 1e6, 3)})
    ratio = total / whole
    rows.append(point | {"op": "sum of prices / step", "count": 1, "price_us": round(ratio, 5)})
    rows.append(point | {"op": "step", "count": 1, "price_us": round(whole * 1e6, 2)})
    return rows


def routing_rows(chain: Chain) -> list[dict[str, object]]:
    """A row a kind of routing: what it adds a routed layer."""
    chain.routing = "none"
    plain = step_s(chain)
    rows: list[dict[str, object]] = []
    for chain.routing, chain.kernel in ROUTINGS:
        added = (step_s(chain) - plain) / (chain.shape.layers - 1)
        rows.append(
            {
                "batch": chain.batch,
                "context_tokens": chain.tokens,
                "routing": chain.routing,
                "kernel": chain.kernel,
                "added_us": round(added * 1e6, 2),
                "plain_step_us": round(plain * 1e6, 1),
            }
        )
    return rows


def append(path: Path, rows: list[dict[str, object]]) -> None:
    """Append rows to a CSV file and print them."""
    fresh = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        if fresh:
            writer.writeheader()
        writer.writerows(rows)
    for row in rows:
        print(*row.values(), flush=True)


def numbers(text: str) -> list[int]:
    """``1,8`` -> [1, 8]."""
    return [int(part) for part in text.split(",")]


def main() -> None:
    """Time the steps asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batch", type=numbers, default=[1, 8])
    parser.add_argument("--tokens", type=numbers, default=[4096, 12288])
    parser.add_argument("--layers", type=int, default=32)
    args = parser.parse_args()
    require_gpu()
    args.out.mkdir(parents=True, exist_ok=True)
    for batch in args.batch:
        for tokens in args.tokens:
            chain = Chain(Shape(layers=args.layers), batch, tokens)
            append(args.out / "chain_prices.csv", price_rows(chain))
            append(args.out / "chain_routing.csv", routing_rows(chain))
            del chain
            gc.collect()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
