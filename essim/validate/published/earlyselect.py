"""EarlySelectKV's gains and memory on the RTX 6000D (its Figures 8, 11 and 12).

The steps are essim's, with prices carried over to that GPU. Three factors may be fitted: of what
GPU routing adds to the baseline's step, of what hand-over adds to the early one's, and of prefill.
The two decode gains of 40K prompts give the first two, the two end-to-end gains there the third.
The other three gains and both memory numbers are held out. The model is not named by its authors:
Llama-3.1-8B.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from essim.hardware.profile import HardwareProfile
from essim.results.column import Row
from essim.simulate.memory import memory
from essim.simulate.plan import points_of
from essim.simulate.scenario import Scenario
from essim.simulate.sweep import Simulator
from essim.text.units import PS_PER_S
from essim.text.yaml import Document
from essim.validate.published.row import Published

Values = NDArray[np.float64]

HARDWARE = "rtx-6000d-xeon-8481c"
LONG_TOKENS, SHORT_TOKENS = 40960, 8192
OUTPUTS = (128, 8192)
BATCHES = (1, 2, 4, 8)
_LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
# Published percentages: end to end and decode alone, of 40K prompts, by output length.
END_TO_END = {128: 1.3, 8192: 12.4}
DECODE = {128: 7.67, 8192: 13.14}
BATCHED_LOW, BATCHED_HIGH, BATCHED_SHORT = 10.5, 12.1, 0.0
POOL_SHARE, POOL_GIBIBYTES = 11.1, 5.3
# TensorRT-LLM's default share of free memory for its pools.
_POOL_FRAC = 0.9
_PREFILLS = np.arange(0.5, 2.5, 0.01)


@dataclass(frozen=True)
class Run:
    """Seconds of a run with GPU routing and of one with early CPU routing.

    Attributes
    ----------
    bare_s
        Each step without routing or hand-over.
    routing_s, handover_s
        What they add.
    prefill_s
        Of the whole batch.
    """

    bare_s: Values
    routing_s: Values
    handover_s: Values
    prefill_s: float


@dataclass(frozen=True)
class Factors:
    """What was fitted; 1 is what essim predicts without."""

    routing: float = 1.0
    handover: float = 1.0
    prefill: float = 1.0

    def gain(self, run: Run, outputs: int, *, decode_only: bool = False) -> float:
        """Return how much more tokens a second early routing makes, in percent."""
        steps = outputs - 1
        bare_s = float(run.bare_s[:steps].sum())
        late_s = bare_s + self.routing * float(run.routing_s[:steps].sum())
        early_s = bare_s + self.handover * float(run.handover_s[:steps].sum())
        prefill_s = 0.0 if decode_only else self.prefill * run.prefill_s
        return 100 * ((late_s + prefill_s) / (early_s + prefill_s) - 1)


def point(routing: str, batch: int, input_tokens: int, outputs: int = 8192) -> Scenario:
    """Return the published setting: 4096 tokens kept, 32 pages of 4."""
    selector = {"kind": "rocketkv", "prompt_budget": 4096, "page_tokens": 4, "top_pages": 32}
    data = {
        **{"name": "earlyselect", "model": "llama-3.1-8b", "hardware": HARDWARE},
        **{"selector": selector | {"kv_block_tokens": 32}, "routing": routing},
        "workload": {"batch": batch, "input_tokens": input_tokens, "output_tokens": outputs},
    }
    return points_of(Document(Path("<published>"), data, {}))[0]


def run(simulator: Simulator, batch: int, input_tokens: int) -> Run:
    """Simulate both at one setting."""
    late, early = (point(name, batch, input_tokens) for name in ("gpu-target", "cpu-mid"))
    slow, fast = simulator.decode(late), simulator.decode(early)
    return Run(
        slow.unrouted_ps / PS_PER_S,
        (slow.step_ps - slow.unrouted_ps) / PS_PER_S,
        (fast.step_ps - slow.unrouted_ps) / PS_PER_S,
        batch * int(simulator.prefill(late).step_ps[0]) / PS_PER_S,
    )


def fit(long: Run) -> Factors:
    """Return the factors from the four gains of 40K prompts.

    Decode gains are linear in the first two factors, so they are met exactly. The third comes
    nearest to both end-to-end gains, in points.
    """
    rows, right = [], []
    for outputs, percent in DECODE.items():
        steps = outputs - 1
        share = 1 + percent / 100
        routing_s, handover_s = long.routing_s[:steps].sum(), long.handover_s[:steps].sum()
        rows.append([routing_s, -share * handover_s])
        right.append((share - 1) * long.bare_s[:steps].sum())
    routing, handover = np.linalg.solve(np.array(rows), np.array(right))
    tried = [Factors(float(routing), float(handover), float(prefill)) for prefill in _PREFILLS]

    def apart(factors: Factors) -> float:
        return sum((factors.gain(long, n) - percent) ** 2 for n, percent in END_TO_END.items())

    return min(tried, key=apart)


def comparisons(simulator: Simulator) -> Iterator[Published]:
    """Yield seven gains and two memory numbers, fitted, and the gains without any fit."""
    long = run(simulator, 1, LONG_TOKENS)
    short = {batch: run(simulator, batch, SHORT_TOKENS) for batch in BATCHES}
    for factors, fitted in ((Factors(), 0), (fit(long), 3)):
        how = "as essim predicts it" if not fitted else "with three factors"
        yield from _gains(long, short, factors, fitted, how)
    yield from _memory(simulator.profile(HARDWARE))


def _gains(
    long: Run, short: dict[int, Run], factors: Factors, fitted: int, how: str
) -> Iterator[Published]:
    batched = [factors.gain(short[batch], 8192) for batch in BATCHES]
    found = [
        (f"40K, {n} tokens out", what, known[n], factors.gain(long, n, decode_only=alone), False)
        for what, known, alone in (("end to end", END_TO_END, False), ("decode", DECODE, True))
        for n in OUTPUTS
    ]
    short_gain = factors.gain(short[8], 128)
    found += [
        ("8K, 8192 out, least of batches", "end to end", BATCHED_LOW, min(batched), True),
        ("8K, 8192 out, most of batches", "end to end", BATCHED_HIGH, max(batched), True),
        ("8K, 128 out, batch 8", "end to end", BATCHED_SHORT, short_gain, True),
    ]
    for setting, what, published, predicted, held_out in found:
        yield Published(
            system="EarlySelectKV",
            setting=f"{setting}, RTX 6000D, {how}",
            metric=f"{what} gain",
            unit="%",
            published=published,
            predicted=predicted,
            kind="table",
            fitted=fitted,
            fitted_on=4 if fitted else 0,
            held_out=held_out or not fitted,
        )


def curves(simulator: Simulator) -> list[Row]:
    """Return Figures 8 and 11 over output length, and 12 over the batch, with what is published.

    Both without a fit and with it. Of Figure 12 only the range over batches is published: its ends
    stand at both ends of the axis.
    """
    long, rows = run(simulator, 1, LONG_TOKENS), list[Row]()
    short = {batch: run(simulator, batch, SHORT_TOKENS) for batch in BATCHES}
    ranges = {min(BATCHES): BATCHED_LOW, max(BATCHES): BATCHED_HIGH}
    for line, factors in (("as predicted", Factors()), ("three factors fitted", fit(long))):
        for name, decode_only, known in (
            ("Figure 8, end to end, 40K input", False, END_TO_END),
            ("Figure 11, decode alone, 40K input", True, DECODE),
        ):
            for n in _LENGTHS:
                gain = factors.gain(long, n, decode_only=decode_only)
                rows.append(_dot(name, line, "output tokens", n, gain, known.get(n)))
        for batch in BATCHES:
            name = "Figure 12, end to end, 8K input, 8192 output"
            gain = factors.gain(short[batch], 8192)
            rows.append(_dot(name, line, "batch", batch, gain, ranges.get(batch)))
    return rows


def _dot(figure: str, line: str, axis: str, x: int, gain: float, published: float | None) -> Row:
    own: Row = {"figure": figure, "line": line, "axis": axis, "x": x}
    return own | {"gain_percent": gain, "published": published}


def _memory(profile: HardwareProfile) -> Iterator[Published]:
    """Yield the summary's share of the pool, and its bytes where the pool is what is left free."""
    at = point("gpu-target", 1, LONG_TOKENS)
    need = memory(at, profile)
    summary = need.summary_gpu_bytes
    share = 100 * summary / (need.kv_bytes + summary)
    yield Published(
        system="EarlySelectKV",
        setting="any model with KV in 16 bits",
        metric="summaries of the pool",
        unit="%",
        published=POOL_SHARE,
        predicted=share,
        kind="exact arithmetic",
    )
    free = profile.spec.gpu.memory_bytes.value - need.weight_bytes - need.activation_bytes
    yield Published(
        system="EarlySelectKV",
        setting="40K, RTX 6000D, pool of 90 % of what is free",
        metric="GPU memory saved",
        unit="GiB",
        published=POOL_GIBIBYTES,
        predicted=_POOL_FRAC * free * share / 100 / 2**30,
        kind="headline",
        note="the pool's size is not published",
    )
