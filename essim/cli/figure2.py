"""``essim figure2``: routing's share of attention-side compute."""

from __future__ import annotations

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
