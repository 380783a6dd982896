"""How far a long command is, on stderr: bars where someone looks, else plain lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

# A command that takes less says nothing where nobody looks.
EVERY_S = 10.0

Tell = Callable[[str, int, int], None]


class State(Protocol):
    """How far a table is measured."""

    @property
    def done(self) -> int:
        """Points done."""

    @property
    def total(self) -> int:
        """Points to do."""


@contextmanager
def progress() -> Iterator[Tell]:
    """Yield what takes a name, how many are done and how many there are."""
    if not sys.stderr.isatty():
        yield plain_lines()
        return
    from rich.console import Console
    from rich.progress import Progress, TaskID

    with Progress(console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, TaskID] = {}

        def tell(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=done, total=total)

        yield tell


@contextmanager
def table_progress() -> Iterator[Callable[[str, State], None]]:
    """Yield what takes a table's name and how far it is."""
    with progress() as tell:
        yield lambda table, state: tell(table, state.done, state.total)


def plain_lines(timer: Callable[[], float] = time.monotonic) -> Tell:
    """Return what prints a line every `EVERY_S` seconds, with the time left at the pace so far."""
    last_s = timer()
    begun: dict[str, tuple[float, int]] = {}

    def tell(name: str, done: int, total: int) -> None:
        nonlocal last_s
        now_s = timer()
        first_s, first = begun.setdefault(name, (now_s, done))
        if now_s - last_s < EVERY_S:
            return
        last_s = now_s
        pace_s = (now_s - first_s) / (done - first) if done > first else None
        left = f", about {pace_s * (total - done):.0f} s left" if pace_s and done < total else ""
        print(f"{name}: {done} of {total}{left}", file=sys.stderr, flush=True)

    return tell
