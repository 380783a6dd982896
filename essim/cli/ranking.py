"""``essim rank``: the selectors of a sweep on one scale."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from essim.cli.options import (
    JsonOption,
    ScenarioArg,
    SeedOption,
    SetOption,
    print_json,
    say_written,
)
from essim.errors import InputError

if TYPE_CHECKING:
    from essim.results.columns import ResultRow
    from essim.simulate.scenario import Scenario
    from essim.simulate.sweep import Simulator

# What a terminal has room for.
_SHOWN = (
    *("selector", "class", "routing", "tpot_s", "gain_over_dense_frac", "beats_dense_from_tokens"),
    *("surely_from_tokens", "early_gain_frac", "early_gain_frac_p5", "early_gain_frac_p95"),
)


def rank(
    scenario: ScenarioArg,
    at: Annotated[
        int | None, typer.Option(min=1, help="Input tokens to rank at; default the scenario's.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Rows as .csv or .parquet.")] = None,
    html: Annotated[Path | None, typer.Option(help="Curves and table as one HTML page.")] = None,
    set_: SetOption = [],  # noqa: B006 (typer reads the default, nothing changes it)
    as_json: JsonOption = False,
    seed: SeedOption = 0,
) -> None:
    """Rank a scenario's selectors: fastest, from where faster than dense, what earlier adds."""
    from essim.cli import pages
    from essim.results.files import result_files
    from essim.results.tables import RANK_COLUMNS
    from essim.simulate import ranking
    from essim.simulate.plan import load_scenario
    from essim.simulate.rows import manifest
    from essim.simulate.scenario import find_scenario
    from essim.simulate.sweep import Simulator
    from essim.text.files import check_outputs, write_files
    from reports import terminal as show

    file = find_scenario(scenario)
    check_outputs([file], out, html)
    base, points = load_scenario(file, set_)
    tokens = _asked(at or base.workload.input_tokens, points)
    simulator = Simulator(seed=seed)
    rows = _simulated(simulator, points)
    ranked, said = ranking.ranked(points, rows, tokens)
    about = manifest(file, set_, [simulator.profile(point.hardware) for point in points])
    files = {} if out is None else result_files(ranked, out, about, RANK_COLUMNS)
    if html is not None:
        files[html] = pages.ranking(base.name, rows, ranked, said, about)
    write_files(files)
    if as_json:
        print_json({"rank": ranked, "verdict": said, "manifest": about})
    else:
        show.columns(ranked, _SHOWN)
        print(*said, sep="\n")
    say_written(*files)


def _asked(tokens: int, points: Sequence[Scenario]) -> int:
    """Return the input length to rank at; raise `InputError` where the sweep has none such."""
    lengths = sorted({point.workload.input_tokens for point in points})
    if tokens not in lengths:
        hint = f"One of {', '.join(map(str, lengths))}"
        raise InputError(f"{tokens} is no input length of the sweep", hint, key="--at")
    return tokens


def _simulated(simulator: Simulator, points: Sequence[Scenario]) -> list[ResultRow]:
    from essim.cli.progress import progress

    with progress() as tell:
        done = itertools.count(1)
        return simulator.rows(points, lambda: tell("points", next(done), len(points)))
