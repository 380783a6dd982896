"""The functions: run, sweep, read, plot, timeline, memory, load_profile."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from essim.api.asking import ScenarioLike, ask
from essim.api.results import MemoryReport, Result, load_pandas, to_frame, to_rows
from essim.errors import InputError
from essim.hardware.profile import HardwareProfile
from essim.results.columns import differing, unique
from essim.results.reading import read_result
from essim.simulate.derivation import derivation, facts, largest_batches
from essim.simulate.memory import memory as bytes_of
from essim.simulate.rows import add_swept
from essim.simulate.sweep import Simulator
from essim.simulate.timeline import Timeline

if TYPE_CHECKING:
    from pandas import DataFrame
    from plotly.graph_objects import Figure


def run(
    scenario: ScenarioLike,
    *,
    batch: int | None = None,
    input_tokens: int | None = None,
    output_tokens: int | None = None,
    routing: str | Mapping[str, Any] | None = None,
    hardware: str | os.PathLike[str] | None = None,
    model: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    set: Mapping[str, Any] | None = None,
    engine: str = "auto",
    strict: bool = False,
    seed: int = 0,
) -> Result:
    """Simulate the base point of a scenario.

    Parameters
    ----------
    scenario
        The name of a shipped scenario, the path of one, or a dict with a scenario's keys.
    batch, input_tokens, output_tokens, routing, hardware, model
        Set these keys of the scenario. Relative paths start at the current folder.
    set
        Further dotted keys and their values, such as ``{"routing.channels": 64}``, set last.
    engine
        ``auto``, ``maxplus`` or ``des``.
    strict
        Refuse prices that are neither measured nor interpolated.
    seed
        Of the CPU router's jitter.

    Raises
    ------
    InputError
        Saying where, which key, and what is wrong; the file of a dict is ``<dict>``.
    PricingError
        Under `strict`.
    """
    from reports.verdict import run_verdict

    changes = {
        "model": model,
        "hardware": hardware,
        "routing": routing,
        "workload.batch": batch,
        "workload.input_tokens": input_tokens,
        "workload.output_tokens": output_tokens,
    }
    given = {key: value for key, value in changes.items() if value is not None}
    asked = ask(scenario, given | dict(set or {}), engine, strict, seed)
    row = asked.simulator.rows([asked.base])[0]
    about = asked.provenance([asked.base], [row])
    verdict = run_verdict(row, asked.base.compare.baseline)
    return Result(verdict, about, row, asked.base, asked.simulator)


def sweep(
    scenario: ScenarioLike,
    *,
    set: Mapping[str, Any] | None = None,
    engine: str = "auto",
    strict: bool = False,
    seed: int = 0,
) -> DataFrame:
    """Simulate every point of a scenario's sweep.

    Parameters
    ----------
    scenario, engine, strict, seed
        As in `run`.
    set
        Dotted keys and their values; ``sweep.KEY`` takes a list.

    Returns
    -------
    pandas.DataFrame
        One row a point, with the columns of ``essim sweep --out``, after one for each swept key
        that has none there. ``attrs`` says where it comes from: versions, scenario, profiles and
        their hashes, engine, seed, units of the columns.

    Raises
    ------
    InputError, PricingError
        As `run`.
    AbsentError
        Without pandas.
    """
    load_pandas()
    asked = ask(scenario, set or {}, engine, strict, seed)
    rows = asked.simulator.rows(asked.points)
    add_swept(asked.base, asked.points, rows)
    frame = to_frame(rows)
    frame.attrs = asked.provenance(asked.points, rows)
    return frame


def read(path: str | os.PathLike[str]) -> DataFrame:
    """Read what ``essim sweep --out`` wrote: a file, or every one of a folder, by name.

    Returns
    -------
    pandas.DataFrame
        As of `sweep`; ``attrs["files"]`` says where each file comes from.

    Raises
    ------
    InputError
        With file, line and column of what is wrong.
    AbsentError
        Without pandas.
    """
    load_pandas()
    found = read_result(Path(path))
    frame = to_frame(found.rows)
    frame.attrs = {"files": found.manifests}
    return frame


def plot(frame: DataFrame) -> list[Figure]:
    """Return the plotly figures of a sweep: rates and gains over what was swept.

    Parameters
    ----------
    frame
        What `sweep` or `read` returned, or some of its rows. Of one point there is nothing to
        draw.

    Raises
    ------
    InputError
        If it has no row of a sweep, or gains against different routings.
    """
    from reports.sweep_page import SWEPT, sweep_figures

    if "baseline" not in getattr(frame, "columns", ()) or frame.empty:
        raise InputError("no row of a sweep", "Give what essim.sweep returned", key="frame")
    rows = to_rows(frame)
    baselines = unique(rows, "baseline")
    if len(baselines) > 1:
        message = f"gains against {' and '.join(map(str, baselines))}"
        raise InputError(message, "Give rows of one baseline", key="frame")
    by = [key for key in differing(rows) if key not in SWEPT]
    sections = sweep_figures(rows, str(baselines[0]), by)
    return [figure for figures in sections.values() for figure in figures]


def timeline(
    scenario: ScenarioLike,
    step: int | None = None,
    *,
    set: Mapping[str, Any] | None = None,
    engine: str = "auto",
    strict: bool = False,
    seed: int = 0,
) -> Timeline:
    """Return one decode step of the base point: `Result.timeline` of `run`.

    Its ``rows()`` has every op's start and end, what it exposes and its price's source; its
    ``trace()`` opens in Perfetto.
    """
    return run(scenario, set=set, engine=engine, strict=strict, seed=seed).timeline(step)


def memory(
    scenario: ScenarioLike,
    *,
    set: Mapping[str, Any] | None = None,
    pool_tokens: int | None = None,
) -> MemoryReport:
    """Derive every byte of the base point, and the largest batch that fits.

    Parameters
    ----------
    pool_tokens
        Derive a pre-allocated pool of so many tokens too.
    """
    asked = ask(scenario, set or {})
    if pool_tokens is not None and pool_tokens < 1:
        raise InputError(f"must be 1 or more (got {pool_tokens})", key="pool_tokens")
    profile = asked.simulator.profile(asked.base.hardware)
    return MemoryReport(
        bytes_of(asked.base, profile),
        derivation(asked.base, profile),
        largest_batches(asked.base, profile),
        facts(asked.base, profile, pool_tokens),
    )


def load_profile(name_or_path: str | os.PathLike[str]) -> HardwareProfile:
    """Return a hardware profile, its tables loaded, by name or by path.

    Raises
    ------
    InputError
        With file, line and key of what is wrong, or what names there are.
    """
    return Simulator().profile(os.fspath(name_or_path))
