"""Tables of GEMMs and attention that the package aiconfigurator-core installs (Apache-2.0)."""

from __future__ import annotations

import csv
import io
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from essim.errors import AbsentError, InputError
from essim.model.shape import ModelShape
from essim.text.yaml import nearest_hint

Row = Mapping[str, Any]
Point = tuple[Any, ...]
HINT = "Where essim is installed: pip install 'essim[aiconfigurator]'"
DTYPES = {"bfloat16": "bf16", "fp8": "fp8"}
FILES = {
    "gemm": "gemm/{}/gemm_perf.parquet",
    "attn_dense": "attention/{}/generation_attention_perf.parquet",
    "attn_prefill": "attention/{}/context_attention_perf.parquet",
}
# No L2 cache holds so much KV, and no memory is so much faster than a copy is.
COLD_BYTES = 250e6
FASTEST = 1.5
CASTS = "fp8 rows include casting the activations to it"
WARM = "KV that fits the L2 cache seems to be read from there: times jump where it does not"


@dataclass(frozen=True)
class PublicTable:
    """One table as a profile has it, and what was left out of the file it is from.

    Attributes
    ----------
    times_s
        Time by key values, then axis values.
    dropped
        Rows that were left out, by why.
    """

    name: str
    keys: tuple[str, ...]
    axes: tuple[str, ...]
    times_s: Mapping[Point, float]
    dropped: Mapping[str, int]
    file: str
    whose: str
    note: str

    def csv(self) -> bytes:
        """Return the table as a profile's CSV."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow([*self.keys, *self.axes, "mean_s"])
        rows.writerows([*at, f"{time:.6g}"] for at, time in sorted(self.times_s.items()))
        return text.getvalue().encode()


def data_folder() -> Path:
    """Return where the package keeps its tables, a folder for each GPU.

    Raises
    ------
    AbsentError
        If it is not installed.
    """
    found = find_spec("aiconfigurator_core")
    if found is None or not found.submodule_search_locations:
        raise AbsentError("public tables need the package aiconfigurator-core", HINT)
    return Path(found.submodule_search_locations[0]) / "systems" / "data"


def newest(folder: Path, system: str, framework: str, table: str) -> Path:
    """Return the file of a table: of the framework's newest version that has one.

    Raises
    ------
    InputError
        If there is no such GPU or framework.
    """
    pattern = FILES[table].format("*/*")
    systems = sorted({file.parents[3].name for file in folder.glob(f"*/{pattern}")})
    if system not in systems:
        raise InputError(f"no system {system!r}", nearest_hint(system, systems), key="SYSTEM")
    frameworks = sorted({file.parts[-3] for file in folder.glob(f"{system}/{pattern}")})
    if framework not in frameworks:
        hint = nearest_hint(framework, frameworks)
        raise InputError(f"{system} has no tables of {framework!r}", hint, key="--framework")
    files = (folder / system).glob(FILES[table].format(f"{framework}/*"))
    return max(files, key=lambda file: [int(part) for part in re.findall(r"\d+", file.parts[-2])])


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Return the rows of one of the package's files; columns differ by file."""
    from pyarrow import parquet

    rows: list[dict[str, Any]] = parquet.read_table(file).to_pylist()
    return rows


def gemm(file: Path) -> PublicTable:
    """Return the GEMMs of a file: BF16, and FP8 with one scale a tensor or token."""

    def why_not(row: Row) -> str:
        return "" if row["gemm_dtype"] in DTYPES else f"dtype {row['gemm_dtype']}"

    def at(row: Row) -> Point:
        return row["n"], row["k"], DTYPES[row["gemm_dtype"]], row["m"]

    kept, dropped = _kept(read_rows(file), why_not, lambda row: str(row["gemm_dtype"]))
    times = _times(kept, at)
    note = CASTS if any("fp8" in point for point in times) else ""
    whose = _whose(kept)
    return PublicTable(
        "gemm", ("n", "k", "dtype"), ("rows",), times, dropped, _path(file), whose, note
    )


def too_fast(kv_bytes: float, time_s: float, bandwidth_bytes_per_s: float) -> bool:
    """Return whether KV that no cache holds was read faster than memory can be."""
    return kv_bytes >= COLD_BYTES and kv_bytes / time_s > FASTEST * bandwidth_bytes_per_s


def attn_dense(
    file: Path, model: ModelShape, max_batch: int, bandwidth_bytes_per_s: float
) -> PublicTable:
    """Return one head shape's attention of a decode step, cut to a full grid.

    That is every batch up to `max_batch`, and the contexts that all of them have. Where some times
    are faster than memory can be, none is believed.
    """
    kept, dropped = _kept(read_rows(file), _heads_differ(model), lambda row: "")
    times = _times(kept, lambda row: (row["batch_size"], row["isl"] + row["step"]))
    token_bytes = 2 * model.kv_width * 2
    if any(
        too_fast(batch * context * token_bytes, time_s, bandwidth_bytes_per_s)
        for (batch, context), time_s in times.items()
    ):
        dropped["not believed: some are faster than memory"] = len(times)
        times = {}
    contexts = defaultdict(set)
    for batch, context in times:
        contexts[int(batch)].add(context)
    batches = {batch for batch in contexts if batch <= max_batch}
    shared = set.intersection(*(contexts[batch] for batch in batches)) if batches else set()
    full = {at: time for at, time in times.items() if at[0] in batches and at[1] in shared}
    dropped[f"past the grid of batches up to {max_batch}"] = len(times) - len(full)
    axes = ("batch", "context_tokens")
    return PublicTable("attn_dense", (), axes, full, dropped, _path(file), _whose(kept), WARM)


def attn_prefill(file: Path, model: ModelShape) -> PublicTable:
    """Return one head shape's causal attention over one prompt."""
    differ = _heads_differ(model)

    def why_not(row: Row) -> str:
        return differ(row) or ("" if row["batch_size"] == 1 else "several prompts at once")

    kept, dropped = _kept(read_rows(file), why_not, lambda row: "")
    times = _times(kept, lambda row: (row["isl"],))
    return PublicTable("attn_prefill", (), ("rows",), times, dropped, _path(file), _whose(kept), "")


def _heads_differ(model: ModelShape) -> Callable[[Row], str]:
    """Return a function that says why a row of attention is not of a model's heads in BF16."""
    shape = {
        "num_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
    }
    plain = {"attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "window_size": 0}

    def why_not(row: Row) -> str:
        if any(row[column] != value for column, value in shape.items()):
            return "another head shape"
        same = all(row.get(column, value) == value for column, value in plain.items())
        return "" if same and row["beam_width"] == 1 else "another dtype, window or beam"

    return why_not


def _kept(
    rows: Sequence[Row], why_not: Callable[[Row], str], group: Callable[[Row], str]
) -> tuple[list[Row], Counter[str]]:
    """Return the rows wanted, of each group those of its commonest kernel, and why others go."""
    dropped: Counter[str] = Counter()
    wanted = []
    for row in rows:
        why = why_not(row) or ("" if row["latency"] > 0 else "no time")
        dropped[why] += bool(why)
        if not why:
            wanted.append(row)
    kernels: dict[str, Counter[str]] = defaultdict(Counter)
    for row in wanted:
        kernels[group(row)][row["kernel_source"]] += 1
    best = {name: counted.most_common(1)[0][0] for name, counted in kernels.items()}
    kept = [row for row in wanted if row["kernel_source"] == best[group(row)]]
    dropped["another kernel"] = len(wanted) - len(kept)
    return kept, +dropped


def _times(rows: Sequence[Row], at: Callable[[Row], Point]) -> dict[Point, float]:
    """Return times in seconds by point, medians where a point is there twice."""
    found = defaultdict(list)
    for row in rows:
        found[at(row)].append(row["latency"] / 1e3)
    return {point: statistics.median(times) for point, times in found.items()}


def _whose(rows: Sequence[Row]) -> str:
    """Return framework, version, kernels and GPU of rows for people."""
    if not rows:
        return ""
    kernels = ", ".join(sorted({row["kernel_source"] for row in rows}))
    first = rows[0]
    return f"{first['framework']} {first['version']}, {kernels}, on {first['device']}"


def _path(file: Path) -> str:
    """Return a file's path inside the package."""
    return "/".join(file.parts[-5:])


def public_tables(
    system: str,
    framework: str,
    model: ModelShape,
    max_batch: int,
    bandwidth_bytes_per_s: float,
) -> Iterator[PublicTable]:
    """Yield the tables that the package has of a GPU.

    Parameters
    ----------
    max_batch, bandwidth_bytes_per_s
        Of attention: the largest batch wanted, and how fast the GPU copies.

    Raises
    ------
    AbsentError
        If it is not installed.
    InputError
        If there is no such GPU or framework.
    """
    folder = data_folder()
    yield gemm(newest(folder, system, framework, "gemm"))
    decode = newest(folder, system, framework, "attn_dense")
    yield attn_dense(decode, model, max_batch, bandwidth_bytes_per_s)
    yield attn_prefill(newest(folder, system, framework, "attn_prefill"), model)
