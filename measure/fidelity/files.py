"""The files of a study: tables, the ES-Mix assignment, the quality table, a summary, a manifest."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from essim.results.column import Row
from essim.results.files import result_files, versions
from essim.results.tables import column
from measure.fidelity.study import Study
from measure.harness.machine import machine_facts

_OF_QUALITY = (
    *("selector", "query", "projection_rank", "budget_tokens", "loss_nats", "loss_se_nats"),
    *("kl_nats", "kl_se_nats", "top1_agreement_frac", "passkey_frac"),
)


def study_files(
    study: Study, tables: Mapping[str, Sequence[Row]], sentences: Sequence[str], out: Path
) -> dict[Path, bytes]:
    """Return the files of a study by path, without the page."""
    about = manifest(study)
    files = {out / f"{name}.csv": _csv(rows) for name, rows in tables.items() if rows}
    files[out / "manifest.json"] = (json.dumps(about, indent=2) + "\n").encode()
    files[out / "summary.md"] = "".join(f"- {text}\n" for text in sentences).encode()
    files[out / "mix.yaml"] = _mix_yaml(study).encode()
    files[out / "quality.yaml"] = _quality_yaml(study, tables["quality"]).encode()
    return files


def _csv(rows: Sequence[Row]) -> bytes:
    """Return rows as CSV, numbers to six places, without a manifest of their own."""
    columns = {name: column(name) for name in dict.fromkeys(key for row in rows for key in row)}
    rounded = [{key: _rounded(value, 6) for key, value in row.items()} for row in rows]
    file = Path("rows.csv")
    return result_files(rounded, file, {}, columns)[file]


def manifest(study: Study) -> dict[str, Any]:
    """Return what a run came from: versions, model and its hash, options, machine."""
    options = {
        key: str(value) if isinstance(value, Path) else value
        for key, value in asdict(study.options).items()
        if key != "model"
    }
    return versions() | {
        "model": study.checkpoint.name,
        "model_sha256": study.checkpoint.sha256,
        "budget_tokens": study.plan.budget,
        "channels": study.plan.channels,
        "tau": study.options.tau,
        "options": options,
        "machine": machine_facts(("torch", "numpy", "gguf", "tokenizers")),
    }


def _source(study: Study) -> str:
    options = study.options
    return (
        f"essim fidelity on {study.checkpoint.name}, {len(options.domains)} contexts of "
        f"{options.context_tokens} tokens ({', '.join(options.domains)}), the last "
        f"{options.decoded_tokens} decoded"
    )


def _mix_yaml(study: Study) -> str:
    return (
        f"# ES-Mix by {_source(study)}.\n"
        "# `in` where mass(Mid) - mass(In) <= tau. Target layers 1, 2, ... in order.\n"
        f"model: {json.dumps(study.checkpoint.name)}\n"
        f"tau: {study.options.tau}\n"
        f"mix: [{', '.join(study.mix)}]\n"
    )


def _quality_yaml(study: Study, rows: Sequence[Row]) -> str:
    """Return what each setting loses, for a plan that admits settings by their loss."""
    head = (
        "# Loss is what -log p of the next token grows by, KL is from dense attention.\n"
        f"quality:\n  source: {json.dumps(_source(study))}\n"
        f"  model: {json.dumps(study.checkpoint.name)}\n  settings:\n"
    )
    whole = [row for row in rows if row["domain"] == "all" and row["selector"] != "dense"]
    lines = (
        json.dumps(
            {key.replace("query", "anchor"): _rounded(row.get(key), 5) for key in _OF_QUALITY}
        )
        for row in whole
    )
    return head + "".join(f"  - {line}\n" for line in lines)


def _rounded(value: object, places: int) -> object:
    return round(value, places) if isinstance(value, float) else value
