"""Writing files whole, together or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from essim.errors import InputError


def write_files(contents: Mapping[Path, bytes]) -> None:
    """Write files, making their folders: each whole or not at all, none if one cannot be.

    Raises
    ------
    InputError
        Naming the place that cannot be written; nothing is left there or anywhere else.
    """
    drafts: dict[Path, Path] = {}
    try:
        for file, content in contents.items():
            place = file
            if file.is_dir():
                raise InputError("is a folder, not a file", file=file)
            file.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name[:80]}.")
            drafts[file] = Path(name)
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
            Path(name).chmod(0o644)
        for file, draft in drafts.items():
            place = file
            draft.replace(file)
    except OSError as error:
        raise InputError(f"cannot be written ({error.strerror})", file=place) from None
    finally:
        for draft in drafts.values():
            draft.unlink(missing_ok=True)
