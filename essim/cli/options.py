"""What the commands share: their options, JSON, and how errors and Ctrl-C end."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer
from typer.core import TyperGroup

from essim.errors import EssimError, InputError

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


class Commands(TyperGroup):
    """Commands whose options are refused in the words that keys of a file are."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; an option's bad value is a message on stderr and exit code 2."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            from pydantic import ValidationError

            from essim.text.problems import described

            if not isinstance(error.__cause__, ValidationError):
                raise
            refused = described(error.__cause__.errors())
            key = max(error.param.opts, key=len) if error.param else ""
            key = key if key.startswith("-") else key.upper()
            print(InputError(refused.message, refused.hint, key=key), file=sys.stderr)
            raise typer.Exit(InputError.exit_code) from None


def shows_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Turn essim's own errors, and Ctrl-C, into a message on stderr and an exit code."""

    @wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        warnings.showwarning = _once(set())
        try:
            command(*args, **kwargs)
        except EssimError as error:
            print(error, file=sys.stderr)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            print(f"stopped: {_kept(command.__name__, kwargs)}", file=sys.stderr)
            raise typer.Exit(130) from None
        except BrokenPipeError:
            sys.stderr.close()
            raise typer.Exit(0) from None
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            print(f"{place}cannot be written ({error.strerror})", file=sys.stderr)
            raise typer.Exit(2) from None

    return wrapped


def _once(said: set[str]) -> Callable[..., None]:
    """Return what prints a warning on stderr, unless it was said before."""

    def show(message: Warning | str, *_: object, **__: object) -> None:
        if str(message) not in said:
            said.add(str(message))
            print(f"warning: {message}", file=sys.stderr)

    return show


def _kept(command: str, options: Mapping[str, Any]) -> str:
    """Return what is left of a command that was stopped."""
    folder: Path | None = options.get("out")
    if command == "validate" and folder is None:
        return "nothing is kept without --out"
    if command == "measure" and folder is not None:
        folder = folder / options["profile"]
    if command not in ("measure", "validate") or folder is None:
        return "nothing was written"
    if not any(folder.glob("*.csv")):
        return "nothing was measured yet"
    return f"what was measured is kept in {folder}; the same command goes on from there"


def say_written(*files: Path | None) -> None:
    """Tell on stderr which files were written."""
    for written in filter(None, files):
        print(f"wrote {written}", file=sys.stderr)


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
                f"{profile.place('tables', stale[0])}: measured with older kernels: {names}",
                stacklevel=2,
            )
