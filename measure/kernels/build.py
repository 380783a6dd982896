"""Compile a kernel on first use and keep it in a cache, keyed by source, compiler and flags."""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from essim.errors import AbsentError

FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-pthread")


def source_hash(paths: Sequence[Path]) -> str:
    """Hash of the names and contents of source files: 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def code_hash(paths: Iterable[Path]) -> str:
    """Hash of what is compiled or traced: 16 hexadecimal digits.

    Imports, docstrings, comments and blank lines do not count, nor do names and folders of files:
    a kernel that moves is still the kernel that was timed.
    """
    codes = sorted(_python_code(p) if p.suffix == ".py" else _c_code(p) for p in paths)
    return hashlib.sha256("\0".join(codes).encode()).hexdigest()[:16]


def _python_code(path: Path) -> str:
    text = path.read_text()
    dropped: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            dropped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            first = node.body[0]
            dropped.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = enumerate(text.splitlines(), start=1)
    return _without(("#",), (line for number, line in lines if number not in dropped))


def _c_code(path: Path) -> str:
    return _without(("//", '#include "'), path.read_text().splitlines())


def _without(starts: tuple[str, ...], lines: Iterable[str]) -> str:
    kept = (line.rstrip() for line in lines if line.strip())
    return "\n".join(line for line in kept if not line.lstrip().startswith(starts))


def compiler_version(compiler: str) -> str:
    """First line of ``compiler --version``.

    Raises
    ------
    AbsentError
        Where there is no such compiler.
    """
    if shutil.which(compiler) is None:
        raise AbsentError(
            f"no C++ compiler {compiler!r} for the CPU router",
            "apt-get install g++ (or set CXX to a GCC that knows AVX-512)",
        )
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[0]


def default_cache() -> Path:
    """``$XDG_CACHE_HOME/essim`` or ``~/.cache/essim``."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "essim"


def compile_library(
    main: Path, sources: Sequence[Path], cache: Path | None = None, compiler: str | None = None
) -> Path:
    """Compile ``main`` into a shared library, unless the cache has it.

    Parameters
    ----------
    main
        The one translation unit.
    sources
        Every file whose change makes a new library, ``main`` among them.
    cache
        Folder for libraries; `default_cache` if None.
    compiler
        A g++; ``$CXX`` or ``g++`` if None.

    Raises
    ------
    AbsentError
        Where there is no compiler, or where it rejects the source.
    """
    compiler = compiler or os.environ.get("CXX") or "g++"
    version = compiler_version(compiler)
    command = [compiler, *FLAGS]
    return built(main, sources, command, version, "GCC 12 or later can", cache)


def built(
    main: Path,
    sources: Sequence[Path],
    command: Sequence[str],
    version: str,
    hint: str,
    cache: Path | None,
) -> Path:
    """Run a compiler on ``main`` unless the cache has its library; return the library.

    Raises
    ------
    AbsentError
        Where the compiler rejects the source; it ends with ``hint``.
    """
    made_by = f"{source_hash(sources)} {version} {command[1:]}"
    key = hashlib.sha256(made_by.encode()).hexdigest()[:16]
    folder = cache or default_cache()
    library = folder / f"{main.stem}-{key}.so"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    # Rename into place: two processes may compile at once.
    partial = library.with_suffix(f".{os.getpid()}")
    done = subprocess.run(
        [*command, "-o", str(partial), str(main)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line]
        message = lines[0] if lines else "no message"
        raise AbsentError(f"{version} cannot compile {main.name}: {message}", hint)
    partial.replace(library)
    return library
