"""Rows of a fidelity run, as `measure.fidelity` writes and `reports` reads them."""

from __future__ import annotations

from essim.results.column import AnyRow


def setting_name(row: AnyRow) -> str:
    """Return the name of the setting that a row is of, such as ``rocketkv mid-r128 64``."""
    rank = f"-r{row['projection_rank']}" if row.get("projection_rank") else ""
    parts = (row["selector"], f"{row['query']}{rank}" if row.get("query") else None)
    return " ".join(str(part) for part in (*parts, row.get("budget_tokens")) if part)
