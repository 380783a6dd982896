"""A config being read: its data, which keys were read, and where to point when one is wrong."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict

from essim.errors import InputError
from essim.text.yaml import Document, Path_, Strict, validate

M = TypeVar("M", bound=BaseModel)


class Part(Strict):
    """Base of the groups of keys that are read; a config has many more."""

    model_config = ConfigDict(extra="ignore")


@dataclass(frozen=True)
class Source:
    """The keys of a model, at the top of a document or nested in it; null means absent.

    Attributes
    ----------
    data
        Every key that has a value.
    at
        Path of the keys in the document.
    """

    document: Document
    data: dict[str, Any]
    at: Path_ = ()
    _seen: set[str] = field(default_factory=set)
    _below: dict[str, Source] = field(default_factory=dict)

    @classmethod
    def of(cls, document: Document, at: Path_ = ()) -> Source:
        """Return the mapping at `at` of a document."""
        data = document.data
        for key in at:
            data = data[str(key)]
        return cls(document, {k: v for k, v in data.items() if v is not None}, at)

    def written(self, key: str) -> bool:
        """Return whether the file has a key, if only to say null."""
        data = self.document.data
        for step in self.at:
            data = data[str(step)]
        return key in data

    def read(self, part: type[M]) -> M:
        """Return the keys that `part` knows, validated; two names of one thing must agree."""
        for names in _names(part):
            self._seen.update(names)
            self._agree(names)
        return validate(part, self.data, self.document, self.at)

    def skip(self, part: type[Part]) -> None:
        """Take the keys that `part` knows for read, since they mean nothing here."""
        for names in _names(part):
            self._seen.update(names)

    def _agree(self, names: tuple[str, ...]) -> None:
        given = [name for name in names if name in self.data]
        for name in given[1:]:
            if self.data[name] != self.data[given[0]] and given[0] not in _MAY_DIFFER:
                message = f"{self.data[name]} is not the {self.data[given[0]]} of {given[0]}"
                raise self.error(name, message, "Delete one: they mean the same")

    def get(self, key: str, default: Any = None) -> Any:
        """Return a key's value, whatever its type."""
        self._seen.add(key)
        return self.data.get(key, default)

    def nested(self, key: str) -> Source:
        """Return the mapping below `key`."""
        self._seen.add(key)
        if key not in self._below:
            self._below[key] = Source.of(self.document, (*self.at, key))
        return self._below[key]

    def aside(self, key: str) -> Source:
        """Return the mapping below `key`, of which no unread key changes sizes."""
        self._seen.add(key)
        return Source.of(self.document, (*self.at, key))

    def unread(self) -> Iterator[tuple[Source, str]]:
        """Yield every key that nobody read, with where it is."""
        yield from ((self, key) for key in self.data if key not in self._seen)
        for below in self._below.values():
            yield from below.unread()

    def error(self, key: str, message: str, hint: str = "") -> InputError:
        """Return the error for something wrong at `key`."""
        return self.document.error(message, hint, at=(*self.at, key))

    def warn(self, message: str, key: str = "") -> None:
        """Say what was assumed, of a key or of one that is absent."""
        file, line = self.document.place((*self.at, key) if key else self.at)
        warnings.warn(f"{file}:{line}: {message}" if line else f"{file}: {message}", stacklevel=2)


# How far a model can see and how far it was trained to are told apart by some.
_MAY_DIFFER = ("max_position_embeddings", "n_positions", "n_ctx", "seq_length", "max_seq_len")


def _names(part: type[BaseModel]) -> Iterator[tuple[str, ...]]:
    """Yield the names of each field of a part."""
    for name, info in part.model_fields.items():
        alias = info.validation_alias
        if isinstance(alias, AliasChoices):
            yield tuple(str(choice) for choice in alias.choices)
        else:
            yield (str(alias or name),)
