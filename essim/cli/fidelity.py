"""``essim fidelity``: options in, `measure.fidelity` does the rest (torch loads there)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from essim.cli.options import say_written
from essim.cli.progress import progress
from essim.errors import TORCH_HINT, AbsentError, InputError

if TYPE_CHECKING:
    from measure.fidelity.plan import Options


def _help(text: str) -> Any:
    return typer.Option(help=text)


def fidelity(
    out: Annotated[Path, _help("Folder for tables, summary and profiles.")],
    model: Annotated[Path | None, _help("A GGUF or a folder; default SmolLM2-135M.")] = None,
    domains: Annotated[str, _help("Texts, such as book,code; or all.")] = "book,code,retrieval",
    selectors: Annotated[str | None, _help("Such as rocketkv,loki.")] = None,
    queries: Annotated[str | None, _help("Such as target,mid,mid-r128.")] = None,
    budgets: Annotated[str | None, _help("Tokens, such as 64,128.")] = None,
    context: Annotated[int, typer.Option(min=256, help="Tokens of a context.")] = 2048,
    decoded: Annotated[int, typer.Option(min=32, help="Of them decoded, the last.")] = 256,
    page: Annotated[int, typer.Option(min=1, help="Tokens a page of RocketKV.")] = 4,
    channels: Annotated[int | None, typer.Option(min=1, help="RocketKV's; default D/4.")] = None,
    tail: Annotated[bool, _help("Keep RocketKV's newest page outside the budget.")] = True,
    sink: Annotated[bool, _help("Always choose RocketKV's first page.")] = False,
    passkeys: Annotated[str, _help("Context lengths of the passkey test, or none.")] = "512,2048",
    tau: Annotated[float, typer.Option(min=0, help="Of ES-Mix.")] = 0.01,
    scenario: Annotated[str, _help("Throughput to set quality against, or none.")] = (
        "earlyselect-40k"
    ),
    hardware: Annotated[str | None, _help("Another profile than the scenario's.")] = None,
    device: Annotated[str, _help("cpu or cuda.")] = "cpu",
    html: Annotated[bool, typer.Option("--html", help="A page of it, too.")] = False,
) -> None:
    """Measure on real weights what a proxy query does to the choice of pages and to the output."""
    options = _options(
        {"domains": None if domains == "all" else _names(domains), "model": model, "tau": tau}
        | {"selectors": _names(selectors), "queries": _names(queries), "device": device}
        | {"budgets": _numbers(budgets, "--budgets"), "context_tokens": context}
        | {"decoded_tokens": decoded, "page_tokens": page, "channels": channels}
        | {"tail_page": tail, "sink_page": sink}
        | {"passkey_tokens": () if passkeys == "none" else _numbers(passkeys, "--passkeys")}
    )
    from measure.fidelity.main import fidelity as measure

    with progress() as tell:
        said = measure(options, out, html, None if scenario == "none" else scenario, hardware, tell)
    print(*said, sep="\n")
    say_written(out / "summary.md", out / "report.html" if html else None)


def _options(given: dict[str, Any]) -> Options:
    """Return the options; torch loads here."""
    try:
        from measure.fidelity.domains import DOMAINS
        from measure.fidelity.plan import Options
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise AbsentError("fidelity needs torch", TORCH_HINT) from None
    return Options(**given | {"domains": given["domains"] or DOMAINS})


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(part.strip() for part in text.split(","))


def _numbers(text: str | None, key: str) -> tuple[int, ...] | None:
    names = _names(text)
    if names is None:
        return None
    if not all(name.isdecimal() and int(name) > 0 for name in names):
        raise InputError(f"{text!r} is no list of whole numbers", "Such as 64,128", key=key)
    return tuple(map(int, names))
