"""A config being read: its data, and where to point when something in it is wrong."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict

from essim.errors import InputError
from essim.text.yaml import Document, Path_, Strict, validate

M = TypeVar("M", bound=BaseModel)


class Part(Strict):
    """Base of the groups of keys that are read; a config has many more, which are ignored."""

    model_config = ConfigDict(extra="ignore")


@dataclass(frozen=True)
class Source:
    """The keys of a model, at the top of a document or nested in it.

    Attributes
    ----------
    at
        Path of the keys in the document.
    """

    document: Document
    data: dict[str, Any]
    at: Path_ = ()

    def read(self, part: type[M]) -> M:
        """Return the keys that `part` knows, validated."""
        return validate(part, self.data, self.document, self.at)

    def nested(self, key: str) -> Source:
        """Return the mapping below `key`."""
        return Source(self.document, self.data[key], (*self.at, key))

    def error(self, key: str, message: str, hint: str = "") -> InputError:
        """Return the error for something wrong at `key`."""
        return self.document.error(message, hint, at=(*self.at, key))

    def warn(self, message: str) -> None:
        """Say what was assumed."""
        warnings.warn(f"{self.document.file}: {message}", stacklevel=2)
