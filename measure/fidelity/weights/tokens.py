"""Text to token ids and back, by the package tokenizers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from essim.errors import AbsentError, InputError

HINT = "pip install 'essim[fidelity]'"
# Metadata `tokenizer.ggml.pre` -> how text is split before BPE: digits one by one, or this regex.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITS = {"smollm": None, "llama-bpe": _LLAMA3, "qwen2": _LLAMA3.replace("{1,3}", "")}
# `token_type` of tokens that never come out of plain text.
_CONTROL = 3


@dataclass(frozen=True)
class Tokens:
    """A tokenizer.

    Attributes
    ----------
    tokenizer
        A ``tokenizers.Tokenizer``.
    start
        Ids that a text begins with, such as BOS; SmolLM2 and Qwen2 have none.
    """

    tokenizer: Any
    start: tuple[int, ...] = ()

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text without `start`."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=False))


def byte_level_bpe(file: Path, fields: dict[str, Any]) -> Tokens:
    """Return the byte-level BPE that a GGUF's metadata describes.

    Raises
    ------
    InputError
        If the file has another kind of tokenizer.
    """
    kind, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if kind != "gpt2" or pre not in _SPLITS:
        hint = "Give a folder with safetensors, config.json and tokenizer.json"
        raise InputError(f"tokenizer {kind!r}, {pre!r} is not read from a GGUF", hint, file=file)
    try:
        from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    except ModuleNotFoundError as error:
        raise AbsentError(f"tokens need {error.name}", HINT) from None
    names, merges = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.merges"]
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    tokenizer = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, pairs))
    regex = _SPLITS[pre]
    first = (
        pre_tokenizers.Digits(individual_digits=True)
        if regex is None
        else pre_tokenizers.Split(Regex(regex), "isolated")
    )
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex is None)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first, bytes_of])
    tokenizer.decoder = decoders.ByteLevel()
    types = fields["tokenizer.ggml.token_type"]
    control = [name for name, type_ in zip(names, types, strict=True) if type_ == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in control])
    bos = fields.get("tokenizer.ggml.add_bos_token", pre == "llama-bpe")
    return Tokens(tokenizer, (int(fields["tokenizer.ggml.bos_token_id"]),) if bos else ())


def from_json(file: Path) -> Tokens:
    """Return the tokenizer of a ``tokenizer.json``; what it puts first is what texts begin with."""
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        raise AbsentError(f"tokens need {error.name}", HINT) from None
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # The package raises plain Exception.
        raise InputError(f"cannot be read ({error})", file=file) from None
    whole = tokenizer.encode("a")
    first = takewhile(lambda pair: pair[1], zip(whole.ids, whole.special_tokens_mask, strict=True))
    return Tokens(tokenizer, tuple(id_ for id_, _ in first))
