"""What a sweep says, the figure of the README, the rooms of the code."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from xml.sax.saxutils import escape

from made.data import ROOT, compared, table
from reports.parity_svg import svg

# Rooms in the order in which they may import: each those above it.
ROOMS = {
    "essim": [
        *("errors", "text", "model", "hardware", "methods", "step", "engines"),
        *("results", "simulate", "validate", "serving", "reports", "api", "cli"),
    ],
    "measure": ["harness", "kernels", "tables", "decode", "studies", "fidelity"],
}
ROW = 24


def verdict() -> list[str]:
    """The sentences that `make demo` ends with."""
    command = [sys.executable, "-m", "essim", "sweep", "earlyselect-40k", "--json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True)
    return ["```", *json.loads(done.stdout)["verdict"], "```"]


def _says(room: Path) -> str:
    """Return what a room's docstring says, in its first line."""
    file = room / "__init__.py" if room.is_dir() else room.with_suffix(".py")
    return (ast.get_docstring(ast.parse(file.read_text())) or "").splitlines()[0].replace("``", "`")


def rooms(package: str) -> list[str]:
    """Return a package's rooms inside rooms: what the docstring of each folder says."""
    body = []
    for file in sorted((ROOT / package).rglob("__init__.py")):
        name = file.parent.relative_to(ROOT / package)
        if len(name.parts) > 1:
            body.append([f"`{name}`", _says(file.parent)])
    return table(("room", "holds"), body)


def _rooms_svg() -> str:
    """Return the picture of the rooms: a row a room, what it may import above it."""
    folders = {file.parent.name for file in (ROOT / "essim").glob("*/__init__.py")}
    assert folders == set(ROOMS["essim"]) - {"errors", "reports"}, "ROOMS differs from the folders"
    parts, y = [], 10
    for package, names in ROOMS.items():
        height = ROW * len(names) + 34
        parts.append(
            f'<rect x="10" y="{y}" width="700" height="{height}" fill="none" stroke="#999"/>'
        )
        parts.append(f'<text x="20" y="{y + 20}" font-weight="bold">{package}</text>')
        y += 28
        for name in names:
            inner = ROOT / package / name if name != "reports" else ROOT / name
            fill = "#e8f0fa" if name != "reports" else "#fdebd3"
            parts.append(
                f'<rect x="20" y="{y}" width="680" height="{ROW - 4}" fill="{fill}"/>'
                f'<text x="30" y="{y + 15}" font-weight="bold">{name}</text>'
                f'<text x="120" y="{y + 15}">{escape(_says(inner).replace("`", ""))}</text>'
            )
            y += ROW
        y += 16
    size = f'width="720" height="{y}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size} viewBox="0 0 720 {y}"'
    head += ' font-family="sans-serif" font-size="12" fill="#222">'
    title = "<title>The rooms of essim and measure</title>"
    return "\n".join([head, title, f'<rect {size} fill="#fff"/>', *parts, "</svg>", ""])


def files() -> dict[Path, str]:
    """Return whole files that are made: path -> text."""
    return {
        ROOT / "docs" / "parity.svg": svg(compared("h200").pairs),
        ROOT / "docs" / "rooms.svg": _rooms_svg(),
    }
