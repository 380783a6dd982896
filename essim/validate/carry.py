"""How far prices of GEMMs and attention are from what others measured on other GPUs.

``python -m essim.validate.carry [SYSTEM ...]`` lays the prices of shipped profiles beside the
tables of aiconfigurator-core, of each framework, and prints errors.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from essim.errors import EssimError, InputError
from essim.hardware.aiconfigurator import COLD_BYTES, data_folder, newest, read_rows, too_fast
from essim.hardware.import_tables import PROFILES
from essim.hardware.profile import HardwareProfile, find_profile, load_profile
from essim.methods.routing import Routing
from essim.methods.selectors import SELECTORS
from essim.model.shape import PRESETS
from essim.step.kinds import Case, Point
from essim.step.price import SOURCES, CostModel
from essim.text.yaml import nearest_hint

Values = NDArray[np.float64]
Row = Mapping[str, Any]

# Smaller weights may be read from an L2 cache, since the public calls repeat.
GEMM_BYTES = 16e6
FEW_ROWS = 64
# Attention as models have it: not of a short context at a large batch, nor of few or odd heads.
FEW_TOKENS = 512
FEW_HEADS = 8
HEAD_DIM = 128
HEADER = f"{'':48}{'points':>7} {'bias':>7} {'median':>7} {'p90':>7}   within: median    p90"


@dataclass(frozen=True)
class Laid:
    """Predicted over published times of one kind, and which sources priced them."""

    ratios: Values
    sources: Counter[str]

    def line(self) -> str:
        """Return bias, and errors as they are and with the source's own bias taken out."""
        ratios = self.ratios
        middle = float(np.median(ratios))
        numbers = [middle - 1, *_errors(ratios), *_errors(ratios / middle)]
        bias, median, p90, own, own_p90 = (f"{100 * number:.1f}" for number in numbers)
        shares = ", ".join(f"{s} {n / len(ratios):.0%}" for s, n in self.sources.most_common())
        return f"{len(ratios):7} {bias:>7} {median:>7} {p90:>7} {own:>16} {own_p90:>6}   {shares}"


def _errors(ratios: Values) -> tuple[float, float]:
    """Return median and 90th percentile of the absolute error."""
    error = np.abs(ratios - 1)
    return float(np.median(error)), float(np.quantile(error, 0.9))


def gemms(profile: HardwareProfile, rows: Sequence[Row]) -> dict[str, Laid]:
    """Lay BF16 GEMMs beside their prices, those of few rows and those of more.

    Parameters
    ----------
    rows
        Of the package: m, n, k, latency in ms.
    """
    found: dict[str, list[tuple[float, str]]] = defaultdict(list)
    shapes: dict[tuple[int, int], list[Row]] = defaultdict(list)
    for row in rows:
        if row["gemm_dtype"] == "bfloat16" and 2 * row["n"] * row["k"] >= GEMM_BYTES:
            shapes[row["n"], row["k"]].append(row)
    for (n, k), of_shape in shapes.items():
        costs = _costs(profile, hidden=n, heads=k // min(k, 128), head_dim=min(k, 128))
        for row in of_shape:
            group = f"gemm, rows {'<=' if row['m'] <= FEW_ROWS else '>'} {FEW_ROWS}"
            point = Point(row["m"], row["m"], np.array([1]))
            found[group].append(_laid(costs, "gemm_o", point, row))
    return _grouped(found)


def attention(profile: HardwareProfile, rows: Sequence[Row]) -> dict[str, Laid]:
    """Lay a decode step's attention over BF16 KV beside its prices.

    All of it, that of models whose KV no cache holds, and head shapes with times that cannot be.

    Parameters
    ----------
    rows
        Of the package: batch_size, step, heads, latency in ms.
    """
    found: dict[str, list[tuple[float, str]]] = defaultdict(list)
    shapes: dict[tuple[int, int, int], list[Row]] = defaultdict(list)
    for row in rows:
        if row["kv_cache_dtype"] == "bfloat16" and row.get("window_size", 0) == 0:
            shape = (row["num_heads"], row["num_key_value_heads"], row["head_dim"])
            shapes[shape].append(row)
    bandwidth = profile.spec.gpu.bandwidth_bytes_per_s.value
    for (heads, kv_heads, head_dim), of_shape in shapes.items():
        costs = _costs(profile, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
        usual = heads >= FEW_HEADS and head_dim == HEAD_DIM
        token_bytes = 4 * kv_heads * head_dim
        moved = [row["batch_size"] * (row["isl"] + row["step"]) * token_bytes for row in of_shape]
        pairs = list(zip(of_shape, moved, strict=True))
        wrong = any(too_fast(kv_bytes, row["latency"] / 1e3, bandwidth) for row, kv_bytes in pairs)
        for row, kv_bytes in pairs:
            context = row["isl"] + row["step"]
            point = Point(row["batch_size"], row["batch_size"], np.array([context]))
            laid = _laid(costs, "attn_dense", point, row)
            found["attn_dense, cannot be" if wrong else "attn_dense"].append(laid)
            if usual and not wrong and kv_bytes >= COLD_BYTES and context >= FEW_TOKENS:
                found["attn_dense of models"].append(laid)
    return _grouped(found)


def _costs(profile: HardwareProfile, **shape: int) -> CostModel:
    """Return the prices of a model of that shape."""
    model = PRESETS["llama-3.1-8b"].model_copy(update=shape)
    routing = Routing(where="gpu", anchor="target")
    return CostModel(profile, Case(model, SELECTORS["dense"](kind="dense"), routing))


def _laid(costs: CostModel, kind: str, point: Point, row: Row) -> tuple[float, str]:
    """Return predicted over published time, and the source of the price."""
    price = costs.price(kind, point)
    ratio = float(price.mean_s[0]) / (row["latency"] / 1e3)
    return ratio, SOURCES[int(price.rank[0])]


def _grouped(found: Mapping[str, Sequence[tuple[float, str]]]) -> dict[str, Laid]:
    return {
        group: Laid(np.array([r for r, _ in laid]), Counter(source for _, source in laid))
        for group, laid in found.items()
    }


def lines(system: str) -> Iterator[str]:
    """Yield a line for each framework and kind that the package has of a GPU."""
    folder = data_folder()
    profile = load_profile(find_profile(PROFILES[system], Path()))
    for place in sorted((folder / system / "gemm").iterdir()):
        framework = place.name
        for table, laid in (("gemm", gemms), ("attn_dense", attention)):
            rows = read_rows(newest(folder, system, framework, table))
            for group, result in laid(profile, rows).items():
                yield f"{profile.spec.name:15} {framework:7} {group:24} {result.line()}"


def main(systems: Sequence[str]) -> None:
    """Print the errors of some or all GPUs."""
    for system in systems:
        if system not in PROFILES:
            raise InputError(f"no system {system!r}", nearest_hint(system, sorted(PROFILES)))
    print(HEADER)
    for system in systems or sorted(PROFILES):
        for line in lines(system):
            print(line, flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except EssimError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
