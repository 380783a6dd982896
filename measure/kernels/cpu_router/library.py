"""The compiled CPU router: found in the cache or compiled on first use."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path

from measure.kernels.build import code_hash, compile_library
from measure.kernels.cpu_router.abi import ISAS, Config, Layout

ISA_VARIABLE = "ESSIM_ROUTER_ISA"

FOLDER = Path(__file__).parent
SOURCES = (FOLDER / "cpu_router.cpp", *sorted((FOLDER / "router").iterdir()))


@functools.cache
def library(cache: Path | None = None) -> ctypes.CDLL:
    """The compiled router; compiled on the first call."""
    lib = ctypes.CDLL(str(compile_library(FOLDER / "cpu_router.cpp", SOURCES, cache)))
    for name in ("essim_create", "essim_mailbox"):
        getattr(lib, name).restype = ctypes.c_void_p
    lib.essim_post.restype = ctypes.c_uint32
    return lib


def router_hash() -> str:
    """Hash of the router's code, to be stored beside its timings."""
    return code_hash(SOURCES)


def best_isa() -> str:
    """The instruction set used by default: ``$ESSIM_ROUTER_ISA`` or the best this CPU has."""
    return os.environ.get(ISA_VARIABLE) or ISAS[library().essim_best_isa()]


def available_isas() -> list[str]:
    """Instruction sets that this CPU can run."""
    return [name for i, name in enumerate(ISAS) if library().essim_has_isa(i)]


def mailbox_layout(config: Config) -> Layout:
    """Where the parts of the mailbox lie; ``total`` is its size in bytes."""
    layout = Layout()
    library().essim_mailbox_layout(ctypes.byref(config), ctypes.byref(layout))
    return layout
