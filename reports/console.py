"""What the terminal has room for: its width, sentences without broken words, columns that fit."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from textwrap import fill

from rich.console import Console

from essim.results.column import Rows
from essim.results.tables import column

# Between two columns.
GAP = 3
# Piped output has no width of its own.
_PIPE_WIDTH = 120


def console() -> Console:
    """Return the terminal, or one of a fixed width where output is piped."""
    return Console() if sys.stdout.isatty() else Console(width=_PIPE_WIDTH)


def say(*texts: str) -> None:
    """Print sentences, in a terminal without breaking words; piped, a line each."""
    for text in texts:
        width = console().width if sys.stdout.isatty() else len(text) + 1
        print(fill(text, width, break_long_words=False, break_on_hyphens=False))


def heading(key: str) -> str:
    """Return a column's short heading."""
    return column(key).short or key


def text_of(key: str, value: object) -> str:
    """Return a value as its column shows it here."""
    return column(key).brief(value)


def fitting(axes: Sequence[str], results: Sequence[str], shown: Rows) -> list[str]:
    """Return the axes, and the results from the first on that the terminal has room for."""
    keys, room = list(axes), console().width - sum(least_width(k, shown) + GAP for k in axes)
    for key in results:
        room -= least_width(key, shown) + GAP
        if room < 0:
            break
        keys.append(key)
    return keys


def least_width(key: str, shown: Rows) -> int:
    """Return the width of a column that breaks no word."""
    values = [row.get(key) for row in shown]
    texts = [text_of(key, value) for value in values]
    words = [
        word for value, text in zip(values, texts, strict=True) for word in _words(value, text)
    ]
    return max(map(len, [*heading(key).split(), *words]), default=1)


def _words(value: object, text: str) -> list[str]:
    return text.split() if isinstance(value, str) else [text]
