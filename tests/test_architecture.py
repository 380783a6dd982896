"""Rules of the layout that a reader relies on (docs/architecture.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("essim", "reports", "measure")
SOURCES = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))

# Imports point to rooms above. `reports` is a room of its own between `validate` and `cli`.
ROOMS = [
    *("errors", "text", "model", "hardware", "methods", "step", "engines"),
    *("results", "simulate", "validate", "serving", "reports", "api", "cli", "__main__"),
]
RANK = {room: i for i, room in enumerate(ROOMS)}
# Where torch, plotly and the packages that measure are at home.
HOMES = {"torch": {"measure"}, "triton": {"measure"}, "plotly": {"reports"}}


def module_name(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(file): file for file in SOURCES}


def imports(file: Path, for_types: bool = False) -> set[str]:
    """Modules a file imports, wherever in the file; those for type checking only if asked."""
    found: set[str] = set()

    def walk(node: ast.AST) -> None:
        only_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if only_types and not for_types:
            for child in node.orelse:
                walk(child)
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update(submodules & set(MODULES) or {node.module})
        for child in ast.iter_child_nodes(node):
            walk(child)

    walk(ast.parse(file.read_text()))
    return found


def room(name: str) -> str | None:
    """Return the room of a module of `essim` or `reports`, None of any other."""
    package, *rest = name.split(".")
    if package == "reports":
        return package
    return rest[0] if package == "essim" and rest else None


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_point_to_rooms_above(name: str) -> None:
    package, own = name.split(".")[0], room(name)
    # A figure's type may be named anywhere.
    for other in imports(MODULES[name]):
        assert package in HOMES.get(other.split(".")[0], {package}), f"{name} imports {other}"
    for other in imports(MODULES[name], for_types=True):
        theirs = room(other)
        if own and theirs:
            assert RANK[theirs] <= RANK[own], f"{name} imports {other}"


def test_reports_see_rows_alone() -> None:
    found = {
        other
        for name in MODULES
        if room(name) == "reports"
        for other in imports(MODULES[name], for_types=True)
        if other.split(".")[0] == "essim"
    }
    assert {room(other) for other in found} <= {"errors", "text", "results"}


def test_no_module_imports_itself_by_a_detour() -> None:
    graph = nx.DiGraph(
        (name, other)
        for name, file in MODULES.items()
        for other in imports(file) & set(MODULES)
        if other != name
    )
    assert list(nx.simple_cycles(graph)) == []


def test_every_module_has_its_room() -> None:
    assert {room(name) for name in MODULES} - {None} == set(ROOMS)


def test_files_stay_short() -> None:
    long = {str(f): n for f in SOURCES if (n := len(f.read_text().splitlines())) > 300}
    assert long == {}


def lengths(file: Path) -> dict[str, int]:
    """Lines of each function of a file, its docstring not counted."""
    found = {}
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            said = node.body[0] if ast.get_docstring(node) else None
            docstring = 0 if said is None else (said.end_lineno or 0) - said.lineno + 1
            lines = (node.end_lineno or 0) - node.lineno + 1 - docstring
            found[f"{file.relative_to(ROOT)}: {node.name}"] = lines
    return found


# Sources of kernels that tables were measured with: they change with the next measurement.
MEASURED = {
    "measure/kernels/attention/kernels.py: dense_kernel",
    "measure/kernels/attention/kernels.py: sparse_kernel",
    "measure/kernels/gpu_router/exact_topk/router.py: __call__",
    "measure/kernels/gpu_router/exact_topk/router.py: score_kernel",
    "measure/kernels/gpu_router/quest/router.py: score_kernel",
    "measure/kernels/gpu_router/stepwise/kernels.py: score_kernel",
    "measure/kernels/gpu_router/stepwise/router.py: steps",
}
# A name goes from here as its function is mended.
STILL_LONG = {
    "essim/cli/app.py: sweep",
    "essim/engines/des.py: finish",
    "essim/simulate/derivation.py: _pools",
    "essim/simulate/derivation.py: derivation",
    "essim/simulate/scenario.py: _grid",
}


def test_functions_stay_short() -> None:
    lines = {name: n for file in SOURCES for name, n in lengths(file).items()}
    assert {name for name, n in lines.items() if n > 40} - STILL_LONG == MEASURED
