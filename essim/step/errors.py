"""How far prices are off that no held-out point stands behind, by source.

``errors.json`` is written by ``python -m essim.validate.source_errors`` from the shipped tables and
surveys: percentiles of the natural logarithm of measured over predicted time. What could not be
measured there says so in its ``basis``.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FILE = Path(__file__).with_suffix(".json")
PERCENTILES = (0, 5, 25, 50, 75, 95, 100)


@cache
def _all() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def error_of(source: str, family: str) -> str:
    """Return what a price of a source is off by, as `error_factors` knows it; nothing if measured.

    Parameters
    ----------
    source
        One of `essim.step.price.SOURCES`.
    family
        Of ops whose prices are off alike, such as ``gemm``.
    """
    if source in ("measured", "interpolated"):
        return ""
    return f"{source} {family}" if source == "transferred" else source


def error_factors(error: str, ranks: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return measured over predicted time at some ranks, 0 to 1, of a kind of error.

    Parameters
    ----------
    error
        ``extrapolated``, ``scaled``, ``transferred gemm``, ``device attention``, ...; a family
        that is not known is as far off as ``other``.
    """
    known = _all()
    own = known.get(error) or known[error.split(" ")[0] + " other"]
    at = np.interp(100 * ranks, PERCENTILES, own["log_error"])
    return np.asarray(np.exp(at))
