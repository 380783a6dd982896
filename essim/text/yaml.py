"""YAML in, validated models out, with the file and line of whatever is wrong."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from essim.errors import BadValueError, InputError
from essim.text.parse import parse_yaml
from essim.text.problems import described, nearest

Path_ = tuple[str | int, ...]

# More than any scenario or profile has; aliases of aliases reach it at once.
_MOST_ENTRIES = 100_000
_MOST_PROBLEMS = 10
_MOST_KNOWN = 10
M = TypeVar("M", bound=BaseModel)


class Strict(BaseModel):
    """Base of every model that text enters through: unknown keys, NaN and coercions are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Document:
    """Plain data, and for error messages the file and line of each key path in it.

    Attributes
    ----------
    overrides
        Paths whose values came from elsewhere: from `setter` (line None), or from the line of a
        sweep. What goes wrong at, above or below them is blamed on them.
    setter
        What overrides came through: the option of the command line, or an argument.
    """

    file: Path
    data: dict[str, Any]
    lines: Mapping[Path_, int]
    overrides: Mapping[Path_, int | None] = field(default_factory=dict)
    setter: str = "--set"

    def place(self, path: Path_) -> tuple[Path | str, int | None]:
        """Return the (file, line) of `path`, or of its nearest parent that has one."""
        for changed, line in self.overrides.items():
            shared = min(len(path), len(changed))
            if shared and path[:shared] == changed[:shared]:
                return (self.setter, None) if line is None else (self.file, line)
        for length in range(len(path), 0, -1):
            if path[:length] in self.lines:
                return self.file, self.lines[path[:length]]
        return self.file, 1 if self.lines else None

    def error(self, message: str, hint: str = "", *, at: Path_) -> InputError:
        """Return the error for something wrong at `at`."""
        file, line = self.place(at)
        key = ".".join(str(part) for part in at)
        return InputError(message, hint, file=file, line=line, key=key)

    def value_error(self, error: ValueError, *, at: Path_) -> InputError:
        """Return the error for a value at `at` that was refused."""
        refused = BadValueError.of(error)
        return self.error(refused.message, refused.hint, at=at)


def read_yaml(file: Path) -> Document:
    """Read a YAML 1.2 mapping.

    Raises
    ------
    InputError
        If the file is missing, unreadable, not YAML, not a mapping, or has a key twice.
    """
    text = read_text(file)
    node = parse_yaml(text, file)
    if not isinstance(node, Mapping):
        raise InputError(
            "the file is empty or not a mapping", "Write 'key: value' lines", file=file, line=1
        )
    lines: dict[Path_, int] = {}
    data = _plain(node, (), lines)
    return Document(file, data, lines)


def read_text(file: Path) -> str:
    """Return the text of `file`, or raise `InputError` saying why it cannot be read."""
    try:
        whole = file.read_bytes()
        return whole.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        line = whole[: error.start].count(b"\n") + 1
        raise InputError("not UTF-8 text", "Save it as UTF-8", file=file, line=line) from None
    except OSError as error:
        raise InputError(
            f"cannot be read ({error.strerror})", "Check the path", file=file
        ) from None


def _plain(node: Any, path: Path_, lines: dict[Path_, int]) -> Any:
    """Turn ruamel's round-trip types into plain ones and note each key's line."""
    marks = getattr(getattr(node, "lc", None), "data", None) or {}
    if len(lines) > _MOST_ENTRIES:
        raise InputError(f"more than {_MOST_ENTRIES} entries", "Aliases count each time")
    if isinstance(node, Mapping):
        for key in node:
            if key in marks:
                lines[(*path, str(key))] = marks[key][0] + 1
        return {str(key): _plain(value, (*path, str(key)), lines) for key, value in node.items()}
    if isinstance(node, Sequence) and not isinstance(node, str):
        for index in range(len(node)):
            if index in marks:
                lines[(*path, index)] = marks[index][0] + 1
        return [_plain(value, (*path, i), lines) for i, value in enumerate(node)]
    for plain in (bool, int, float, str):
        if isinstance(node, plain):
            return plain(node)
    return None if node is None else str(node)


def parse_scalar(text: str) -> Any:
    """Return the plain value that YAML gives `text` (for ``--set key=value``)."""
    return _plain(parse_yaml(text, "--set"), (), {})


def parse_override(text: str) -> tuple[str, Any]:
    """Return the key and the value of one ``key=value`` of ``--set``."""
    key, equals, value_text = text.partition("=")
    key = key.strip()
    if not equals or not key:
        raise InputError(f"{text!r} is not KEY=VALUE", "Such as workload.batch=4", file="--set")
    return key, parse_scalar(value_text)


def validate(model: type[M], data: Any, document: Document, at: Path_ = ()) -> M:
    """Return `data` as a `model`, or raise `InputError` with the file and line of each problem.

    Parameters
    ----------
    at
        Where `data` sits in the document, for line numbers of a part of it.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = _problems(error, data, model, document, at)
    if len(problems) == 1:
        raise problems[0]
    lines = [str(problem) for problem in problems[:_MOST_PROBLEMS]]
    more = len(problems) - len(lines)
    raise InputError("\n".join(lines + [f"... and {more} more"] * bool(more)))


def _problems(
    error: ValidationError, data: Any, model: type[BaseModel], document: Document, at: Path_
) -> list[InputError]:
    """Return an error for each key that is wrong; branches of a union are one."""
    found: dict[Path_, list[Any]] = {}
    for entry in error.errors():
        path = _existing_path(entry["loc"], data, missing=entry["type"] == "missing")
        found.setdefault(path, []).append(entry)
    problems = []
    for path, entries in found.items():
        kind = entries[0]["type"]
        if kind == "extra_forbidden":
            message, hint = "unknown key", unknown_key_hint(path, model, data)
        elif kind == "missing":
            message, hint = "required, but missing", ""
        else:
            refused = described(entries)
            message, hint = refused.message, refused.hint
        problems.append(document.error(message, hint, at=(*at, *path)))
    return problems


def _existing_path(loc: Sequence[str | int], data: Any, *, missing: bool) -> Path_:
    """Drop the parts of a pydantic location that are union tags or validators, not keys."""
    path: list[str | int] = []
    for index, part in enumerate(loc):
        last_of_missing = missing and index == len(loc) - 1
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            if not last_of_missing:
                continue
        path.append(part)
    return tuple(path)


def key_paths(model: type[BaseModel], data: Any = None) -> Iterator[str]:
    """Yield every dotted key the model accepts, from its JSON schema.

    Of what has kinds, the keys of all of them, or with `data` of the kind that it is of.
    """
    schema = model.model_json_schema()
    definitions = schema.get("$defs", {})

    def walk(
        node: Mapping[str, Any], prefix: str, seen: frozenset[str], data: Any
    ) -> Iterator[str]:
        if "$ref" in node:
            name = node["$ref"].rsplit("/", 1)[-1]
            if name not in seen:
                yield from walk(definitions[name], prefix, seen | {name}, data)
        for branch in (*node.get("anyOf", ()), *_branches(node, data)):
            yield from walk(branch, prefix, seen, data)
        for key, child in node.get("properties", {}).items():
            yield prefix + key
            below = data.get(key) if isinstance(data, Mapping) else None
            yield from walk(child, f"{prefix}{key}.", seen, below)

    yield from walk(schema, "", frozenset(), data)


def _branches(node: Mapping[str, Any], data: Any) -> Sequence[Mapping[str, Any]]:
    """Return the kinds of a part: the one that `data` is of, all where it does not tell."""
    told = node.get("discriminator", {})
    kind = data.get(told.get("propertyName")) if isinstance(data, Mapping) else None
    if isinstance(kind, str) and kind in told.get("mapping", {}):
        return [{"$ref": told["mapping"][kind]}]
    branches: Sequence[Mapping[str, Any]] = node.get("oneOf", ())
    return branches


def nearest_hint(word: str, known: Sequence[str]) -> str:
    """Return ``Did you mean ...?`` for the closest of `known`, or what is known."""
    close = nearest(word, known)
    if close:
        return f"Did you mean '{close}'?"
    return f"Known: {', '.join(known)}" if 0 < len(known) <= 24 else ""


def unknown_key_hint(path: Path_, model: type[BaseModel], data: Any) -> str:
    """Return what to do about a key that `model` does not have at `path`."""
    own, key = ".".join(map(str, path)), str(path[-1])
    if own in key_paths(model):
        return "It belongs to another kind"
    paths = list(key_paths(model, data))
    if own.replace(":", ".") in paths:
        return f"Did you mean '{own.replace(':', '.')}'?"
    if ":" in key:
        return "Write a space after the colon"
    parent = own.removesuffix(key)
    beside = [p.removeprefix(parent) for p in paths if p.startswith(parent)]
    beside = [name for name in beside if "." not in name]
    close = nearest(key, beside)
    if close:
        return f"Did you mean '{parent}{close}'?"
    known = f"Known: {', '.join(beside)}" if len(beside) <= _MOST_KNOWN else ""
    return nearest_key_hint(key, paths, cutoff=0.75) or known


def nearest_key_hint(word: str, paths: Sequence[str], cutoff: float = 0.6) -> str:
    """Return ``Did you mean ...?`` for the dotted key whose last part is closest to `word`."""
    by_leaf: dict[str, str] = {}
    for path in paths:
        by_leaf.setdefault(path.rsplit(".", 1)[-1], path)
    close = nearest(word, by_leaf, cutoff)
    return f"Did you mean '{by_leaf[close]}'?" if close else ""
