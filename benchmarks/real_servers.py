"""Runs of real servers beside the scheduler of `essim.serving`, with a public package's own prices.

The package aiconfigurator-core (NVIDIA, Apache-2.0) ships runs of real servers
(``systems/silicon_sample.csv``) and times of kernels. Llama-3.1-8B at tp 1 is replayed as a closed
loop of as many users as the run had. One constant of host time a step and backend is fitted on a
random half of its runs; errors are of the other half. That tests the scheduler: none of essim's own
tables is in it. vLLM's runs and TTFT are shown without an aim.

Run: ``python benchmarks/real_servers.py`` (needs ``pip install 'essim[aiconfigurator]'``)
"""

from __future__ import annotations

import csv
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from essim.model.shape import PRESETS
from essim.serving.jump import simulate
from essim.serving.lines import CELL_TOKENS, LazyCells
from essim.serving.load import Chunk, Fleet, Limits, Load, Pool, Request

MODEL = PRESETS["llama-3.1-8b"]
# GEMM dtype of the runs; tokens of an iteration and whether decoding waits for prefill, which are
# the backends' defaults.
SERVERS = {
    "trtllm": ("bfloat16", 8192, False),
    "sglang": ("fp8_block", 8192, True),
    "vllm": ("fp8", 8192, False),
}
KV = "bfloat16"
ROUNDS = 6  # requests a user sends
PS = 1e12


def folder() -> Path:
    """Return where the package's tables are."""
    found = find_spec("aiconfigurator_core")
    if found is None or not found.submodule_search_locations:
        raise SystemExit("pip install 'essim[aiconfigurator]' first")
    return Path(found.submodule_search_locations[0]) / "systems"


def rows_of(system: str, kind: str, backend: str) -> list[dict[str, object]]:
    """Return a table's rows, of the newest version there is."""
    pattern = f"data/{system}/{kind.split('/')[0]}/{backend}/*/{kind.split('/')[1]}.parquet"
    table: list[dict[str, object]] = pq.read_table(max(folder().glob(pattern))).to_pylist()
    return table


class Grid:
    """Times over two axes: linear between ticks, and on beyond them; each x has its own ticks."""

    def __init__(self, points: Mapping[tuple[float, float], float]) -> None:
        self.lines: dict[float, dict[float, float]] = {}
        for (x, y), time_s in sorted(points.items()):
            self.lines.setdefault(x, {})[y] = time_s
        self.x = sorted(self.lines)

    def at(self, x: float, y: float) -> float:
        i, u = _place(self.x, x)
        low, high = (_line(self.lines[self.x[k]], y) for k in (i, i + 1))
        return low * (1 - u) + high * u


def _line(line: Mapping[float, float], at: float) -> float:
    ticks = list(line)
    i, u = _place(ticks, at)
    return line[ticks[i]] * (1 - u) + line[ticks[i + 1]] * u


def _place(ticks: Sequence[float], at: float) -> tuple[int, float]:
    i = min(max(int(np.searchsorted(ticks, at)) - 1, 0), len(ticks) - 2)
    return i, (at - ticks[i]) / (ticks[i + 1] - ticks[i])


@dataclass(frozen=True)
class Tables:
    """Kernel times of one system and backend, in seconds."""

    gemms: Mapping[tuple[str, int], Grid]
    decode: Grid
    prefill: Mapping[float, float]
    bytes_per_s: float

    def gemm(self, dtype: str, m: int, n: int, k: int) -> float:
        """Return a GEMM's time: linear in m, n and k between the ticks of the tables."""
        ks = sorted({key[1] for key in self.gemms if key[0] == dtype})
        i, u = _place(ks, k)
        low, high = (self.gemms[dtype, ks[j]].at(m, n) for j in (i, i + 1))
        return low * (1 - u) + high * u


@lru_cache
def tables(system: str, backend: str, dtype: str) -> Tables:
    """Read the tables of one system and backend."""
    gemms: dict[tuple[str, int], dict[tuple[float, float], float]] = {}
    for row in rows_of(system, "gemm/gemm_perf", backend):
        used = row["gemm_dtype"] in (dtype, "bfloat16") and 4096 <= row["k"] <= 16384
        if used and row["n"] >= 4096:
            own = gemms.setdefault((row["gemm_dtype"], row["k"]), {})
            own[row["m"], row["n"]] = row["latency"] / 1e3
    heads = {"num_heads": 32, "head_dim": 128, "window_size": 0, "kv_cache_dtype": KV}
    decode, prefill = {}, {}
    for name, found in (("generation", decode), ("context", prefill)):
        for row in rows_of(system, f"attention/{name}_attention_perf", backend):
            alike = all(row[key] == value for key, value in heads.items())
            if alike and row["num_key_value_heads"] == 8 and row["attn_dtype"] == "bfloat16":
                if name == "context" and row["batch_size"] == 1:
                    prefill[float(row["isl"])] = row["latency"] / 1e3
                elif name == "generation" and row["batch_size"] <= 512 and row["step"] <= 16383:
                    key = float(row["batch_size"]), float(row["step"] + 1)
                    found[key] = row["latency"] / 1e3
    peaks = (folder() / f"{system}.yaml").read_text()
    bandwidth = float(re.findall(r"mem_bw: (\d+)", peaks)[0])
    grids = {key: Grid(points) for key, points in gemms.items()}
    return Tables(grids, Grid(decode), dict(sorted(prefill.items())), 0.8 * bandwidth)


class Public:
    """Prices of Llama-3.1-8B's dense steps from the package's tables, and a constant a step."""

    def __init__(self, found: Tables, dtype: str, host_s: float) -> None:
        self.tables, self.dtype, self.host_ps = found, dtype, round(host_s * PS)
        self.rows = lru_cache(None)(self._rows_ps)
        self.attention = lru_cache(None)(self._attention_ps)
        self.prefill = LazyCells(self._prefill_ps)

    def _rows_ps(self, rows: int, samples: int) -> int:
        shapes = [MODEL.gemm_shape(name) for name in ("qkv", "o", "gate_up", "down")]
        layer = sum(self.tables.gemm(self.dtype, rows, *shape) for shape in shapes)
        width = 6 * MODEL.hidden + 2 * (MODEL.q_width + 2 * MODEL.kv_width) + 3 * MODEL.ffn
        layer += rows * width * 2 / self.tables.bytes_per_s
        head = self.tables.gemm("bfloat16", samples, *MODEL.gemm_shape("head")) if samples else 0.0
        return round((MODEL.layers * layer + head) * PS)

    def _attention_ps(self, batch: int, context: int) -> int:
        return round(MODEL.layers * self.tables.decode.at(batch, context) * PS)

    def _prefill_ps(self, tokens: int) -> int:
        return round(_line(self.tables.prefill, tokens) * PS)

    def decode_line(self, batch: int, mean: int, longest: int) -> tuple[int, int, int]:
        cell = (mean - 1) // CELL_TOKENS * CELL_TOKENS
        first = self.attention(batch, cell + 1)
        slope = (self.attention(batch, cell + CELL_TOKENS) - first) // (CELL_TOKENS - 1)
        time = self.rows(batch, batch) + first + slope * (mean - 1 - cell) + self.host_ps
        return time, slope, CELL_TOKENS - (mean - 1 - cell)

    def chunk_step(self, batch: int, mean: int, longest: int, chunks: Sequence[Chunk]) -> int:
        size, ended = sum(chunk[0] for chunk in chunks), sum(chunk[2] > 0 for chunk in chunks)
        time = self.rows(batch + size, batch + ended) + self.host_ps
        for own, past, _ in chunks:
            time += MODEL.layers * (self.prefill.at(past + own) - self.prefill.at(past))
        return time + (self.attention(batch, mean) if batch else 0)


@dataclass(frozen=True)
class RealRun:
    """One run of a real server; times in seconds."""

    system: str
    backend: str
    users: int
    input_tokens: int
    output_tokens: int
    ttft_s: float
    tpot_s: float

    def replayed(self, host_s: float) -> tuple[float, float]:
        """Return the mean TTFT and TPOT of the same run here, without each user's first request."""
        dtype, budget, first = SERVERS[self.backend]
        prices = Public(tables(self.system, self.backend, dtype), dtype, host_s)
        tokens = budget if first else budget + self.users
        limits = Limits(Pool(32, 1 << 40), self.users, tokens, 1 << 20, first)
        requests = [Request(0, self.input_tokens, self.output_tokens)] * (ROUNDS * self.users)
        out = simulate(Load(requests, self.users), Fleet(limits), prices, sampled=False)
        later = out.records[self.users :]
        ttft = np.mean([r.first_ps - r.arrival_ps for r in later]) / PS
        made = np.mean([r.finish_ps - r.first_ps for r in later]) / PS
        return float(ttft), float(made / (self.output_tokens - 1))


def real_runs() -> list[RealRun]:
    """Return the package's runs of Llama-3.1-8B at tp 1."""
    runs = []
    with (folder() / "silicon_sample.csv").open() as file:
        for row in csv.DictReader(file):
            alike = "Llama-3.1-8B" in row["model_path"] and row["tp_size"] == "1"
            users = re.search(r"silicon_concurrency=(\d+)", row["silicon_data_source"])
            if alike and users and row["mode"] == "agg":
                sizes = int(users[1]), int(row["isl"]), int(row["osl"])
                times = (float(row[f"silicon_{key}_ms"]) / 1e3 for key in ("ttft", "tpot"))
                runs.append(RealRun(row["system"], row["backend"], *sizes, *times))
    return runs


def errors(runs: Sequence[RealRun], host_s: float) -> np.ndarray:
    """Return replayed over real, less one: TTFT and TPOT of each run."""
    found = [run.replayed(host_s) for run in runs]
    real = [(run.ttft_s, run.tpot_s) for run in runs]
    return np.array(found) / np.array(real) - 1


def fitted(runs: Sequence[RealRun]) -> float:
    """Return the host time a step with the least mean error of TPOT, to 0.05 ms."""

    @lru_cache
    def off(step: int) -> float:
        return float(np.mean(np.abs(errors(runs, step * 5e-5)[:, 1])))

    best, jump = 0, 32
    while jump:
        near = min((best, max(0, best - jump), best + jump), key=off)
        best, jump = near, jump if near != best else jump // 2
    return best * 5e-5


def main() -> None:
    by: dict[str, list[RealRun]] = {}
    for run in real_runs():
        by.setdefault(run.backend, []).append(run)
    print(
        f"{'backend':9}{'runs':>5}{'host ms':>9}{'TPOT MAPE':>11}{'bias':>8}{'worst':>8}{'TTFT':>8}"
    )
    tested: list[np.ndarray] = []
    for backend, runs in sorted(by.items()):
        mixed = random.Random(0).sample(runs, len(runs))
        half, rest = mixed[: len(runs) // 2], mixed[len(runs) // 2 :]
        host_s = fitted(half)
        found = errors(rest, host_s)
        if backend != "vllm":
            tested.append(found)
        tpot, ttft = found[:, 1], found[:, 0]
        worst = tpot[np.argmax(np.abs(tpot))]
        numbers = (np.mean(np.abs(tpot)), np.mean(tpot), worst, np.mean(np.abs(ttft)))
        shown = f"{numbers[0]:>11.1%}" + "".join(f"{value:>8.1%}" for value in numbers[1:])
        print(f"{backend:9}{len(rest):>5}{host_s * 1e3:>9.2f}{shown}")
    tpot = np.concatenate(tested)[:, 1]
    mean, worst = np.mean(np.abs(tpot)), np.max(np.abs(tpot))
    print(f"TensorRT-LLM and SGLang: TPOT MAPE {mean:.1%}, worst {worst:.1%}")


if __name__ == "__main__":
    main()
