"""What comes back: a point's result, its memory, and a sweep's rows as a pandas DataFrame."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from essim.errors import AbsentError, InputError
from essim.results.column import Row
from essim.results.columns import COLUMNS, ResultRow, columns_of
from essim.results.files import finite
from essim.simulate.memory import Memory
from essim.simulate.scenario import Scenario
from essim.simulate.sweep import Simulator
from essim.simulate.timeline import Timeline

if TYPE_CHECKING:
    from pandas import DataFrame
    from plotly.graph_objects import Figure


@dataclass(frozen=True, eq=False, repr=False)
class Result(Mapping[str, str | int | float | None]):
    """One simulated point: a mapping of the result columns, such as ``result["step_s"]``.

    Attributes
    ----------
    verdict
        One sentence.
    attrs
        Where it comes from: versions, scenario, profile and its hash, engine, seed, units.
    """

    verdict: str
    attrs: dict[str, Any]
    _row: ResultRow
    _point: Scenario
    _simulator: Simulator

    def __getitem__(self, column: str) -> str | int | float | None:
        value: str | int | float | None = dict[str, Any](self._row)[column]
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._row)

    def __len__(self) -> int:
        return len(self._row)

    def __repr__(self) -> str:
        return f"<essim.Result {self['name']}: {self.verdict}>"

    def breakdown(self) -> list[Row]:
        """Return where a mean decode step goes on the main stream, largest part first.

        Each row has ``part``, ``time_s``, ``share_frac``, ``achieved_bytes_per_s`` (None where an
        op moves nothing) and the price's ``source``. There is none where the point has no decode
        step.
        """
        return [] if self["step_s"] is None else self._simulator.breakdown(self._point)

    def timeline(self, step: int | None = None) -> Timeline:
        """Return decode step 1, 2, ... (default: the middle one), every op with start and end.

        Raises
        ------
        InputError
            If there is no such step.
        """
        steps = self._point.workload.output_tokens - 1
        if self["step_s"] is None:
            raise InputError("there is no decode step to show", self.verdict, key="step")
        if step is not None and not 1 <= step <= steps:
            raise InputError(f"{step} is no decode step", f"1 to {steps}", key="step")
        chosen = step or (steps + 1) // 2
        return Timeline.of(self._simulator.decode(self._point), chosen - 1)

    def plot(self, step: int | None = None) -> Figure:
        """Return a plotly figure of one decode step: a lane a stream, exposed time in red."""
        from reports.step_page import step_figure

        timeline = self.timeline(step)
        title = f"{self['name']}, {self['routing']}, step {timeline.step + 1}"
        return step_figure(timeline.rows(), title, str(self["routing"]))


@dataclass(frozen=True)
class MemoryReport:
    """Where every byte of a point goes.

    Attributes
    ----------
    need
        Bytes by what they hold and where.
    lines
        How each is derived: ``place``, ``what``, ``formula``, ``bytes``.
    largest_batch
        What fits, by where the summary lies.
    facts
        What follows, in sentences.
    """

    need: Memory
    lines: list[Row]
    largest_batch: dict[str, int]
    facts: list[str]


def to_frame(rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Return result rows as a DataFrame whose CSV is that of ``essim sweep --out``.

    Raises
    ------
    AbsentError
        Without pandas.
    """
    pandas = load_pandas()
    columns = {}
    for name in columns_of(rows):
        values = [finite(row.get(name)) for row in rows]
        # Whole numbers stay whole beside missing ones; a swept key's own column is as its values.
        dtypes = {int: "Int64", float: "float64", str: "str"}
        dtype = dtypes[COLUMNS[name].kind] if name in COLUMNS else None
        columns[name] = pandas.Series(values, dtype=dtype)
    return pandas.DataFrame(columns)


def to_rows(frame: DataFrame) -> list[Row]:
    """Return a DataFrame's rows as result rows: all columns are there, None where nothing is."""
    extra = [column for column in frame.columns if column not in COLUMNS]
    whole = frame.reindex(columns=[*extra, *COLUMNS]).astype(object)
    rows: list[Row] = whole.where(whole.notna(), None).to_dict("records")
    return rows


def load_pandas() -> Any:
    """Return pandas, or raise `AbsentError` saying how to get it."""
    try:
        import pandas
    except ModuleNotFoundError:
        message, hint = "a sweep's DataFrame needs pandas", "pip install 'essim[notebook]'"
        raise AbsentError(message, hint) from None
    return pandas
