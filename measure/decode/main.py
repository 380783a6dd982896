"""Time real decode steps of this machine: ``python -m measure.decode --out DIR``.

``DIR/decode.csv`` gets a row a cell and repetition, ``DIR/provenance.json`` says where and how. A
run that was stopped goes on where it was; everything in the CSV is kept.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from essim.errors import EssimError, InputError
from essim.results.notes import QUALITY_NOTE
from essim.results.reading import read_json
from essim.text.files import write_files
from essim.validate.measured_run import CELL, read_measured
from measure.decode.cpu import plan as cpu_plan
from measure.decode.shared import cells
from measure.harness.machine import machine_facts
from measure.harness.table import Progress
from reports.console import say
from reports.terminal import columns


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(prog="python -m measure.decode", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--quick", action="store_true", help="few cells: minutes, not an hour")
    parser.add_argument("--modes", type=lambda text: text.split(","), metavar="A,B")
    parser.add_argument("--steps", type=whole, help="timed steps a cell and repetition")
    parser.add_argument("--trace", action="store_true", help="also one traced step a mode")
    return parser.parse_args(arguments)


def plan_of_this_machine(modes: Sequence[str] | None, quick: bool, steps: int | None) -> cells.Plan:
    """Return what this machine measures by default."""
    if torch.cuda.is_available():
        # Imported by name: without a GPU there is no Triton.
        return importlib.import_module("measure.decode.gpu.plan").make_plan(modes, quick, steps)  # type: ignore[no-any-return]
    return cpu_plan.make_plan(modes, quick, steps)


def write_provenance(file: Path, plan: cells.Plan, command: str) -> None:
    """Write the machine, the plan and the command; earlier commands of the same run stay.

    Raises
    ------
    InputError
        If what lies there is no provenance of a run, or of one with another number of steps, or if
        nothing can be written there.
    """
    facts = machine_facts(("torch", "numpy", "essim"))
    earlier: dict[str, Any] = read_json(file) if file.exists() else {"steps": plan.steps}
    if earlier.get("steps") != plan.steps:
        said = earlier.get("steps", "an unknown number of")
        message = f"measured with {said} steps a cell, now {plan.steps}"
        raise InputError(message, "Measure into another folder", file=file)
    about = facts | plan.facts
    about |= {key: value for key, value in earlier.items() if about.get(key, "") is None}
    about |= {"repetitions": cells.REPETITIONS, "steps": plan.steps}
    about |= {"source_hash": plan.source_hash}
    about |= {"commands": [*earlier.get("commands", []), f"{facts['date']} {command}"]}
    write_files({file: (json.dumps(about, indent=2) + "\n").encode()})


def without_folder(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with DIR for the folder, which says nothing about the run."""
    found = list(arguments)
    for at, argument in enumerate(arguments):
        if argument == "--out":
            found[at + 1] = "DIR"
        elif argument.startswith("--out="):
            found[at] = "--out=DIR"
    return found


def whole(text: str) -> int:
    """Return a positive whole number."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def tell(progress: Progress) -> None:
    """Print how far the campaign is."""
    left = "" if progress.eta_s is None else f", about {progress.eta_s:.0f} s left"
    print(f"{progress.done}/{progress.total}{left}", file=sys.stderr, flush=True)


def print_cells(folder: Path) -> None:
    """Print a table of the cells that were timed, which are unsteady, and the next command."""
    measured = read_measured(folder / "decode.csv")
    columns(measured, [*CELL, "repetitions", "measured_s", "spread_frac", "unsteady"])
    bad = sum(bool(row["unsteady"]) for row in measured)
    if bad:
        say(
            f"{bad} of {len(measured)} cells are unsteady: their repetitions, or the steps within "
            "one, are more than 10% apart. Close other programs and measure again."
        )
    swept = {"batch": "batch", "context_tokens": "input_tokens"}
    sets = [f"workload.output_tokens={int(measured[0]['steps'] or 0) + 1}"]
    for column, key in swept.items():
        values = ",".join(map(str, dict.fromkeys(row[column] for row in measured)))
        sets.append(f"'sweep.workload.{key}=[{values}]'")
    scenario = "validate-h200" if torch.cuda.is_available() else "validate-laptop"
    predicted = folder / "predicted.csv"
    options = " ".join(f"--set {text}" for text in ("hardware=mine", *sets))
    say(QUALITY_NOTE, "Next, with a profile of this machine (essim measure --profile mine):")
    print(f"essim sweep {scenario} {options} --out {predicted}")
    print(f"essim compare {predicted} {folder / 'decode.csv'}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure; exit with the code of what went wrong."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parsed(given)
    try:
        plan = plan_of_this_machine(options.modes, options.quick, options.steps)
        command = " ".join(("python -m measure.decode", *without_folder(given)))
        write_provenance(options.out / "provenance.json", plan, command)
        cells.run(plan, options.out / "decode.csv", tell)
        if options.trace:
            cells.write_traces(plan, options.out)
        print(f"wrote {options.out / 'decode.csv'}", file=sys.stderr)
        print_cells(options.out)
    except EssimError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        kept = f"what was measured is kept in {options.out}; the same command goes on from there"
        print(f"stopped: {kept}", file=sys.stderr)
        sys.exit(130)
