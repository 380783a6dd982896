"""Which weights a result is of."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path


def sha256(files: Iterable[Path]) -> str:
    """Return the hash of files, one after the other."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
