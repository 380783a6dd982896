"""The YAML of a hardware profile: devices and links, each number with its source and date."""

from __future__ import annotations

import re
from typing import Annotated, Generic, Literal, TypeVar, cast

from pydantic import AfterValidator, Field, model_validator

from essim.errors import BadValueError
from essim.text.units import (
    Bytes,
    BytesPerSecond,
    FlopsPerSecond,
    Hertz,
    Seconds,
    Settings,
    between,
)
from essim.text.yaml import Strict, nearest_hint

T = TypeVar("T")

# A number outside these has a wrong unit: they go from less than any machine has to some times what
# the largest announced ones have (22 TB/s of HBM4, 35 PFLOP/s in FP4, 0.9 TB/s over NVLink-C2C).
GpuMemory = Annotated[Bytes, between(1e9, 1e13, "B", "memory of a GPU")]
GpuRate = Annotated[BytesPerSecond, between(1e9, 1e14, "B/s", "bandwidth of a GPU's memory")]
GpuFlops = Annotated[FlopsPerSecond, between(1e9, 3e17, "FLOP/s", "peak of a GPU")]
Launch = Annotated[Seconds, between(0, 1e-3, "s", "time of a launch")]
Clock = Annotated[Hertz, between(1e8, 1e10, "Hz", "clock of a GPU")]
CpuMemory = Annotated[Bytes, between(1e9, 1e15, "B", "memory of a host")]
CpuRate = Annotated[BytesPerSecond, between(1e9, 1e13, "B/s", "bandwidth of a host's memory")]
CpuFlops = Annotated[FlopsPerSecond, between(1e9, 1e15, "FLOP/s", "peak of a CPU")]
LinkRate = Annotated[BytesPerSecond, between(1e8, 1e13, "B/s", "bandwidth of a link to a GPU")]
Latency = Annotated[Seconds, between(0, 1e-2, "s", "latency of a flag")]

_DATE = re.compile(r"\d{4}(-\d{2}(-\d{2})?)?")


def _date(text: str) -> str:
    if not _DATE.fullmatch(text):
        hint = "Write it as 2026-12-01, 2026-12 or 2026"
        raise BadValueError(f"must be a date (got {text!r})", hint)
    return text


Date = Annotated[str, AfterValidator(_date)]


class Sourced(Strict, Generic[T]):
    """A number, where it comes from and when.

    `low` and `high` bound it where a range is all that is known: results then carry an interval.
    `source` is `measured` on this machine, `published` by its maker or a paper, or `assumed`.
    """

    value: T
    low: T | None = None
    high: T | None = None
    source: Literal["measured", "published", "assumed"]
    reference: str
    date: Date

    @model_validator(mode="after")
    def _ordered(self) -> Sourced[T]:
        low, value, high = (cast("float | None", v) for v in (self.low, self.value, self.high))
        if (low is None) != (high is None):
            raise ValueError("a range needs both low and high")
        if low is not None and high is not None and value is not None and not low <= value <= high:
            raise ValueError(f"value {value:g} is not between low {low:g} and high {high:g}")
        return self


class Gpu(Strict):
    """A GPU's peaks as seen by one process; `clock_hz` is what it runs at under load."""

    name: str
    memory_bytes: Sourced[GpuMemory]
    bandwidth_bytes_per_s: Sourced[GpuRate]
    bf16_flops_per_s: Sourced[GpuFlops]
    fp8_flops_per_s: Sourced[GpuFlops] | None = None
    launch_s: Sourced[Launch]
    clock_hz: Sourced[Clock] | None = None

    def flops_per_s(self, dtype: str) -> float:
        """Return the peak of GEMMs in `dtype`: that of bf16, but fp8 may have its own."""
        own = self.fp8_flops_per_s if dtype == "fp8" else None
        return (own or self.bf16_flops_per_s).value


class Cpu(Strict):
    """The host's peaks as seen by one process."""

    name: str
    cores: Sourced[Annotated[int, Field(ge=1)]]
    memory_bytes: Sourced[CpuMemory]
    bandwidth_bytes_per_s: Sourced[CpuRate]
    fp32_flops_per_s: Sourced[CpuFlops]


class Link(Strict):
    """One direction between host and GPU: bytes over bandwidth, plus the latency of a flag."""

    bandwidth_bytes_per_s: Sourced[LinkRate]
    flag_latency_s: Sourced[Latency]


class HeldOut(Strict):
    """How well a table predicts measured points that are not in it."""

    points: Annotated[int, Field(ge=1)]
    median_frac: Annotated[float, Field(ge=0)]
    worst_frac: Annotated[float, Field(ge=0)]


class TableSpec(Strict):
    """How to read one table file, and for which settings its times hold.

    `holds_for` maps a setting to the values the table holds for: a point with another value is not
    in the table. `jumps` are ticks of an axis, for all keys, right after which its times jump.
    `kernel_hash` is of the code that was timed, where essim timed its own. With `varies` a price is
    a distribution through the percentiles there are, also without a 99th.
    """

    keys: list[str] = Field(default_factory=list)
    axes: Annotated[list[str], Field(min_length=1)]
    jumps: dict[str, list[float]] = Field(default_factory=dict)
    holds_for: dict[str, Settings] = Field(default_factory=dict)
    source: Literal["measured", "published"]
    reference: str
    date: Date
    kernel_hash: str = ""
    varies: bool = False
    note: str = ""
    heldout: HeldOut | None = None

    @model_validator(mode="after")
    def _jumps_along_axes(self) -> TableSpec:
        for axis in self.jumps:
            if axis not in self.axes:
                hint = nearest_hint(axis, self.axes)
                raise BadValueError(f"jumps along {axis!r}, no axis", hint)
        return self


class ProfileSpec(Strict):
    """A hardware profile's YAML.

    `reference` names another profile, whose measured times are carried over where this one has
    none: what is latency as it is, bytes and FLOPs by the peaks of both devices. `surveys` are
    times over many shapes, in the folder ``survey``: by them prices are carried over to a shape.
    """

    name: str
    provisional: bool = False
    description: str
    reference: str | None = None
    gpu: Gpu
    cpu: Cpu
    d2h: Link
    h2d: Link
    provenance: dict[str, str | int | float | None] = Field(default_factory=dict)
    constants: dict[str, Sourced[Seconds]] = Field(default_factory=dict)
    tables: dict[str, TableSpec] = Field(default_factory=dict)
    surveys: dict[str, TableSpec] = Field(default_factory=dict)
