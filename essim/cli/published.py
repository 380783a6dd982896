"""``essim figure2`` and ``essim published``: published figures and numbers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from essim.cli.options import JsonOption, print_json, say_written


def figure2(
    out: Annotated[Path | None, typer.Option(help="Rows as .csv or .parquet.")] = None,
    html: Annotated[Path | None, typer.Option(help="Chart and table as one HTML page.")] = None,
    as_json: JsonOption = False,
    loki: Annotated[
        Literal["pca", "cached"], typer.Option(help="Project by the full basis, or onto r.")
    ] = "pca",
    hsa_scan: Annotated[
        Literal["all", "stage1"], typer.Option(help="Scan all tokens, or those stage 1 keeps.")
    ] = "all",
) -> None:
    """Show which share of attention-side compute is routing, by method and compression."""
    from essim.cli import pages
    from essim.results.files import result_files, versions
    from essim.results.notes import QUALITY_NOTE
    from essim.results.tables import FIGURE2_COLUMNS
    from essim.simulate.figure2 import figure2 as shares
    from essim.text.files import check_outputs, write_files
    from reports import terminal as show

    check_outputs([], out, html)
    rows = shares(loki, hsa_scan)
    about = versions() | {"loki": loki, "hsa_scan": hsa_scan}
    files = {} if out is None else result_files(rows, out, about, FIGURE2_COLUMNS)
    if html is not None:
        files[html] = pages.figure2(rows, about)
    write_files(files)
    if as_json:
        print_json({"rows": rows, "manifest": about})
    else:
        show.columns(rows, [key for key in FIGURE2_COLUMNS if key != "context_tokens"])
        print(QUALITY_NOTE)
    say_written(out, html)


def published(
    out: Annotated[Path | None, typer.Option(help="Rows as .csv or .parquet.")] = None,
    html: Annotated[Path | None, typer.Option(help="Parity and figures as one HTML page.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Lay predictions beside every published number; exit 1 where an error has grown."""
    from essim.cli import pages
    from essim.results.files import result_files, versions
    from essim.results.tables import PUBLISHED_COLUMNS
    from essim.simulate.sweep import Simulator
    from essim.text.files import check_outputs, write_files
    from essim.validate.published import earlyselect, table
    from reports import terminal as show

    check_outputs([], out, html)
    simulator = Simulator()
    found = list(table.comparisons(simulator))
    rows, systems = [number.row() for number in found], table.summary(found)
    missing, worse, about = table.unpredicted(), table.grown(found), versions()
    files = {} if out is None else result_files(rows, out, about, PUBLISHED_COLUMNS)
    if html is not None:
        curves = earlyselect.curves(simulator)
        files[html] = pages.published(rows, systems, missing, curves, about)
    write_files(files)
    if as_json:
        print_json({"rows": rows, "systems": systems, "unpredicted": missing, "grown": worse})
    else:
        show.columns(rows, [key for key in PUBLISHED_COLUMNS if key not in ("unit", "note")])
        show.columns(systems, list(systems[0]))
        print(f"{len(missing)} published numbers have no prediction: docs/published.md says why.")
    say_written(*files)
    if worse:
        print(*worse, sep="\n", file=sys.stderr)
        raise typer.Exit(1)
