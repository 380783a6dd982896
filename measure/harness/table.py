"""A table of measurements that survives being killed: one CSV row a point, synced as it is made."""

from __future__ import annotations

import csv
import io
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from essim.errors import InputError
from essim.hardware.table import OLD_NAMES
from measure.harness.timing import Measurement, Spec

STATISTICS = (
    "calls",
    "rejected",
    "mean_s",
    "low_s",
    "p50_s",
    "high_s",
    "p99_s",
    "iqr_frac",
    "unstable",
    "bytes_moved",
    "bytes_per_s",
    "source_hash",
)

Key = tuple[str, ...]


class ResultTable:
    """Measurements of one kind of op.

    Opening an existing file resumes it: a last row that a kill tore is cut off, and its points need
    not be measured again.

    Parameters
    ----------
    path
        CSV file, made where it is absent.
    axes
        Names of the axes, in the order of their columns.
    source_hash
        Hash of the kernel's source now.

    Raises
    ------
    InputError
        Where the file has other columns, or rows of another source.
    """

    def __init__(self, path: Path, axes: Sequence[str], source_hash: str) -> None:
        self.path, self.axes, self.source_hash = path, tuple(axes), source_hash
        self.columns = ("kind", *self.axes, "dtype", "cache_state", *STATISTICS)
        self._done: set[Key] = set()
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            self._resume()
        if not path.exists() or path.stat().st_size == 0:
            self._write(self.columns)

    def _resume(self) -> None:
        whole = self.path.read_bytes()
        kept = whole[: whole.rfind(b"\n") + 1]  # a torn row has no end
        if kept != whole:
            os.truncate(self.path, len(kept))
        if not kept:
            return
        reader = csv.DictReader(io.StringIO(kept.decode(), newline=""))
        if tuple(OLD_NAMES.get(name, name) for name in reader.fieldnames or ()) != self.columns:
            raise InputError(
                f"other columns than {', '.join(self.columns)}",
                "Write to another file or delete this one",
                file=self.path,
                line=1,
            )
        for row in reader:
            if row["source_hash"] != self.source_hash:
                raise InputError(
                    f"measured with source {row['source_hash']}, now it is {self.source_hash}",
                    "Measure anew into another file",
                    file=self.path,
                    line=reader.line_num,
                )
            names = ("kind", *self.axes, "dtype", "cache_state")
            self._done.add(tuple(row[name] for name in names))

    def _key(self, spec: Spec) -> Key:
        if set(spec.axes) != set(self.axes):
            raise InputError(
                f"{spec.kind}: axes {sorted(spec.axes)}, the table has {sorted(self.axes)}"
            )
        values = (str(spec.axes[name]) for name in self.axes)
        return (spec.kind, *values, spec.dtype, spec.cache_state)

    def __contains__(self, spec: Spec) -> bool:
        return self._key(spec) in self._done

    def __len__(self) -> int:
        return len(self._done)

    def append(self, measurement: Measurement) -> None:
        """Write a row and sync it to disk."""
        m, spec = measurement, measurement.spec
        if spec.source_hash != self.source_hash:
            raise InputError(
                f"{spec.kind}: source {spec.source_hash}, the table has {self.source_hash}"
            )
        key = self._key(spec)
        values = (
            m.n,
            m.rejected,
            m.mean_s,
            m.low_s,
            m.p50_s,
            m.high_s,
            m.p99_s,
            m.iqr_frac,
            m.unstable,
            spec.bytes_moved,
            m.bytes_per_s,
            spec.source_hash,
        )
        self._write((*key, *("" if value is None else str(value) for value in values)))
        self._done.add(key)

    def _write(self, fields: Sequence[str]) -> None:
        with self.path.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerow(fields)
            file.flush()
            os.fsync(file.fileno())


@dataclass(frozen=True)
class Progress:
    """State of a run after a point; ``eta_s`` is None before the first measured point."""

    done: int
    total: int
    skipped: int
    elapsed_s: float
    eta_s: float | None


def fill(
    table: ResultTable,
    points: Iterable[Spec],
    measure_point: Callable[[Spec], Measurement],
    on_progress: Callable[[Progress], None] = lambda progress: None,
    timer: Callable[[], float] = time.monotonic,
) -> None:
    """Measure the points that the table lacks, each written as soon as it is known."""
    todo = list(points)
    start, measured, skipped = timer(), 0, 0
    for done, spec in enumerate(todo, 1):
        if spec in table:
            skipped += 1
        else:
            table.append(measure_point(spec))
            measured += 1
        elapsed = timer() - start
        rest = sum(1 for later in todo[done:] if later not in table)
        eta = elapsed / measured * rest if measured else None
        on_progress(Progress(done, len(todo), skipped, elapsed, eta))
