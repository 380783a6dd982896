"""`essim sweep --out FOLDER`: rows that are kept as they are made."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from essim.cli.options import say_written, warn_of_old_kernels
from essim.cli.progress import progress
from essim.errors import InputError


def goes_to_folder(out: Path | None) -> bool:
    """Return whether results go to a folder: one that is there, or a name without an ending."""
    return out is not None and (out.is_dir() or not out.suffix)


def check_options(out: Path | None, only_file: dict[str, Any], only_folder: dict[str, Any]) -> None:
    """Refuse options that are for files where results go to a folder, and the other way.

    Raises
    ------
    InputError
        Naming the option.
    """
    folder = goes_to_folder(out)
    for key, value in (only_file if folder else only_folder).items():
        if value:
            message = "is for results in a file" if folder else "is for results in a folder"
            hint = "Give --out a .parquet" if folder else "Give --out a folder"
            raise InputError(message, hint, key=key)


def sweep_to_folder(
    scenario: str,
    folder: Path,
    overrides: list[str],
    engine: str,
    strict: bool,
    seed: int,
    jobs: int,
    cluster: str | None,
) -> None:
    """Simulate a grid into a folder of Parquet files; started again, it goes on where it was."""
    from essim.simulate.dataset import Sweep, run
    from essim.simulate.plan import load_grid
    from essim.simulate.rows import manifest
    from essim.simulate.scenario import find_scenario
    from essim.simulate.sweep import Simulator
    from essim.simulate.workers import workers

    file = find_scenario(scenario)
    grid = load_grid(file, overrides)
    simulator = Simulator(strict=strict, seed=seed)
    names = grid.base.sweep.get("hardware", [grid.base.hardware])
    profiles = [simulator.profile(name) for name in names]
    warn_of_old_kernels(profiles)
    chosen = "closed" if engine == "auto" else engine
    settings = {"engine": chosen, "seed": seed, "strict": strict}
    sweep = Sweep.of(grid, chosen, strict, seed, manifest(file, overrides, profiles) | settings)
    with progress() as tell:
        run(sweep, folder, workers(jobs, cluster), partial(tell, "points"))
    say_written(folder)
