"""YAML in, validated models out, with the file and line of whatever is wrong."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from essim.errors import BadValueError, InputError

Path_ = tuple[str | int, ...]

# More than any scenario or profile has; aliases of aliases reach it at once.
_MOST_ENTRIES = 100_000
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
        return self.file, None

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
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputError("not a UTF-8 text file", file=file) from None
    except OSError as error:
        raise InputError(
            f"cannot be read ({error.strerror})", "Check the path", file=file
        ) from None


def parse_yaml(text: str, file: Path | str) -> Any:
    """Parse one YAML document, keeping line numbers on its mappings and sequences."""
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import DuplicateKeyError
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return YAML(typ="rt").load(text)
    except DuplicateKeyError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        key = str(error.problem).split('"')[1] if '"' in str(error.problem) else ""
        raise InputError(
            "the key is there twice", "Delete one", file=file, line=line, key=key
        ) from None
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark and file != "--set" else None
        raise InputError(f"not valid YAML: {error.problem}", file=file, line=line) from None
    except RecursionError:
        raise InputError("not valid YAML: nested too deeply", file=file) from None
    except (YAMLError, ValueError) as error:
        raise InputError(f"not valid YAML: {' '.join(str(error).split())}", file=file) from None


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
        problems = [_problem(e, data, model, document, at) for e in error.errors()]
    raise problems[0] if len(problems) == 1 else InputError("\n".join(str(p) for p in problems))


def _problem(
    error: Any, data: Any, model: type[BaseModel], document: Document, at: Path_
) -> InputError:
    path = _existing_path(error["loc"], data, missing=error["type"] == "missing")
    message, hint = error["msg"], ""
    if error["type"] == "value_error":
        refused = BadValueError.of(error["ctx"]["error"])
        message, hint = refused.message, refused.hint
    elif error["type"] == "extra_forbidden":
        message = "unknown key"
        own = ".".join(map(str, path))
        hint = nearest_key_hint(str(path[-1]), list(key_paths(model)))
        if f"'{own}'" in hint:
            hint = "It belongs to another kind"
    elif error["type"] == "missing":
        message = "required, but missing"
    elif error["type"] == "model_type":
        message = f"must be a mapping of keys (got {error['input']!r})"
    elif not isinstance(error["input"], dict | list):
        message += f" (got {error['input']!r})"
    return document.error(message[:1].lower() + message[1:], hint, at=(*at, *path))


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


def key_paths(model: type[BaseModel]) -> Iterator[str]:
    """Yield every dotted key the model accepts, from its JSON schema."""
    schema = model.model_json_schema()
    definitions = schema.get("$defs", {})

    def walk(node: Mapping[str, Any], prefix: str, seen: frozenset[str]) -> Iterator[str]:
        if "$ref" in node:
            name = node["$ref"].rsplit("/", 1)[-1]
            if name not in seen:
                yield from walk(definitions[name], prefix, seen | {name})
        for branch in (*node.get("anyOf", ()), *node.get("oneOf", ())):
            yield from walk(branch, prefix, seen)
        for key, child in node.get("properties", {}).items():
            yield prefix + key
            yield from walk(child, f"{prefix}{key}.", seen)

    yield from walk(schema, "", frozenset())


def nearest_hint(word: str, known: Sequence[str]) -> str:
    """Return ``Did you mean ...?`` for the closest of `known`, or what is known."""
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if close:
        return f"Did you mean '{close[0]}'?"
    return f"Known: {', '.join(known)}" if 0 < len(known) <= 24 else ""


def nearest_key_hint(word: str, paths: Sequence[str]) -> str:
    """Return ``Did you mean ...?`` for the dotted key whose last part is closest to `word`."""
    by_leaf: dict[str, str] = {}
    for path in paths:
        by_leaf.setdefault(path.rsplit(".", 1)[-1], path)
    close = difflib.get_close_matches(word, by_leaf, n=1, cutoff=0.6)
    return f"Did you mean '{by_leaf[close[0]]}'?" if close else ""
