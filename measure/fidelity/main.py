"""``essim fidelity``: what a proxy query does to the choice and to the output of a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from essim.errors import InputError
from essim.results.column import Row
from essim.text.files import write_files
from measure.fidelity import files, tables
from measure.fidelity.frontier import frontier
from measure.fidelity.mix import stability
from measure.fidelity.plan import Options
from measure.fidelity.study import Study, run_study
from measure.fidelity.summary import lost_masses, sentences

Tell = Callable[[str, int, int], None]


def fidelity(
    options: Options,
    out: Path,
    html: bool,
    scenario: str | None,
    hardware: str | None,
    tell: Tell,
) -> list[str]:
    """Measure, write everything into the folder `out`, and return the summary's sentences.

    Parameters
    ----------
    html
        Write ``report.html``, too.
    scenario, hardware
        Whose throughput quality is set against; without a scenario there is no such table.

    Raises
    ------
    InputError, AbsentError
        As of `run_study`.
    """
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file", "Give a folder", key="--out")
    study = run_study(options, tell)
    found = _tables(study)
    if scenario is not None:
        whole = [row for row in found["quality"] if row["domain"] == "all"]
        page, name = options.page_tokens, study.checkpoint.name
        found["frontier"] = frontier(whole, name, scenario, hardware, page, tell)
    said = sentences(study, found["quality"], found["frontier"])
    written = files.study_files(study, found, said, out)
    if html:
        written[out / "report.html"] = _page(study, found, said)
    write_files(written)
    return said


def _tables(study: Study) -> dict[str, list[Row]]:
    """Return the tables by the names of their files; ``frontier`` is filled in later."""
    return {
        "quality": tables.quality_rows(study),
        "layers": tables.layer_rows(study),
        "heads": tables.head_rows(study),
        "positions": tables.position_rows(study),
        "mix": tables.mix_rows(study),
        "stability": stability(study.gaps, study.options.tau),
        "passkeys": study.passkeys,
        "frontier": [],
    }


def _page(study: Study, found: dict[str, list[Row]], said: list[str]) -> bytes:
    from reports.fidelity import FidelityTables, fidelity_blocks
    from reports.page import render

    shown = {name: rows for name, rows in found.items() if name != "heads"}
    given = FidelityTables(**shown)
    blocks = fidelity_blocks(given, said, lost_masses(study), files.manifest(study))
    return render(f"Fidelity of early selection: {study.checkpoint.name}", blocks).encode()
