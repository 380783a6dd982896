"""`essim serve` and `essim plan`: one deployment under traffic, and the cheapest that will do."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from essim.cli.options import (
    JsonOption,
    ScenarioArg,
    SetOption,
    StrictOption,
    print_json,
    say_written,
    warn_of_old_kernels,
)
from essim.cli.progress import progress
from essim.errors import InputError

if TYPE_CHECKING:
    from essim.hardware.profile import HardwareProfile
    from essim.serving.deployment import Deployment, Served
    from essim.serving.keys import Asked
    from essim.serving.traffic import Offered


class ServeEngine(StrEnum):
    """Engines that `essim serve` takes."""

    jump = "jump"
    des = "des"


_ROW = (
    ("gpus", "requests", "requests_per_s", "kept_frac", "goodput_per_s", "tokens_per_s_per_gpu"),
    ("tokens_per_s_per_user", "busy_frac", "exposed_routing_frac", "peak_kv_frac", "preemptions"),
)
_LATENCY = ("metric", "mean_s", "p50_s", "p90_s", "p95_s", "p95_low_s", "p95_high_s", "p99_s")
SeedOption = Annotated[int, typer.Option(min=0, help="Of the requests that are drawn.")]


def serve(
    scenario: ScenarioArg,
    out: Annotated[Path | None, typer.Option(help="Requests as .csv or .parquet.")] = None,
    html: Annotated[Path | None, typer.Option(help="Queue, memory, latencies as a page.")] = None,
    trace: Annotated[Path | None, typer.Option(help="All steps for Chrome or Perfetto.")] = None,
    set_: SetOption = [],  # noqa: B006 (typer reads the default, nothing changes it)
    as_json: JsonOption = False,
    engine: Annotated[
        ServeEngine, typer.Option(help="jump is the fast one; des is the reference.")
    ] = ServeEngine.jump,
    strict: StrictOption = False,
    seed: SeedOption = 0,
) -> None:
    """Serve a scenario's traffic with one deployment: latencies, the promise, queue and memory."""
    from essim.serving import report
    from essim.serving.deployment import deploy
    from essim.serving.metrics import latency_rows, request_rows, seen
    from essim.text.files import check_outputs, write_files

    file, asked, offer, profile = _asked(scenario, set_, seed)
    check_outputs([file], out, html, trace)
    deployment = deploy(asked, profile, max(r.input_tokens for r in offer.requests))
    served = _served(file, deployment, offer, engine, strict)
    own, worst = seen(served, asked.slo), report.sources(served)
    row = report.deployment_row(deployment, offer, served, own)
    said = report.verdict(row, asked.slo, served.bad) + report.unmeasured(worst)
    latencies = [] if row["queue_growth_per_s"] else latency_rows(served, own)
    about = _manifest(file, set_, [profile]) | {"engine": served.engine, "seed": seed}
    about["price_sources"] = worst
    requests = request_rows(served, own) if out or html else []
    moments = report.over_time(served, deployment)
    files = _serve_files(out, html, (row, latencies, moments, requests, said, about))
    if trace is not None:
        files[trace] = (json.dumps(report.trace(served), separators=(",", ":")) + "\n").encode()
    write_files(files)
    if as_json:
        shown = {"row": row, "latencies": latencies, "over_time": moments, "verdict": said}
        print_json(shown | {"left_out": dict(served.bad), "manifest": about})
    else:
        _show([row], latencies, said)
    say_written(out, html, trace)


def _served(
    file: Path, deployment: Deployment, offer: Offered, engine: ServeEngine, strict: bool
) -> Served:
    """Return the load served, or refuse a deployment that can serve none of it."""
    from essim.serving.deployment import serve as serve_load

    if deployment.reason:
        raise InputError(deployment.reason, file=file)
    served = serve_load(deployment, offer, engine=engine.value, strict=strict)
    if not served.records:
        reasons = "; ".join(f"{count} {reason}" for reason, count in served.bad.items())
        raise InputError(f"no request can be served: {reasons}", file=file, key="traffic")
    return served


def _show(rows: list[Any], latencies: list[Any], said: list[str]) -> None:
    from reports import terminal as show

    for keys in _ROW:
        show.columns(rows, keys)
    if latencies:
        show.columns(latencies, _LATENCY)
    print(*said, sep="\n")


def _serve_files(out: Path | None, html: Path | None, found: tuple[Any, ...]) -> dict[Path, bytes]:
    from essim.results.files import result_files
    from essim.results.tables import column

    row, latencies, moments, requests, said, about = found
    files: dict[Path, bytes] = {}
    if out is not None:
        columns = {key: column(key) for key in requests[0]}
        files = result_files(requests, out, about, columns)
    if html is not None:
        from reports.page import render
        from reports.serving_page import serving_blocks

        blocks = serving_blocks(row, latencies, moments, requests, said, about)
        files[html] = render(f"{row['name']}: one deployment", blocks).encode()
    return files


def plan(
    scenario: ScenarioArg,
    out: Annotated[Path | None, typer.Option(help="Deployments as .csv or .parquet.")] = None,
    html: Annotated[Path | None, typer.Option(help="Frontier and table as a page.")] = None,
    set_: SetOption = [],  # noqa: B006
    as_json: JsonOption = False,
    strict: StrictOption = False,
    seed: SeedOption = 0,
) -> None:
    """Find the cheapest deployments that keep the promise, and what each routing saves."""
    from essim.results.files import result_files
    from essim.results.tables import column
    from essim.serving.plan import Planner
    from essim.serving.saving import sentences
    from essim.text.files import check_outputs, write_files
    from reports import terminal as show

    file, asked, offer, _ = _asked(scenario, set_, seed)
    check_outputs([file], out, html)
    planner = Planner(asked, offer, strict=strict)
    with progress() as tell:
        rows, points = planner.rows(tell)
    said = sentences(rows, offer, asked)
    about = _manifest(file, set_, planner.profiles()) | {"seed": seed}
    columns = {key: column(key) for key in rows[0]}
    files = {} if out is None else result_files(rows, out, about, columns)
    if html is not None:
        from reports.page import render
        from reports.serving_page import plan_blocks

        page = render(f"{asked.point.name}: a plan", plan_blocks(rows, points, said, about))
        files[html] = page.encode()
    write_files(files)
    if as_json:
        print_json({"rows": rows, "frontier": points, "verdict": said, "manifest": about})
    else:
        keys = ("deployment", "status", "gpus", "gpus_low", "gpus_high", "rate_per_gpu")
        priced = ("cost_per_million_tokens",) if asked.plan.price_per_hour else ()
        show.columns(rows[:20], (*keys, "bound_by", *priced))
        print(*said, sep="\n")
    say_written(out, html)


def _asked(
    scenario: str, overrides: list[str], seed: int
) -> tuple[Path, Asked, Offered, HardwareProfile]:
    """Return the scenario's file, its question, its requests, and its machine."""
    from essim.serving.keys import load_asked
    from essim.serving.traffic import offered
    from essim.simulate.scenario import find_scenario
    from essim.simulate.sweep import Simulator

    file = find_scenario(scenario)
    asked = load_asked(file, overrides)
    offer = offered(asked.traffic, file.parent, seed)
    return file, asked, offer, Simulator().profile(asked.point.hardware)


def _manifest(file: Path, overrides: list[str], profiles: list[HardwareProfile]) -> dict[str, Any]:
    from essim.simulate.rows import manifest

    warn_of_old_kernels(profiles)
    return manifest(file, overrides, profiles)
