"""Result rows: what each column is, and CSV or Parquet with a manifest beside it."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essim.errors import AbsentError
from essim.methods.routing import mix_text
from essim.text.files import check_ending

if TYPE_CHECKING:
    from essim.hardware.profile import HardwareProfile
    from essim.simulate.memory import Memory
    from essim.simulate.scenario import Scenario

Row = dict[str, str | int | float | None]

# Column -> unit ("" for text and plain counts), in output order.
COLUMNS: dict[str, str] = {
    "name": "",
    "model": "",
    "hardware": "",
    "selector": "",
    "routing": "",
    "where": "",
    "anchor": "",
    "mix": "",
    "kernel": "",
    "projection_rank": "",
    "channels": "",
    "cpu_threads": "",
    "prompt_budget": "tokens",
    "budget_tokens": "tokens",
    "top_tokens": "tokens",
    "page_tokens": "tokens",
    "top_pages": "",
    "kv_block_tokens": "tokens",
    "per": "",
    "dense_layer_count": "",
    "weight_dtype": "",
    "kv_dtype": "",
    "summary_dtype": "",
    "batch": "",
    "input_tokens": "tokens",
    "output_tokens": "tokens",
    "attended_tokens": "tokens",
    "mean_read_tokens": "tokens",
    "read_ratio": "1",
    "status": "",
    "reason": "",
    "decode_tokens_per_s": "tokens/s",
    "decode_tokens_per_s_low": "tokens/s",
    "decode_tokens_per_s_high": "tokens/s",
    "decode_tokens_per_s_p5": "tokens/s",
    "decode_tokens_per_s_p50": "tokens/s",
    "decode_tokens_per_s_p95": "tokens/s",
    "output_tokens_per_s": "tokens/s",
    "output_tokens_per_s_low": "tokens/s",
    "output_tokens_per_s_high": "tokens/s",
    "prefill_s": "s",
    "decode_s": "s",
    "step_s": "s",
    "tpot_s": "s",
    "exposed_routing_s": "s",
    "gpu_busy_frac": "1",
    "cpu_busy_frac": "1",
    "kv_bytes": "bytes",
    "kv_peak_bytes": "bytes",
    "summary_gpu_bytes": "bytes",
    "summary_cpu_bytes": "bytes",
    "max_batch": "",
    "decode_gain_frac": "1",
    "decode_gain_frac_p5": "1",
    "decode_gain_frac_p95": "1",
    "output_gain_frac": "1",
    "gain_ceiling_frac": "1",
    "output_ceiling_frac": "1",
    "gain_over_dense_frac": "1",
    "dense_ceiling_frac": "1",
    "measured_frac": "1",
    "price_sources": "",
    "prefill_sources": "",
    "engine": "",
    "seed": "",
}


def empty_row(point: Scenario, need: Memory, max_batch: int) -> Row:
    """Return a row with a point's fields and bytes, and no times yet."""
    import numpy as np

    from essim.step.kinds import Case

    selector, load, routing = point.resolved_selector(), point.workload, point.routing
    final = selector.kept_prompt_tokens(load.input_tokens) + load.output_tokens - 1
    at_the_end = np.array([final], dtype=np.int64)
    mean_read = float(Case(point.model, selector, routing).mean_read_tokens(at_the_end)[0])
    row: Row = dict.fromkeys(COLUMNS)
    # As asked for, and what that was resolved to.
    for settings in (point.selector.model_dump(), selector.model_dump(exclude_none=True)):
        row |= {key: settings[key] for key in COLUMNS if key in settings}
    row |= {
        "name": point.name,
        "model": point.model.name,
        "hardware": point.hardware,
        "selector": selector.kind,
        "routing": routing.name if selector.query_conditioned else "none",
        "batch": load.batch,
        "input_tokens": load.input_tokens,
        "output_tokens": load.output_tokens,
        "weight_dtype": point.model.weight_dtype,
        "kv_dtype": point.model.kv_dtype,
        "attended_tokens": int(selector.attended_tokens(at_the_end)[0]),
        "mean_read_tokens": mean_read,
        "read_ratio": final / mean_read if mean_read else None,
        "status": "ok",
        "reason": "",
        "kv_bytes": need.kv_bytes,
        "kv_peak_bytes": need.kv_peak_bytes,
        "summary_gpu_bytes": need.summary_gpu_bytes,
        "summary_cpu_bytes": need.summary_cpu_bytes,
        "max_batch": max_batch,
    }
    if selector.query_conditioned:
        on_cpu, mixed = routing.where == "cpu", routing.anchor == "mix"
        row |= {
            "where": routing.where,
            "anchor": routing.anchor,
            "mix": mix_text(routing.anchors(point.model.layers)) if mixed else None,
            "kernel": None if on_cpu else routing.kernel,
            "projection_rank": routing.projection_rank if routing.early else None,
            "channels": selector.channels(routing.channels, point.model.head_dim),
            "cpu_threads": routing.cpu_threads if on_cpu else None,
        }
    return row


def add_swept(base: Scenario, points: Sequence[Scenario], rows: Sequence[Row]) -> None:
    """Give rows, in place, a column for every swept key that has none; it is named by the key."""
    for key in base.sweep:
        path = key.split(".")
        if path[-1] in COLUMNS:
            continue
        for point, row in zip(points, rows, strict=True):
            value: Any = point.model_dump()
            for part in path:
                value = value.get(part) if isinstance(value, dict) else None
            row[key] = value if isinstance(value, str | int | float | None) else str(value)


def differing(rows: Sequence[Row]) -> list[str]:
    """Return the columns that tell points apart: the scenario's fields with several values."""
    fields = list(COLUMNS)[: list(COLUMNS).index("attended_tokens")]
    follow = ("where", "anchor", "kernel")  # the routing's name says these
    extra = [key for key in (rows[0] if rows else {}) if key not in COLUMNS]
    return [
        key
        for key in (*fields, *extra)
        if key not in follow and len({row[key] for row in rows} - {None}) > 1
    ]


def columns_of(rows: Sequence[Row]) -> list[str]:
    """Return all columns of rows: those of swept keys first, then `COLUMNS`."""
    return [*(key for key in (rows[0] if rows else {}) if key not in COLUMNS), *COLUMNS]


def result_files(
    rows: Sequence[Row],
    file: Path,
    manifest: Mapping[str, Any],
    columns: Mapping[str, str] | None = None,
) -> dict[Path, bytes]:
    """Return rows as CSV or Parquet, by the file's ending, and ``FILE.manifest.json``.

    `columns` maps each column to its unit, in order; by default they are those of a result.
    Neither file holds a time stamp: the same input gives the same bytes.

    Raises
    ------
    InputError
        If the ending is neither ``.csv`` nor ``.parquet``.
    """
    check_ending(file)
    as_bytes = _csv_bytes if file.suffix == ".csv" else _parquet_bytes
    columns = columns or {key: COLUMNS.get(key, "") for key in columns_of(rows)}
    text = json.dumps({"rows": len(rows), "columns": dict(columns), **manifest}, indent=2) + "\n"
    return {file: as_bytes(rows, columns), Path(f"{file}.manifest.json"): text.encode()}


def finite(value: object) -> object:
    """Return `value`, or None where it is a float that is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _csv_bytes(rows: Sequence[Row], columns: Mapping[str, str]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(columns), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: finite(row.get(key)) for key in columns})
    return text.getvalue().encode()


def _parquet_bytes(rows: Sequence[Row], columns: Mapping[str, str]) -> bytes:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise AbsentError("Parquet needs pyarrow", "pip install 'essim[parquet]'") from None
    fields = []
    for name, unit in columns.items():
        values = [row.get(name) for row in rows]
        kind = pa.string()
        if any(isinstance(v, float) for v in values):
            kind = pa.float64()
        elif any(isinstance(v, int) for v in values):
            kind = pa.int64()
        fields.append(pa.field(name, kind, metadata={"unit": unit} if unit else None))
    table = pa.Table.from_pylist(
        [{key: finite(row.get(key)) for key in columns} for row in rows], schema=pa.schema(fields)
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def manifest(
    scenario_file: Path,
    overrides: Sequence[str],
    profiles: Sequence[HardwareProfile],
    content: bytes | None = None,
) -> dict[str, Any]:
    """Return what a result came from: versions, commit, digests of scenario and profiles.

    `content` is the scenario's text where it is no file.
    """
    content = scenario_file.read_bytes() if content is None else content
    return versions() | {
        "scenario": {
            "file": scenario_file.name,
            "sha256": hashlib.sha256(content).hexdigest(),
            "set": list(overrides),
        },
        "profiles": {
            profile.spec.name: {
                "provisional": profile.spec.provisional,
                "sha256": profile.digest,
            }
            for profile in profiles
        },
    }


def versions() -> dict[str, Any]:
    """Return the versions that made a result: essim and its commit, Python, libraries."""
    return {
        "essim": _installed("essim"),
        "commit": _commit(),
        "python": ".".join(map(str, sys.version_info[:3])),
        "libraries": {name: version(name) for name in ("numpy", "pydantic", "simpy")},
    }


def _installed(name: str) -> str | None:
    """Return a distribution's version, None where essim runs from a checkout alone."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the git commit of a checkout, None where essim is installed without one."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
