"""Compile a CUDA C++ file into a shared library on first use; launchers are plain C functions."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from essim.errors import AbsentError
from measure.kernels.build import default_cache, source_hash

FLAGS = (
    "-std=c++17",
    "-O3",
    "--use_fast_math",
    "-lineinfo",
    "-arch=sm_90",
    "-shared",
    "-Xcompiler",
    "-fPIC,-pthread",
)
FOLDER = Path(__file__).parent


def sources(main: Path) -> list[Path]:
    """``NAME.cu`` and the headers in the folder ``NAME`` beside it."""
    return [main, *sorted(main.with_suffix("").glob("*.cuh"))]


def compile_cuda(main: Path, cache: Path | None = None) -> Path:
    """Shared library of ``main``, from the cache where source and flags are the same.

    Raises
    ------
    AbsentError
        Where there is no nvcc, or where it rejects the source.
    """
    compiler = os.environ.get("NVCC") or "nvcc"
    if shutil.which(compiler) is None:
        raise AbsentError(f"no CUDA compiler {compiler!r}", "Install CUDA 12 or later or set NVCC")
    key = hashlib.sha256(f"{source_hash(sources(main))} {FLAGS}".encode()).hexdigest()[:16]
    folder = cache or default_cache()
    library = folder / f"{main.stem}-{key}.so"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    partial = library.with_suffix(f".{os.getpid()}")
    command = [compiler, *FLAGS, "-o", str(partial), str(main)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line]
        raise AbsentError(f"nvcc cannot compile {main.name}: {(lines or ['no message'])[0]}")
    partial.replace(library)
    return library


@functools.cache
def load_cuda(name: str) -> ctypes.CDLL:
    """The library of ``measure/kernels/NAME.cu``."""
    return ctypes.CDLL(str(compile_cuda(FOLDER / f"{name}.cu")))


def check(code: int, name: str) -> None:
    """Raise AbsentError for a CUDA error code that a launcher returned."""
    if code != 0:
        raise AbsentError(f"{name}: CUDA error {code}", "Needs a GPU of compute capability 9.0")
