"""The command line. Heavy imports happen inside the commands: ``essim --help`` stays instant."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

from essim.errors import EssimError

if TYPE_CHECKING:
    from essim.scenario import Scenario
    from essim.simulate import Simulator

app = typer.Typer(
    help="What does it buy to choose KV pages earlier, and where should that routing run?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

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
SeedOption = Annotated[int, typer.Option(min=0, help="Of the CPU router's jitter.")]


def _shows_errors(command: Callable[P, None]) -> Callable[P, None]:
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

    return wrapped


@app.command()
@_shows_errors
def run(
    scenario: ScenarioArg,
    trace: Annotated[Path | None, typer.Option(help="One step for Chrome or Perfetto.")] = None,
    html: Annotated[Path | None, typer.Option(help="One step as an HTML timeline.")] = None,
    step: Annotated[int | None, typer.Option(min=1, help="Which step; default the middle.")] = None,
    set_: SetOption = [],  # noqa: B006 (typer reads the default, nothing changes it)
    as_json: JsonOption = False,
    engine: EngineOption = Engine.auto,
    strict: StrictOption = False,
    seed: SeedOption = 0,
) -> None:
    """Simulate one point: a table, where the time goes, one sentence of verdict."""
    from essim import pages, show
    from essim.verdict import run_verdict

    file, base, _, simulator = _load(scenario, set_, engine, strict, seed)
    row = simulator.rows([base])[0]
    verdict = run_verdict(base, row)
    parts = simulator.breakdown(base) if row["step_s"] is not None else []
    about = _manifest(file, set_, simulator, [base])
    if trace is not None or html is not None:
        pages.write_step(trace, html, step, base, simulator, parts, verdict, about)
    if as_json:
        _print_json({"row": row, "step": parts, "verdict": verdict, "manifest": about})
        return
    show.run(row, parts, simulator.profile(base.hardware).spec.provisional)
    print(verdict)


@app.command()
@_shows_errors
def sweep(
    scenario: ScenarioArg,
    out: Annotated[Path | None, typer.Option(help="Results as .csv or .parquet.")] = None,
    html: Annotated[Path | None, typer.Option(help="Curves and table as one HTML page.")] = None,
    map_: Annotated[
        str | None, typer.Option("--map", help="Two swept keys X,Y of the break-even map.")
    ] = None,
    set_: SetOption = [],  # noqa: B006
    as_json: JsonOption = False,
    engine: EngineOption = Engine.auto,
    strict: StrictOption = False,
    seed: SeedOption = 0,
) -> None:
    """Simulate the grid: a table, curves, and at which batch early routing stops paying."""
    from essim import pages, show
    from essim.breakeven import break_even, map_axes
    from essim.results import add_swept, check_ending, write_results
    from essim.verdict import sweep_verdict

    if out is not None:
        check_ending(out)
    file, base, points, simulator = _load(scenario, set_, engine, strict, seed)
    with _progress(len(points)) as advance:
        rows = simulator.rows(points, advance)
    add_swept(base, points, rows)
    axes = map_axes(base, rows, map_)
    cells = break_even(points, rows, *axes) if axes else []
    verdict = sweep_verdict(points, rows, lambda point: simulator.rows([point])[0])
    about = _manifest(file, set_, simulator, points)
    if out is not None:
        write_results(rows, out, about)
    if html is not None:
        pages.write_sweep(html, base, rows, verdict, about, cells, axes)
    if as_json:
        _print_json({"rows": rows, "map": cells, "verdict": verdict, "manifest": about})
    else:
        show.sweep(rows, any(simulator.profile(p.hardware).spec.provisional for p in points))
        if axes:
            show.break_even(cells, *axes)
        print(*verdict, sep="\n")
    for written in filter(None, (out, html)):
        print(f"wrote {written}", file=sys.stderr)


@app.command()
@_shows_errors
def memory(
    scenario: ScenarioArg,
    pool_tokens: Annotated[
        int | None, typer.Option(min=1, help="Derive a pre-allocated pool of so many tokens too.")
    ] = None,
    set_: SetOption = [],  # noqa: B006
    as_json: JsonOption = False,
) -> None:
    """Derive every byte of the base point, and the largest batch that fits."""
    from essim import show
    from essim.derivation import derivation, facts, largest_batches

    _, base, _, simulator = _load(scenario, set_, Engine.auto, strict=False, seed=0)
    profile = simulator.profile(base.hardware)
    lines, sentences = derivation(base, profile), facts(base, profile, pool_tokens)
    if as_json:
        batches = largest_batches(base, profile)
        _print_json({"lines": lines, "largest_batch": batches, "facts": sentences})
    else:
        show.memory(base.name, lines, sentences)


@app.command("list")
@_shows_errors
def list_(what: What, as_json: JsonOption = False) -> None:
    """List what there is: models, hardware, selectors, routings or scenarios."""
    from essim import listing, show

    entries = getattr(listing, what.value)()
    if as_json:
        _print_json({what.value: entries})
    else:
        show.entries(entries)


@app.command()
@_shows_errors
def schema() -> None:
    """Print the JSON schema of a scenario file, for editors."""
    from essim.scenario import schema as scenario_schema

    _print_json(scenario_schema())


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        print(f"essim {installed('essim')}")
        raise typer.Exit


def _load(
    scenario: str, overrides: list[str], engine: Engine, strict: bool, seed: int
) -> tuple[Path, Scenario, list[Scenario], Simulator]:
    """Return the scenario's file, base point, grid points, and a simulator for them."""
    from essim.hardware import shipped
    from essim.scenario import load_scenario
    from essim.simulate import Simulator

    file = Path(scenario)
    by_name = shipped("scenarios") / f"{scenario}.yaml"
    if not file.exists() and by_name.exists():
        file = by_name
    base, points = load_scenario(file, overrides)
    simulator = Simulator(file.parent, engine.value, strict, seed)
    return file, base, points, simulator


def _manifest(
    file: Path, overrides: list[str], simulator: Simulator, points: list[Scenario]
) -> dict[str, Any]:
    from essim.results import manifest

    names = dict.fromkeys(point.hardware for point in points)
    about = manifest(file, overrides, [simulator.profile(name) for name in names])
    return about | {"engine": simulator.engine, "seed": simulator.seed, "strict": simulator.strict}


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """Yield a callback that advances a bar on stderr, if someone is looking."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("simulating", total=total)
        yield lambda: bar.advance(task)


def _print_json(content: object) -> None:
    print(json.dumps(content, indent=2, allow_nan=False))
