"""How many tokens a config can see."""

from __future__ import annotations

from pydantic import AliasChoices, Field

from essim.model.hf.source import Part, Source
from essim.model.shape import Count

_DEFAULT_TOKENS = 131072


class _Context(Part):
    tokens: Count | None = Field(
        None,
        validation_alias=AliasChoices(
            *("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"),
            *("max_sequence_length", "model_max_length"),
        ),
    )


class _Rope(Part):
    kind: str | None = Field(None, validation_alias=AliasChoices("rope_type", "type"))
    factor: float = Field(1.0, gt=0, le=10**6)
    original: Count | None = Field(None, validation_alias="original_max_position_embeddings")


def context_tokens(source: Source, kind: str) -> int:
    """Return the longest sequence.

    YaRN stretches the original context by its factor. Where `max_position_embeddings` is above the
    original one, it is stretched already. Of other kinds the files hold the stretched context
    already, or do not tell, which is said.
    """
    tokens = source.read(_Context).tokens
    if tokens is None:
        source.warn(f"max_position_embeddings is absent: a context of {_DEFAULT_TOKENS} taken")
        tokens = _DEFAULT_TOKENS
    for key in ("rope_scaling", "rope_parameters"):
        if isinstance(source.get(key), dict):
            return _stretched(source, source.aside(key).read(_Rope), tokens, kind)
    return tokens


def _stretched(source: Source, rope: _Rope, tokens: int, kind: str) -> int:
    if kind.startswith("gemma3") or rope.factor <= 1:
        return tokens
    if rope.kind == "yarn":
        original = rope.original or tokens
        return tokens if tokens > original else int(rope.factor * original)
    if rope.kind in ("linear", "dynamic", "ntk") and (rope.original or tokens) >= tokens:
        source.warn(
            f"rope_scaling of type {rope.kind} is not applied: a context of {tokens} tokens taken",
            "rope_scaling",
        )
    return tokens
