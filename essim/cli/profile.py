"""``essim profile``: new hardware profiles, from a few numbers or from public tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from essim.cli.options import say_written, shows_errors

app = typer.Typer(
    help="Make a hardware profile, from a few numbers or from public tables.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Out = Annotated[Path, typer.Option(help="Folder of profiles.")]
Number = str | None


@app.command()
@shows_errors
def new(
    name: Annotated[str, typer.Argument(help="Name of the profile to write.")],
    from_: Annotated[str, typer.Option("--from", help="Profile that has the rest.")],
    bandwidth: Annotated[Number, typer.Option(help="Of GPU memory, such as '3.35 TB/s'.")] = None,
    bf16: Annotated[Number, typer.Option(help="Dense peak, such as '989 TFLOP/s'.")] = None,
    fp8: Annotated[Number, typer.Option(help="Dense peak, such as '1979 TFLOP/s'.")] = None,
    memory: Annotated[Number, typer.Option(help="Of the GPU, such as '80 GiB'.")] = None,
    clock: Annotated[Number, typer.Option(help="Of the GPU under load: '1980 MHz'.")] = None,
    link: Annotated[Number, typer.Option(help="To the host and back, such as '55 GB/s'.")] = None,
    nominal: Annotated[
        bool, typer.Option("--nominal", help="Rates are a datasheet's: kernels get a share.")
    ] = False,
    gpu: Annotated[str | None, typer.Option(help="The GPU's name; default the profile's.")] = None,
    cite: Annotated[str | None, typer.Option(help="Who published the numbers.")] = None,
    date: Annotated[str | None, typer.Option(help="When: 2026-12-01, 2026-12 or 2026.")] = None,
    out: Out = Path("hardware_profiles"),
) -> None:
    """Write a profile from a few numbers; times are carried over from another's tables.

    Rates are taken as what kernels get. Say --nominal where they are a datasheet's.
    """
    from essim.hardware.from_another import new_profile

    numbers = {"bandwidth": bandwidth, "bf16": bf16, "fp8": fp8}
    numbers |= {"memory": memory, "clock": clock, "link": link}
    given = {option: text for option, text in numbers.items() if text is not None}
    file = new_profile(name, from_, out, given, gpu=gpu, cite=cite, date=date, nominal=nominal)
    say_written(file)


@app.command("import")
@shows_errors
def import_(
    source: Annotated[Literal["aiconfigurator"], typer.Argument(help="Whose tables.")],
    system: Annotated[str, typer.Argument(help="Its name of the GPU, such as h100_sxm.")],
    name: Annotated[
        str | None, typer.Option(help="Of the profile; default GPU and framework.")
    ] = None,
    from_: Annotated[
        str | None, typer.Option("--from", help="Profile of that GPU; default the shipped one.")
    ] = None,
    framework: Annotated[str, typer.Option(help="Whose kernels: vllm, trtllm or sglang.")] = "vllm",
    model: Annotated[str, typer.Option(help="Its heads are those of the tables.")] = "llama-3.1-8b",
    max_batch: Annotated[
        int, typer.Option(min=1, help="Of attention: less batch, longer contexts.")
    ] = 32,
    out: Out = Path("hardware_profiles"),
) -> None:
    """Write a profile with the GEMM and attention tables that a public package installs."""
    from essim.hardware.import_tables import import_profile

    file, dropped = import_profile(system, name, from_, framework, model, max_batch, out)
    for line in dropped:
        print(line)
    say_written(file)
