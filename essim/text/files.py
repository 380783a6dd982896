"""Writing files whole, together or not at all, and where a command may write."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from essim.errors import BadValueError, InputError


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


def is_there(file: Path) -> bool:
    """Return whether a file or a pipe is there; a name that no file can have is not."""
    try:
        return file.exists() and not file.is_dir()
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """Return whether a folder is there; a name that no file can have is none."""
    try:
        return path.is_dir()
    except OSError:
        return False


def existing(file: Path) -> Path:
    """Return `file`, or raise `BadValueError` naming the folder where it is not."""
    if is_there(file):
        return file
    hint = "Paths in a scenario start at its folder, others at the current one"
    raise BadValueError(f"no file {file.name!r} in {file.parent.resolve()}", hint)


def check_ending(file: Path) -> None:
    """Raise `InputError` unless `file` ends in ``.csv`` or ``.parquet``."""
    if file.suffix not in (".csv", ".parquet"):
        raise InputError(f"{file} ends in neither .csv nor .parquet", key="--out")


def check_outputs(
    inputs: Sequence[Path],
    out: Path | None = None,
    html: Path | None = None,
    trace: Path | None = None,
) -> None:
    """Refuse to write over what a command reads or writes besides, and other endings.

    Raises
    ------
    InputError
        Naming the option.
    """
    if out is not None:
        check_ending(out)
    if html is not None and html.suffix != ".html":
        raise InputError(f"{html} does not end in .html", key="--html")
    taken = {file.resolve() for file in inputs}
    for key, file in (("--out", out), ("--html", html), ("--trace", trace)):
        if file is None:
            continue
        if file.resolve() in taken:
            message = f"{file} is read, or written by another option"
            raise InputError(message, "Give another file", key=key)
        taken.add(file.resolve())
