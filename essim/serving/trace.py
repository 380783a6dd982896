"""Request traces: which columns are known, and what is wrong with the rows that are left out."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from essim.errors import InputError
from essim.text.yaml import read_text

# Rows of bad times and lengths, by what is wrong.
NO_TIME = "no readable time"
UNSORTED = "earlier than the row before"
NO_LENGTH = "no readable length"
NO_INPUT = "input of no tokens"
NO_OUTPUT = "output of no tokens"


@dataclass(frozen=True)
class _Form:
    """Names of a trace's columns: time, input, output; and how its times are read."""

    time: str
    input: str
    output: str
    seconds: Callable[[Any], float]


def _clock_s(text: Any) -> float:
    """Return seconds of a time of day with up to seven digits after the point."""
    whole, _, digits = str(text).partition(".")
    digits = digits.removesuffix("Z").split("+")[0]
    return datetime.fromisoformat(whole + "+00:00").timestamp() + float(f"0.{digits or 0}")


FORMS = (
    _Form("arrival_s", "input_tokens", "output_tokens", float),
    # The Azure LLM inference trace of 2023.
    _Form("TIMESTAMP", "ContextTokens", "GeneratedTokens", _clock_s),
    # The Mooncake traces; times in milliseconds.
    _Form("timestamp", "input_length", "output_length", lambda value: float(value) / 1e3),
)


@dataclass
class Trace:
    """Rows of a trace that can be served, in their order.

    Attributes
    ----------
    rows
        (seconds from the first row's time, input tokens, output tokens).
    bad
        How many rows were left out, by reason.
    prefix_tokens
        Prompt tokens whose blocks, by the trace's hashes, an earlier prompt began with, too.
    """

    rows: list[tuple[float, int, int]] = field(default_factory=list)
    bad: Counter[str] = field(default_factory=Counter)
    prefix_tokens: int = 0


def read_trace(file: Path) -> Trace:
    """Read a CSV with a header, or JSON lines.

    Raises
    ------
    InputError
        If the file cannot be read, its columns are not known, or no row can be served.
    """
    found, seen = Trace(), set[object]()
    start_s = last_s = None
    for entry, form in _entries(file):
        row = _row(entry, form)
        if isinstance(row, str):
            found.bad[row] += 1
            continue
        time_s, prompt, output = row
        if last_s is not None and time_s < last_s:
            found.bad[UNSORTED] += 1
            continue
        start_s = time_s if start_s is None else start_s
        last_s = time_s
        found.rows.append((time_s - start_s, prompt, output))
        found.prefix_tokens += _seen_tokens(entry.get("hash_ids"), prompt, seen)
    if not found.rows:
        raise InputError("no row can be served", _reasons(found.bad), file=file)
    return found


def _entries(file: Path) -> Iterator[tuple[Mapping[str, Any], _Form]]:
    text = read_text(file)
    if file.suffix == ".jsonl":
        form = None
        for line, content in enumerate(text.splitlines(), 1):
            try:
                entry = json.loads(content) if content.strip() else {}
            except ValueError:
                entry = None
            if not isinstance(entry, dict):
                raise InputError("not a JSON object", file=file, line=line)
            form = form or _form(list(entry), file)
            yield entry, form
        return
    reader = csv.DictReader(text.splitlines())
    form = _form(list(reader.fieldnames or ()), file)
    yield from ((entry, form) for entry in reader)


def _form(names: list[str], file: Path) -> _Form:
    for form in FORMS:
        if {form.time, form.input, form.output} <= set(names):
            return form
    known = "; ".join(f"{form.time}, {form.input}, {form.output}" for form in FORMS)
    raise InputError("its columns are not known", f"Known: {known}", file=file, line=1)


def _row(entry: Mapping[str, Any], form: _Form) -> tuple[float, int, int] | str:
    """Return time, input and output of a row, or what is wrong with it."""
    try:
        time_s = form.seconds(entry[form.time])
    except (KeyError, TypeError, ValueError):
        return NO_TIME
    if not 0 <= time_s < 1e12:
        return NO_TIME
    try:
        prompt, output = int(entry[form.input]), int(entry[form.output])
    except (KeyError, TypeError, ValueError):
        return NO_LENGTH
    return NO_INPUT if prompt < 1 else NO_OUTPUT if output < 1 else (time_s, prompt, output)


def _seen_tokens(ids: Any, prompt: int, seen: set[object]) -> int:
    """Return prompt tokens of the leading blocks seen before; each hash is of all up to it."""
    if not isinstance(ids, list) or not ids:
        return 0
    again = next((i for i, own in enumerate(ids) if own not in seen), len(ids))
    seen.update(ids)
    return min(prompt, again * -(-prompt // len(ids)))


def _reasons(bad: Mapping[str, int]) -> str:
    return "; ".join(f"{count} x {reason}" for reason, count in bad.items())
