"""The command line. Heavy imports happen inside the commands: ``essim --help`` stays instant."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

from essim.errors import EssimError, InputError

if TYPE_CHECKING:
    from essim.scenario import Scenario
    from essim.simulate import Simulator
    from reports.page import Block

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


class Loki(StrEnum):
    """Variants of Loki in Figure 2."""

    pca = "pca"
    cached = "cached"


class HsaScan(StrEnum):
    """What HSA scans in Figure 2."""

    all = "all"
    stage1 = "stage1"


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
    set_: SetOption = [],  # noqa: B006 (typer reads the default, nothing changes it)
    as_json: JsonOption = False,
    engine: EngineOption = Engine.auto,
    strict: StrictOption = False,
    seed: SeedOption = 0,
) -> None:
    """Simulate one point: a table, where the time goes, one sentence of verdict."""
    from essim import show
    from essim.verdict import run_verdict

    file, base, _, simulator = _load(scenario, set_, engine, strict, seed)
    row = simulator.rows([base])[0]
    verdict = run_verdict(base, row)
    parts = simulator.breakdown(base) if row["step_s"] is not None else []
    if as_json:
        about = _manifest(file, set_, simulator, [base])
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
    set_: SetOption = [],  # noqa: B006
    as_json: JsonOption = False,
    engine: EngineOption = Engine.auto,
    strict: StrictOption = False,
    seed: SeedOption = 0,
) -> None:
    """Simulate the grid: a table, curves, and at which batch early routing stops paying."""
    from essim import show
    from essim.results import check_ending, write_results
    from essim.verdict import sweep_verdict

    if out is not None:
        check_ending(out)
    file, base, points, simulator = _load(scenario, set_, engine, strict, seed)
    with _progress(len(points)) as advance:
        rows = simulator.rows(points, advance)
    verdict = sweep_verdict(points, rows, lambda point: simulator.rows([point])[0])
    about = _manifest(file, set_, simulator, points)
    if out is not None:
        write_results(rows, out, about)
    if html is not None:
        from reports.sweep_page import sweep_blocks

        blocks = sweep_blocks(rows, verdict, base.compare.baseline, about, _by(base))
        _write_page(html, base.name, blocks)
    if as_json:
        _print_json({"rows": rows, "verdict": verdict, "manifest": about})
    else:
        show.sweep(rows, any(simulator.profile(p.hardware).spec.provisional for p in points))
        print(*verdict, sep="\n")
    _say_written(out, html)


@app.command()
@_shows_errors
def figure2(
    out: Annotated[Path | None, typer.Option(help="Rows as .csv or .parquet.")] = None,
    html: Annotated[Path | None, typer.Option(help="Chart and table as one HTML page.")] = None,
    as_json: JsonOption = False,
    loki: Annotated[Loki, typer.Option(help="Project by the full basis, or onto r.")] = Loki.pca,
    hsa_scan: Annotated[HsaScan, typer.Option(help="Pages HSA scans.")] = HsaScan.all,
) -> None:
    """Show which share of attention-side compute is routing, by method and compression."""
    from essim import show
    from essim.figure2 import COLUMNS
    from essim.figure2 import figure2 as shares
    from essim.results import check_ending, versions, write_results

    if out is not None:
        check_ending(out)
    rows = shares(loki.value, hsa_scan.value)
    about = versions() | {"loki": loki.value, "hsa_scan": hsa_scan.value}
    if out is not None:
        write_results(rows, out, about, COLUMNS)
    if html is not None:
        from reports.figure2 import figure2_blocks

        _write_page(html, "Routing's share of attention-side compute", figure2_blocks(rows, about))
    if as_json:
        _print_json({"rows": rows, "manifest": about})
    else:
        show.columns(rows, [key for key in COLUMNS if key != "context_tokens"])
    _say_written(out, html)


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


def _by(base: Scenario) -> list[str]:
    """Return swept columns that tell lines of a figure apart, beside those it always shows."""
    known = {"model", "hardware", "selector", "routing", "workload"}
    by = [key.split(".")[-1] for key in base.sweep if key not in known]
    return [key for key in by if key not in ("batch", "input_tokens", "output_tokens")]


def _write_page(html: Path, title: str, blocks: Sequence[Block]) -> None:
    from reports.page import write_page

    try:
        write_page(html, title, blocks)
    except OSError as error:
        raise InputError(f"cannot be written ({error.strerror})", file=html) from None


def _say_written(*files: Path | None) -> None:
    for written in filter(None, files):
        print(f"wrote {written}", file=sys.stderr)


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
