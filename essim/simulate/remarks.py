"""What is to be said of points before their numbers: not wrong, but easily misread."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence

from essim.hardware.profile import HardwareProfile, table_file
from essim.simulate.scenario import Scenario

_MOST_NAMED = 3


def remarks(points: Sequence[Scenario], profiles: Mapping[str, HardwareProfile]) -> Iterator[str]:
    """Yield a sentence, with file and line, of each profile that points are simulated with."""
    for name, profile in profiles.items():
        dtypes = {point.model.weight_dtype for point in points if point.hardware == name}
        if "fp8" in dtypes and profile.spec.gpu.fp8_flops_per_s is None:
            yield (
                f"{profile.place('gpu')}: {profile.spec.gpu.name} has no fp8_flops_per_s: FP8 is "
                "priced as weights alone, read as FP8 and multiplied in 16 bits"
            )
    yield from _identical_tables(profiles)


def _identical_tables(profiles: Mapping[str, HardwareProfile]) -> Iterator[str]:
    """Yield which tables of a profile are, to the byte, those of one with another name."""
    owners: dict[str, HardwareProfile] = {}
    for profile in profiles.values():
        shared: dict[str, list[str]] = {}
        for table, spec in profile.spec.tables.items():
            content = table_file(profile.file, table).read_bytes()
            owner = owners.setdefault(hashlib.sha256(content).hexdigest(), profile)
            copied = owner.spec.name in spec.note.split()  # a copy that says so
            if owner is not profile and not copied:
                shared.setdefault(owner.spec.name, []).append(table)
        for name, tables in shared.items():
            place, more = profile.place("tables", tables[0]), len(tables) - _MOST_NAMED
            named = " ".join(tables[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
            yield f"{place}: measured times are, to the byte, those of {name}: {named}"
