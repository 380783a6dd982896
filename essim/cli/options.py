"""What the commands share: their options, progress, JSON, and how errors end."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec

import typer

from essim.errors import EssimError

if TYPE_CHECKING:
    from essim.hardware.profile import HardwareProfile

P = ParamSpec("P")


class Engine(StrEnum):
    """Engines that `--engine` takes."""

    auto = "auto"
    des = "des"
    maxplus = "maxplus"


class What(StrEnum):
    """Things that `essim list` lists."""

    models = "models"
    hardware = "hardware"
    selectors = "selectors"
    routings = "routings"
    scenarios = "scenarios"


ScenarioArg = Annotated[str, typer.Argument(help="Scenario YAML, or the name of a shipped one.")]
SetOption = Annotated[list[str], typer.Option("--set", help="Override a key: a.b=value.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
EngineOption = Annotated[Engine, typer.Option(help="auto is the fast one; des is the reference.")]
StrictOption = Annotated[bool, typer.Option(help="Only measured or interpolated prices.")]
VerboseOption = Annotated[bool, typer.Option("--verbose", help="Every sentence and table.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Of the CPU router's jitter.")]


def shows_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Turn essim's own errors into a message on stderr and their exit code."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        warnings.showwarning = lambda message, *_, **__: print(
            f"warning: {message}", file=sys.stderr
        )
        try:
            command(*args, **kwargs)
        except EssimError as error:
            print(error, file=sys.stderr)
            raise typer.Exit(error.exit_code) from None
        except BrokenPipeError:
            sys.stderr.close()
            raise typer.Exit(0) from None
        except OSError as error:
            print(f"cannot write ({error.strerror})", file=sys.stderr)
            raise typer.Exit(2) from None

    return wrapped


def say_written(*files: Path | None) -> None:
    """Tell on stderr which files were written."""
    for written in filter(None, files):
        print(f"wrote {written}", file=sys.stderr)


@contextmanager
def progress(total: int) -> Iterator[Callable[[], None]]:
    """Yield a callback that advances a bar on stderr, if someone is looking."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=total)
        yield lambda: bar.advance(task)


def print_json(content: object) -> None:
    """Print one JSON object on stdout; numbers that are not finite are an error."""
    print(json.dumps(content, indent=2, allow_nan=False))


def warn_of_old_kernels(profiles: Sequence[HardwareProfile]) -> None:
    """Warn of tables that were measured with kernels that have changed since."""
    from essim.hardware.kernels import stale_tables

    for profile in profiles:
        stale = stale_tables(profile)
        if stale:
            names = " ".join(stale)
            warnings.warn(
                f"{profile.spec.name}: measured with older kernels: {names}", stacklevel=2
            )
