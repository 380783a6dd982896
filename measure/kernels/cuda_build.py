"""Compile a CUDA C++ file into a shared library on first use; launchers are plain C functions."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
from pathlib import Path

from essim.errors import AbsentError
from measure.kernels.build import built

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
    return built(main, sources(main), [compiler, *FLAGS], compiler, "CUDA 12 or later can", cache)


@functools.cache
def load_cuda(name: str) -> ctypes.CDLL:
    """The library of ``NAME.cu``, wherever below this folder it lies."""
    return ctypes.CDLL(str(compile_cuda(next(FOLDER.rglob(f"{name}.cu")))))


def check(code: int, name: str) -> None:
    """Raise AbsentError for a CUDA error code that a launcher returned."""
    if code != 0:
        raise AbsentError(f"{name}: CUDA error {code}", "Needs a GPU of compute capability 9.0")
