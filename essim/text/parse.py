"""YAML text in, mappings with their line numbers out; what is no YAML is said in plain words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from essim.errors import InputError

if TYPE_CHECKING:
    from ruamel.yaml.error import MarkedYAMLError


def parse_yaml(text: str, file: Path | str) -> Any:
    """Parse one YAML document, keeping line numbers on its mappings and sequences."""
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import DuplicateKeyError
    from ruamel.yaml.error import MarkedYAMLError, YAMLError
    from ruamel.yaml.reader import ReaderError

    try:
        return YAML(typ="rt").load(text)
    except DuplicateKeyError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        key = str(error.problem).split('"')[1] if '"' in str(error.problem) else ""
        raise InputError(
            "the key is there twice", "Delete one", file=file, line=line, key=key
        ) from None
    except MarkedYAMLError as error:
        raise _not_yaml(error, file) from None
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = f"the character U+{error.character:04X} is not allowed"
        raise InputError(message, "Delete it", file=file, line=line) from None
    except RecursionError:
        raise InputError("not valid YAML: nested too deeply", file=file) from None
    except (YAMLError, ValueError) as error:
        raise InputError(f"not valid YAML: {' '.join(str(error).split())}", file=file) from None


# What the parser says, what that means to who wrote it, and what to do.
_SYNTAX = (
    ("character '\\t'", "there is a tab", "Use spaces"),
    ("cannot start any token", "a value may not start so", "Put it in quotes"),
    ("unexpected end of stream", "a quote is not closed", "Close it"),
    ("could not find expected ':'", "no 'key: value'", "Write a colon and a space after the key"),
    (
        "mapping values are not allowed",
        "a colon too many, or wrong indentation",
        "Indent keys of one mapping alike, and put text with a colon in quotes",
    ),
    ("undefined alias", "an alias without an anchor", "Put text that starts with * in quotes"),
    ("but got", "a bracket is not closed, or a comma is missing", "Close it before this line"),
    ("found another document", "a second document", "Delete it from its --- on"),
    ("did not find expected", "wrong indentation", "Indent keys of one mapping alike"),
    ("expected <block end>", "wrong indentation", "Indent keys of one mapping alike"),
)


def _not_yaml(error: MarkedYAMLError, file: Path | str) -> InputError:
    """Return the error for text that the parser refuses; a quote's line is where it opens."""
    said = str(error.problem)
    mark = error.problem_mark
    if "unexpected end of stream" in said and error.context_mark:
        mark = error.context_mark
    line = mark.line + 1 if mark and file != "--set" else None
    for sign, message, hint in _SYNTAX:
        if sign in said:
            return InputError(f"not valid YAML: {message}", hint, file=file, line=line)
    return InputError(f"not valid YAML: {said}", file=file, line=line)
