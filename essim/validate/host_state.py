"""Errors of a run's CPU modes as they are, and at the state its host was in.

    python -m essim.validate.host_state validate-h200-pool reports/data/h200-pool --out state.csv

A run with a router's pool looks at its host before and after each group of cells (``host.csv``):
it times routes there as the table ``cpu_route`` was timed. At equal host state every route is
priced by what the table says times what the looks say over the table. So drift of the host and
errors of the model can be told apart. Nothing is fitted: no step of the run is used.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd

from essim.errors import InputError
from essim.hardware.profile import HardwareProfile
from essim.simulate.plan import load_scenario
from essim.simulate.scenario import Scenario, find_scenario
from essim.simulate.sweep import Simulator

TABLE = "cpu_route"


def with_route_times(profile: HardwareProfile, factor: float) -> HardwareProfile:
    """Return the profile with routes on the CPU that take `factor` times as long."""
    table = profile.tables[TABLE]
    grids = {
        key: replace(grid, values={name: s * factor for name, s in grid.values.items()})
        for key, grid in table.grids.items()
    }
    return replace(profile, tables={**profile.tables, TABLE: replace(table, grids=grids)})


def state(profile: HardwareProfile, looks: pd.DataFrame) -> dict[tuple[int, int], float]:
    """Return looks over the table, by batch and context."""
    (grid,) = profile.tables[TABLE].grids.values()
    found = {}
    for (batch, context, threads), own in looks.groupby(["batch", "context_tokens", "threads"]):
        priced_s = float(grid.at([[threads], [batch], [context]]).mean_s[0])
        found[int(batch), int(context)] = float(own["route_s"].mean()) / priced_s
    return found


def errors(points: Sequence[Scenario], folder: Path) -> list[dict[str, float | str]]:
    """Return a row a measured cell: mode, batch, context, the host's state, and both errors.

    Raises
    ------
    InputError
        If the run did not look at its host.
    """
    file = folder / "host.csv"
    if not file.exists():
        raise InputError("the run did not look at its host", "Measure again", file=file)
    plain = Simulator()
    profile = plain.profile(points[0].hardware)
    states = state(profile, pd.read_csv(file))
    cells = pd.read_csv(folder / "decode.csv").groupby(["mode", "batch", "context_tokens"])
    measured_s = cells["mean_s"].mean().to_dict()
    found: list[dict[str, float | str]] = []
    for point in points:
        cell = point.workload.batch, point.workload.input_tokens
        if cell not in states or (point.mode, *cell) not in measured_s:
            continue
        there = with_route_times(profile, states[cell])
        at_state = Simulator(_profiles={point.hardware: there})
        row: dict[str, float | str] = {"mode": point.mode, "batch": cell[0]}
        row |= {"context_tokens": cell[1], "state": states[cell]}
        for name, simulator in (("error_frac", plain), ("at_state_frac", at_state)):
            (result,) = simulator.rows([point])
            assert result["tpot_s"] is not None
            row[name] = float(result["tpot_s"]) / measured_s[point.mode, *cell] - 1
        found.append(row)
    return found


def main() -> None:
    """Print a line a mode."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, help="a CSV with a row a cell")
    args = parser.parse_args()
    found = errors(load_scenario(find_scenario(args.scenario))[1], args.folder)
    if args.out:
        pd.DataFrame(found).to_csv(args.out, index=False, float_format="%.5f")
    modes: dict[str, list[dict[str, float | str]]] = defaultdict(list)
    for row in found:
        modes[str(row["mode"])].append(row)
    for mode, rows in modes.items():
        for name, said in (("error_frac", "as it is"), ("at_state_frac", "at the host's state")):
            own = np.array([float(row[name]) for row in rows])
            worst = own[np.argmax(np.abs(own))]
            print(f"{mode:20} {said:20} MAPE {fmean(abs(own)):.1%}, worst {worst:+.1%}")


if __name__ == "__main__":
    main()
