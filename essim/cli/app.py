"""The command line. Heavy imports happen inside the commands: ``essim --help`` stays instant."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from essim.cli.fidelity import fidelity
from essim.cli.options import (
    Commands,
    Engine,
    EngineOption,
    JsonOption,
    ScenarioArg,
    SeedOption,
    SetOption,
    StrictOption,
    VerboseOption,
    What,
    print_json,
    say_written,
    shows_errors,
    warn_of_old_kernels,
)
from essim.cli.profile import app as profile_commands
from essim.cli.progress import progress, table_progress
from essim.cli.published import figure2, published
from essim.cli.ranking import rank
from essim.cli.serving import plan, serve
from essim.cli.using import breakeven, diff, pareto
from essim.cli.validation import compare, validate
from essim.errors import TORCH_HINT, AbsentError, BadValueError, InputError

if TYPE_CHECKING:
    from essim.simulate.scenario import Scenario
    from essim.simulate.sweep import Simulator

app = typer.Typer(
    cls=Commands,
    help="What does it buy to choose KV pages earlier, and where should that routing run?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.command()
@shows_errors
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
    from essim.cli import pages
    from essim.text.files import check_outputs, write_files
    from reports import terminal as show
    from reports.console import say
    from reports.verdict import run_notes, run_verdict

    file, base, _, simulator = _load(scenario, set_, engine, strict, seed)
    check_outputs([file], html=html, trace=trace)
    row = simulator.rows([base])[0]
    verdict = run_verdict(row, base.compare.baseline)
    notes = run_notes(row, simulator.profile(base.hardware).spec.provisional)
    parts = simulator.breakdown(base) if row["step_s"] is not None else []
    about = _manifest(file, set_, simulator, [base])
    files = pages.step_files(trace, html, step, base, simulator, parts, [verdict, *notes], about)
    write_files(files)
    if as_json:
        found = {"row": row, "step": parts, "verdict": verdict, "notes": notes}
        print_json(found | {"manifest": about})
    else:
        show.run(row, base.compare.baseline, parts)
        say(verdict, *notes)
    say_written(*files)


@app.command()
@shows_errors
def sweep(
    scenario: ScenarioArg,
    out: Annotated[
        Path | None,
        typer.Option(help="Results as .csv or .parquet, or a folder: kept as they are made."),
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Curves and table as one HTML page.")] = None,
    map_: Annotated[
        str | None, typer.Option("--map", help="Two swept keys X,Y of the break-even map.")
    ] = None,
    set_: SetOption = [],  # noqa: B006
    as_json: JsonOption = False,
    engine: EngineOption = Engine.auto,
    strict: StrictOption = False,
    seed: SeedOption = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes, with a folder.")] = 1,
    cluster: Annotated[
        str | None, typer.Option(help="A dask scheduler's address, with a folder.")
    ] = None,
    verbose: VerboseOption = False,
) -> None:
    """Simulate the grid: a table, curves, and at which batch early routing stops paying."""
    from essim.cli import pages
    from essim.cli.to_folder import check_options, goes_to_folder, sweep_to_folder
    from essim.results.files import result_files
    from essim.simulate.breakeven import break_even, map_axes
    from essim.simulate.rows import add_swept
    from essim.text.files import check_outputs, write_files
    from reports import terminal as show

    only_file = {"--html": html, "--map": map_, "--json": as_json}
    check_options(out, only_file, {"--jobs": jobs > 1, "--cluster": cluster})
    if out is not None and goes_to_folder(out):
        return sweep_to_folder(scenario, out, set_, engine.value, strict, seed, jobs, cluster)
    file, base, points, simulator = _load(scenario, set_, engine, strict, seed)
    check_outputs([file], out, html)
    with progress() as tell:
        done = itertools.count(1)
        rows = simulator.rows(points, lambda: tell("points", next(done), len(points)))
    add_swept(base, points, rows)
    axes = map_axes(base, rows, map_)
    cells = break_even(rows, *axes) if axes else []
    verdict = pages.sweep_sentences(points, rows, simulator)
    about = _manifest(file, set_, simulator, points)
    files = {} if out is None else result_files(rows, out, about)
    if html is not None:
        files[html] = pages.sweep(base, rows, verdict, about, cells, axes)
    write_files(files)
    if as_json:
        said = {"verdict": verdict.sentences, "more": verdict.more}
        print_json({"rows": rows, "map": cells, **said, "manifest": about})
    else:
        show.sweep(rows, [point.compare.baseline for point in points], verbose)
        if axes:
            show.break_even(cells, *axes)
        show.sentences(verdict, verbose)
    say_written(out, html)


@app.command()
@shows_errors
def memory(
    scenario: ScenarioArg,
    pool_tokens: Annotated[
        int | None, typer.Option(min=1, help="Derive a pre-allocated pool of so many tokens too.")
    ] = None,
    set_: SetOption = [],  # noqa: B006
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Derive every byte of the base point, and the largest batch that fits."""
    from essim.simulate.derivation import derivation, facts, largest_batches
    from reports import terminal as show

    _, base, _, simulator = _load(scenario, set_, Engine.auto, strict=False, seed=0)
    profile = simulator.profile(base.hardware)
    lines, sentences = derivation(base, profile), facts(base, profile, pool_tokens)
    if pool_tokens is not None:  # what is asked for comes first
        sentences.sort(key=facts(base, profile, None).__contains__)
    if as_json:
        batches = largest_batches(base, profile)
        print_json({"lines": lines, "largest_batch": batches, "facts": sentences})
    else:
        show.memory(base.name, lines, sentences, verbose)


@app.command()
@shows_errors
def measure(
    profile: Annotated[str, typer.Option(help="Name of the profile to write.")] = "this-machine",
    out: Annotated[Path, typer.Option(help="Folder of profiles.")] = Path("hardware_profiles"),
    quick: Annotated[bool, typer.Option(help="A coarse grid: a minute or two.")] = False,
) -> None:
    """Time this machine's kernels and write a hardware profile; a killed run goes on."""
    from essim.hardware.from_another import check_name

    check_name(profile, "--profile")
    try:
        from measure.main import measure_machine, next_command
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise AbsentError("measuring needs torch", TORCH_HINT) from None
    from essim.cli import listing
    from reports import terminal as show

    with table_progress() as tell:
        written = measure_machine(profile, out, quick, tell)
    say_written(written)
    show.entries(listing.tables(written))
    print(f"\nNext: {next_command(written)}")


for _command in (
    *(serve, plan, rank, fidelity, figure2, published),
    *(compare, validate, pareto, breakeven, diff),
):
    app.command()(shows_errors(_command))
app.add_typer(profile_commands, name="profile")


@app.command("list")
@shows_errors
def list_(
    what: What,
    name: Annotated[str | None, typer.Argument(help="A hardware profile: list its tables.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List what there is: models, hardware, selectors, routings or scenarios."""
    from essim.cli import listing
    from essim.hardware.profile import find_profile
    from reports import terminal as show

    parts: dict[str, list[dict[str, str]]] = {}
    if name is None:
        parts[what.value] = getattr(listing, what.value)()
    elif what is not What.hardware:
        raise InputError(f"list {what.value} {name}", "Only hardware is listed by name")
    else:
        try:
            file = find_profile(name, Path())
        except BadValueError as error:
            raise InputError(error.message, error.hint) from None
        parts["specifications"] = listing.specifications(file)
        nothing = [{"name": name, "about": "nothing measured"}]
        parts[what.value] = listing.tables(file) or nothing
        parts["unstable_rows"] = listing.unstable_rows(file)
    if as_json:
        print_json(parts)
    else:
        show.listed(parts)


@app.command()
@shows_errors
def schema() -> None:
    """Print the JSON schema of a scenario file, for editors."""
    from essim.serving.keys import schema as keys

    print_json(keys())


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
    from essim.simulate.plan import load_scenario
    from essim.simulate.scenario import find_scenario
    from essim.simulate.sweep import Simulator

    file = find_scenario(scenario)
    base, points = load_scenario(file, overrides)
    simulator = Simulator(engine=engine.value, strict=strict, seed=seed)
    return file, base, points, simulator


def _manifest(
    file: Path, overrides: list[str], simulator: Simulator, points: list[Scenario]
) -> dict[str, Any]:
    from essim.engines import pick_engine
    from essim.simulate.rows import manifest

    profiles = [simulator.profile(n) for n in dict.fromkeys(point.hardware for point in points)]
    warn_of_old_kernels(profiles)
    about = manifest(file, overrides, profiles)
    engine = pick_engine(simulator.engine)[0]
    return about | {"engine": engine, "seed": simulator.seed, "strict": simulator.strict}
