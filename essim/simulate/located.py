"""Where the paths in a scenario start."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def locate(data: dict[str, Any], folder: Path) -> None:
    """Make the paths in a scenario's file, which start at its folder, start at the current one."""

    def seen_from_here(value: Any) -> Any:
        if isinstance(value, dict):
            inside = {
                key: seen_from_here(value[key]) for key in ("preset", "profile") if key in value
            }
            return value | inside
        is_path = isinstance(value, str) and value.endswith((".json", ".yaml", ".yml"))
        return str(folder / value) if is_path else value

    sweep = data.get("sweep")
    for key in ("model", "hardware", "routing", "routing.profile"):
        if key in data:
            data[key] = seen_from_here(data[key])
        if isinstance(sweep, dict) and isinstance(sweep.get(key), list):
            sweep[key] = [seen_from_here(value) for value in sweep[key]]
