"""Rules of the layout that a reader relies on (docs/architecture.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted([*(ROOT / "essim").rglob("*.py"), *(ROOT / "reports").rglob("*.py")])

# Left never imports right; modules in one group may import each other only downwards.
LAYERS = [
    ["errors", "binomial"],
    ["units", "yamlfile", "spread", "files"],
    ["parts", "grids"],
    ["model", "tables"],
    ["configs", "heldout"],
    ["hardware", "selectors"],
    ["routing"],
    ["step", "jitter"],
    ["engines", "work"],
    ["costs"],
    ["scenario"],
    ["results", "memory", "decode"],
    ["realrun", "calibration"],
    ["derivation", "figure2", "intervals", "timeline", "compare"],
    ["simulate"],
    ["breakeven", "verdict", "show", "listing", "pages"],
    ["options"],
    ["validation"],
    ["cli"],
    ["__main__"],
]
RANK = {module: i for i, group in enumerate(LAYERS) for module in group}


def imports(file: Path) -> set[str]:
    """Modules a file imports, wherever in the file, but not those for type checking only."""
    found: set[str] = set()

    def walk(node: ast.AST) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for child in node.orelse:
                walk(child)
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        for child in ast.iter_child_nodes(node):
            walk(child)

    walk(ast.parse(file.read_text()))
    return found


@pytest.mark.parametrize("file", SOURCES, ids=lambda f: str(f.relative_to(ROOT)))
def test_left_never_imports_right(file: Path) -> None:
    package, *rest = file.relative_to(ROOT).with_suffix("").parts
    names = imports(file)
    assert not any(name.split(".")[0] == "torch" for name in names)
    if package == "reports":
        assert not any(name.startswith("essim") for name in names)
        return
    assert not any(name.split(".")[0] == "plotly" for name in names)
    if rest[0] == "__init__":
        return
    for name in names:
        if name.startswith("essim."):
            assert RANK[name.split(".")[1]] <= RANK[rest[0]], f"{file.name} imports {name}"


def test_every_module_has_its_place() -> None:
    modules = {p.stem for p in (ROOT / "essim").glob("*.py")} - {"__init__"}
    packages = {p.parent.name for p in (ROOT / "essim").glob("*/__init__.py")}
    assert modules | packages == set(RANK)


def test_files_stay_short() -> None:
    long = {str(f): n for f in SOURCES if (n := len(f.read_text().splitlines())) > 300}
    assert long == {}
