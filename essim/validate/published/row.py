"""A published number beside its prediction, and how far apart they are."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from essim.results.column import Row

FOLDER = Path(__file__).parent

Kind = Literal["exact arithmetic", "table", "headline", "upper bound"]


@dataclass(frozen=True)
class Published:
    """A published number and its prediction, in the same unit.

    Attributes
    ----------
    kind
        ``exact arithmetic`` follows from sizes alone; ``table`` was measured by its authors and is
        one of many; ``headline`` is one number of a setting that is partly known; an ``upper
        bound`` is the best of settings that are not known: a prediction may be below it.
    fitted, fitted_on
        How many parameters were fitted for this prediction, and on how many numbers.
    held_out
        Whether this number is none of these.
    note
        What the prediction rests on besides.
    """

    system: str
    setting: str
    metric: str
    unit: str
    published: float
    predicted: float
    kind: Kind
    fitted: int = 0
    fitted_on: int = 0
    held_out: bool = True
    note: str = ""

    @property
    def error(self) -> float:
        """Return predicted over published less one; of percentages their difference as a fraction.

        Below an upper bound there is no error.
        """
        if self.unit == "%":
            apart = (self.predicted - self.published) / 100
        else:
            apart = self.predicted / self.published - 1
        return max(0.0, apart) if self.kind == "upper bound" else apart

    @property
    def key(self) -> str:
        """What tells it from all others."""
        return f"{self.system}; {self.setting}; {self.metric}"

    def row(self) -> Row:
        """Return it as a row of a table."""
        found: Row = {key: value for key, value in asdict(self).items() if key != "held_out"}
        found["predicted"] = float(f"{self.predicted:.5g}")
        held = "held out" if self.held_out else "fitted on"
        return found | {"error_frac": self.error, "held_out": held if self.fitted else "no fit"}


def read(name: str) -> Iterator[dict[str, str]]:
    """Yield the rows of a file of published numbers."""
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)
