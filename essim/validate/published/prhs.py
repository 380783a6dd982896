"""PrHS Tables IV and V: attention operators and decode throughput on an A100, 120 cells.

Bytes are those of the selectors; what the kernels of that comparison get of the device is fitted on
every third cell in the order of the tables, the same cells of both tables, and predicts the rest.
Neither model nor unit is published: 32 heads of 128 without GQA and a budget of an eighth of the
context (the public operator benchmark it builds on), and tokens a second of the whole batch, which
the tables themselves confirm: dense steps are 32 operators and a constant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from essim.methods.selectors import SELECTORS, Selector
from essim.model.shape import PRESETS
from essim.step.like import least_squares
from essim.validate.published.row import Published, read

Values = NDArray[np.float64]

LAYERS = 32
MODEL = PRESETS["llama-3.1-8b"].model_copy(update={"kv_heads": 32})
# What kernels get of an A100's bandwidth: the profile a100-sxm-80gb.
BYTES_PER_S = 1.733e12
# Shared memory of an A100's multiprocessor (NVIDIA's whitepaper), in tokens of K and V of a head.
ON_CHIP_TOKENS = 164 * 1024 // (2 * 128 * 2)
EFFICIENCIES = ("dense", "latency", "spilling", "scan", "paged")
# Beside the efficiencies: PSAW's share, and of a step what is not attention and the least.
FITTED = len(EFFICIENCIES) + 3
_SHARES = np.arange(0.85, 1.0001, 0.005)
_RESTS_MS = np.arange(10.0, 25.0, 0.25)
_LEASTS_MS = np.arange(25.0, 42.0, 0.5)


@dataclass(frozen=True)
class Cell:
    """An operator of one method at one setting, in both tables."""

    method: str
    selector: str
    block_steps: str
    kernel: str
    batch: int
    context_tokens: int
    operator_ms: float
    tokens_per_s: float

    @property
    def step_ms(self) -> float:
        """Milliseconds of a decode step of the batch."""
        return 1e3 * self.batch / self.tokens_per_s

    def of(self, kept_frac: float) -> Selector:
        """Return the method at this budget."""
        budget = self.context_tokens // 8
        if self.selector == "quest":
            return SELECTORS["quest"].model_validate({"kind": "quest", "budget_tokens": budget})
        given = {"top_tokens": budget, "sink_tokens": 0, "local_tokens": 0, "kept_frac": kept_frac}
        given |= {"block_steps": int(self.block_steps)} if self.block_steps else {}
        fields = SELECTORS[self.selector].model_fields
        own = {key: value for key, value in given.items() if key in fields}
        return SELECTORS[self.selector].model_validate({"kind": self.selector, **own})

    def terms(self, kept_frac: float) -> tuple[Values, float]:
        """Return what each efficiency multiplies, and what none does, in milliseconds.

        A tile kernel loads all chosen K and V of a head at once. What fits on chip is read at the
        device's rate after a latency; of what does not, all but half of what fits is slow.
        """
        selector, context = self.of(kept_frac), np.array([self.context_tokens])
        row = MODEL.kv_bytes_per_token_layer()
        work = selector.route_work(MODEL, context, None)
        read = float(selector.read_tokens(MODEL, context)[0])
        scanned = self.batch * float(np.max(work.read_bytes)) / BYTES_PER_S * 1e3
        attended = self.batch * read * row / BYTES_PER_S * 1e3
        found = dict.fromkeys(EFFICIENCIES, 0.0)
        if self.kernel != "tile":
            return np.array([*(found | {self.kernel: scanned + attended}).values()]), 0.0
        found |= {"latency": 1.0, "scan": scanned}
        if self.context_tokens // 8 <= ON_CHIP_TOKENS:
            return np.array([*found.values()]), attended
        found["spilling"] = attended * (1 - ON_CHIP_TOKENS / 2 / read)
        return np.array([*found.values()]), 0.0


@dataclass(frozen=True)
class Fit:
    """What was fitted: efficiencies, PSAW's share, and a step's rest and least in milliseconds."""

    efficiencies: Mapping[str, float]
    kept_frac: float
    rest_ms: float
    least_ms: float

    def operator_ms(self, cell: Cell) -> float:
        """Return the predicted operator."""
        terms, known = cell.terms(self.kept_frac)
        return float(terms @ np.array([*self.efficiencies.values()]) + known)

    def tokens_per_s(self, cell: Cell) -> float:
        """Return the predicted throughput: 32 operators and the rest, and no less than launches."""
        step_ms = max(self.least_ms, LAYERS * self.operator_ms(cell) + self.rest_ms)
        return 1e3 * cell.batch / step_ms


def cells() -> list[Cell]:
    """Return the cells in the order of the tables."""
    return [
        Cell(
            *(row["method"], row["selector"], row["block_steps"], row["kernel"]),
            *(int(row["batch"]), int(row["context_tokens"])),
            *(float(row["operator_ms"]), float(row["tokens_per_s"])),
        )
        for row in read("prhs.csv")
    ]


def fit(train: Sequence[Cell]) -> Fit:
    """Return the least relative squares over some cells."""
    found, best = None, np.inf
    measured = np.array([cell.operator_ms for cell in train])
    for kept in _SHARES:
        terms, known = zip(*(cell.terms(float(kept)) for cell in train), strict=True)
        values = least_squares([(np.array(terms), measured)], np.array(known))
        off = float(np.sum(((np.array(terms) @ values + known) / measured - 1) ** 2))
        if off < best:
            found, best = (float(kept), values), off
    assert found is not None
    kept_frac, values = found
    whole = Fit(dict(zip(EFFICIENCIES, map(float, values), strict=True)), kept_frac, 0.0, 0.0)
    predicted = LAYERS * np.array([whole.operator_ms(cell) for cell in train])
    steps = np.array([cell.step_ms for cell in train])
    grid = [
        (float(np.sum((np.maximum(least, predicted + rest) / steps - 1) ** 2)), rest, least)
        for rest in _RESTS_MS
        for least in _LEASTS_MS
    ]
    _, rest_ms, least_ms = min(grid)
    return Fit(whole.efficiencies, kept_frac, float(rest_ms), float(least_ms))


def comparisons(first: int = 0) -> Iterator[Published]:
    """Yield both tables, fitted on every third cell from `first` on."""
    all_cells = cells()
    train = all_cells[first::3]
    fitted = fit(train)
    for cell in all_cells:
        setting = f"{cell.method}, batch {cell.batch}, {cell.context_tokens} tokens, A100"
        for metric, unit, published, predicted in (
            ("attention operator", "ms", cell.operator_ms, fitted.operator_ms(cell)),
            ("decode throughput", "tokens/s", cell.tokens_per_s, fitted.tokens_per_s(cell)),
        ):
            yield Published(
                system="PrHS",
                setting=setting,
                metric=metric,
                unit=unit,
                published=published,
                predicted=predicted,
                kind="table",
                fitted=FITTED,
                fitted_on=2 * len(train),
                held_out=cell not in train,
            )
