"""``essim compare`` and ``essim validate``: predictions beside a real run."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from essim.cli.options import (
    JsonOption,
    ScenarioArg,
    SeedOption,
    SetOption,
    VerboseOption,
    print_json,
    say_written,
    warn_of_old_kernels,
)
from essim.cli.progress import table_progress
from essim.errors import TORCH_HINT, AbsentError, BadValueError, InputError

if TYPE_CHECKING:
    from essim.hardware.profile import HardwareProfile
    from essim.validate.compare import Comparison

Tolerance = Annotated[
    float | None, typer.Option(min=0, help="Exit 1 where an error is larger: 0.03 is 3 %.")
]
Page = Annotated[Path | None, typer.Option(help="Both as one HTML page.")]
Pairs = Annotated[Path | None, typer.Option(help="Every pair as .csv or .parquet.")]
Traces = Annotated[
    list[Path], typer.Option(help="Step that essim run --trace wrote; may be given again.")
]


def compare(
    predicted: Annotated[Path, typer.Argument(help="What essim sweep wrote: a file or a folder.")],
    measured: Annotated[Path, typer.Argument(help="The decode.csv of a real run, or its folder.")],
    html: Page = None,
    out: Pairs = None,
    tolerance: Tolerance = None,
    trace_predicted: Traces = [],  # noqa: B006 (typer reads the default, nothing changes it)
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Lay predictions beside a real run: errors, bias, gains, what has no partner."""
    from essim.results.files import versions
    from essim.results.reading import files_of
    from essim.text.files import check_outputs
    from essim.validate.compare import compare as compared
    from essim.validate.measured_run import read_facts, read_measured, read_predicted

    measured = measured / "decode.csv" if measured.is_dir() else measured
    check_outputs([*files_of(predicted), measured, *trace_predicted], out, html)
    rows, facts = read_predicted(predicted), read_facts(measured)
    result = compared(rows, read_measured(measured), facts)
    steps = [_traced(file, measured.parent) for file in trace_predicted]
    profiles = _profiles({str(row["hardware"]) for row in rows})
    about = versions() | {"predicted": predicted.name, "measured": str(measured), "run": facts}
    said = Said(as_json, verbose, cells=False)
    _deliver(result, profiles, steps, about, html, out, tolerance, said)


def validate(
    scenario: ScenarioArg,
    out: Annotated[Path | None, typer.Option(help="Folder to keep the real run in.")] = None,
    html: Page = None,
    tolerance: Tolerance = None,
    set_: SetOption = [],  # noqa: B006
    as_json: JsonOption = False,
    seed: SeedOption = 0,
    verbose: VerboseOption = False,
) -> None:
    """Run a scenario's points for real on this machine, and lay predictions beside them."""
    try:
        from measure.decode.validate import measure_points
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise AbsentError("a real run needs torch", TORCH_HINT) from None
    from essim.simulate.plan import load_scenario
    from essim.simulate.rows import manifest
    from essim.simulate.scenario import find_scenario
    from essim.simulate.sweep import Simulator
    from essim.text.files import check_outputs
    from essim.validate.compare import compare as compared
    from essim.validate.measured_run import read_facts, read_measured

    file = find_scenario(scenario)
    check_outputs([file], html=html)
    _, points = load_scenario(file, set_)
    simulator = Simulator(seed=seed)
    profiles = [simulator.profile(n) for n in dict.fromkeys(p.hardware for p in points)]
    warn_of_old_kernels(profiles)
    with tempfile.TemporaryDirectory() as scratch, table_progress() as tell:
        folder = out or Path(scratch)
        command = " ".join(("essim validate", scenario, *(f"--set {text}" for text in set_)))
        runnable, refused = measure_points(points, folder, command, tell, traces=out is not None)
        measured, facts = read_measured(folder / "decode.csv"), read_facts(folder / "decode.csv")
    result = compared(simulator.rows(runnable), measured, facts)
    result.dropped.extend(refused)
    about = manifest(file, set_, profiles) | {"run": facts}
    _deliver(result, profiles, [], about, html, None, tolerance, Said(as_json, verbose, cells=True))


@dataclass(frozen=True)
class Said:
    """How a comparison is printed: as JSON, with every sentence, with every cell."""

    as_json: bool
    verbose: bool
    cells: bool


def _deliver(
    result: Comparison,
    profiles: Sequence[HardwareProfile],
    steps: Sequence[dict[str, Any]],
    about: dict[str, Any],
    html: Path | None,
    out: Path | None,
    tolerance: float | None,
    said: Said,
) -> None:
    """Print a comparison and write its files; exit 1 where an error is past the tolerance."""
    from essim.cli import pages
    from essim.results.files import result_files
    from essim.results.tables import PAIR_COLUMNS
    from essim.text.files import write_files
    from essim.validate.calibration import calibration_points, on_the_grid
    from reports import terminal as show
    from reports.compare_verdict import comparison_verdict, machine_verdict

    points = {k: v for profile in profiles for k, v in calibration_points(profile).items()}
    machines = machine_verdict(*_machines(profiles, about["run"]))
    rows, on_grid = result.as_dict(), on_the_grid(result.pairs, points)
    verdict = comparison_verdict(rows, points, on_grid, machines)
    files = {} if out is None else result_files(result.pairs, out, about, PAIR_COLUMNS)
    if html is not None:
        files[html] = pages.comparison(result, points, steps, verdict, about)
    write_files(files)
    if said.as_json:
        found = rows | {"steps": list(steps), "verdict": verdict.sentences, "more": verdict.more}
        print_json(found | {"calibration": points, "manifest": about})
    else:
        show.comparison(rows, steps, said.cells)
        show.sentences(verdict, said.verbose)
    say_written(*files)
    if tolerance is not None and result.worst_frac > tolerance:
        past = f"the worst error is {result.worst_frac:.2%}, past {tolerance:.2%}"
        print(past, file=sys.stderr)
        raise typer.Exit(1)


def _machines(
    profiles: Sequence[HardwareProfile], facts: Mapping[str, Any]
) -> tuple[list[str], str | None]:
    """Return the machines predicted for and the one measured: by GPU, or by CPU without one."""
    gpu = facts.get("gpu_name")
    names = [profile.spec.gpu.name if gpu else profile.spec.cpu.name for profile in profiles]
    return names, gpu or facts.get("cpu")


def _profiles(names: set[str]) -> list[HardwareProfile]:
    """Return the profiles that predictions were made with, those that are found here."""
    from essim.hardware.profile import find_profile, load_profile
    from essim.step.kinds import priced_names

    found = []
    for name in sorted(names):
        try:
            file = find_profile(name, Path())
        except BadValueError:
            continue
        found.append(load_profile(file, priced_names()))
    return found


def _traced(predicted: Path, folder: Path) -> dict[str, Any]:
    """Return a predicted step beside the real run's of the same mode: ops, errors by op kind.

    Raises
    ------
    InputError
        If the trace does not say its mode, or the real run has no trace of that step.
    """
    from essim.validate.measured_run import read_trace
    from essim.validate.traces import op_errors

    of, mine = read_trace(predicted)
    if "mode" not in of:
        raise InputError("does not say its mode", "essim run --trace writes it", file=predicted)
    real = folder / f"trace-{of['mode']}.json"
    if not real.exists():
        there = ", ".join(sorted(file.name for file in folder.glob("trace-*.json"))) or "no trace"
        raise InputError(f"the real run has no {real.name}", f"There is {there}", file=predicted)
    real_of, theirs = read_trace(real)
    for name in ("batch", "context_tokens", "attended_tokens"):
        if name in of and name in real_of and of[name] != real_of[name]:
            message = f"{name} is {of[name]}, that of {real.name} {real_of[name]}"
            hint = "Predict the step that was traced: essim run --set, --step"
            raise InputError(message, hint, file=predicted)
    return {"of": of, "predicted": mine, "real": theirs, "errors": op_errors(mine, theirs)}
