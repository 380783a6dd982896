"""Times of points that differ in batch, input and output length alone."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from essim.engines import finish_maxplus
from essim.errors import BadValueError, EssimError
from essim.hardware.profile import HardwareProfile
from essim.methods.selectors import SELECTORS, Selector
from essim.simulate.closed.decode import Decode, Spans
from essim.simulate.closed.draws import drawn_steps_s
from essim.simulate.closed.lines import Tokens, Values
from essim.simulate.closed.room import Room
from essim.simulate.closed.steps import Steps
from essim.simulate.feasible import cannot_route
from essim.simulate.replay import run_prefill
from essim.simulate.scenario import Scenario
from essim.step.kinds import Case
from essim.step.kinds.prefill import PREFILL_KINDS
from essim.text.units import PS_PER_S

Texts = NDArray[np.object_]


@dataclass(frozen=True)
class Block:
    """Points that differ in workload alone: every batch with every load.

    Attributes
    ----------
    point
        One of them.
    batches
        Shape [batches].
    loads
        Input and output tokens, shape [runs, 2].
    """

    point: Scenario
    batches: Tokens
    loads: Tokens

    @cached_property
    def key(self) -> str:
        """All that its times depend on."""
        point = self.point
        parts = (
            point.model,
            point.hardware,
            point.selector,
            point.routing,
            point.memory.reserve_frac,
        )
        return repr((parts, self.batches.tolist(), self.loads.tolist()))

    @property
    def shape(self) -> tuple[int, int]:
        """Batches and runs."""
        return len(self.batches), len(self.loads)

    def at(self, run: int, batch: int = 0) -> Scenario:
        """Return one of the points."""
        tokens = dict(zip(("input_tokens", "output_tokens"), self.loads[run].tolist(), strict=True))
        load = self.point.workload.model_copy(update={"batch": int(self.batches[batch]), **tokens})
        return self.point.model_copy(update={"workload": load})

    @cached_property
    def alike(self) -> tuple[dict[str, tuple[Selector, list[int]]], dict[int, str]]:
        """Runs by their resolved selector, and why others have none."""
        found: dict[str, tuple[Selector, list[int]]] = {}
        bad: dict[int, str] = {}
        for run in range(len(self.loads)):
            point = self.at(run)
            try:
                selector = point.resolved_selector()
            except BadValueError as error:
                bad[run] = f"selector: {error.message}"
                continue
            channels = selector.channels(point.routing.channels, point.model.head_dim)
            found.setdefault(repr((selector, channels)), (selector, []))[1].append(run)
        return found, bad


@dataclass
class Times:
    """Times of a block's points, each of shape [batches, runs]; what there is not is NaN.

    Attributes
    ----------
    why
        Why a point does not run, or an empty string.
    steps
        Decode steps of each run, shape [runs].
    decodes
        Decode runs, with their positions among the block's runs.
    """

    block: Block
    why: Texts
    steps: Tokens
    columns: dict[str, Values] = field(default_factory=dict)
    texts: dict[str, Texts] = field(default_factory=dict)
    decodes: list[tuple[list[int], Decode]] = field(default_factory=list)
    copies_s: Values = field(default_factory=lambda: np.zeros(0))
    attention_s: Values = field(default_factory=lambda: np.zeros(0))
    seed: int = 0

    @cached_property
    def draws_s(self) -> Values | None:
        """The mean step in each draw, shape [batches, runs, draws]; None if none is known."""
        found: Values | None = None
        for runs, decode in self.decodes:
            some = drawn_steps_s(decode, self.seed)
            if some is not None:
                if found is None:
                    found = np.full((*self.block.shape, some.shape[-1]), np.nan)
                found[:, runs] = np.where((self.why == "")[:, runs, None], some, np.nan)
        return found


Prefills = dict[str, tuple[float, float, str]]


def times_of(
    block: Block, profile: HardwareProfile, prefills: Prefills, *, strict: bool, seed: int
) -> Times:
    """Return the times of a block on a profile.

    Parameters
    ----------
    prefills
        Seconds of a sequence's prefill and of its copies, and the sources, of those known so far.
    """
    times = Times(block, reasons(block, profile), block.loads[:, 1] - 1, seed=seed)
    for name in _COLUMNS:
        times.columns[name] = np.full(block.shape, np.nan)
    times.texts = {
        n: np.full(block.shape, None, object) for n in ("price_sources", "prefill_sources")
    }
    times.copies_s, times.attention_s = np.zeros(len(block.loads)), np.full(block.shape, np.nan)
    feasible = (times.why == "").any(axis=0)
    by_run: dict[tuple[str, int], list[int]] = defaultdict(list)
    selectors, _ = block.alike
    for key, (selector, runs) in selectors.items():
        for run in runs:
            tokens = int(block.loads[run, 0])
            kept = selector.kept_prompt_tokens(tokens)
            # Evicted tokens matter to sliding windows alone.
            evicted = tokens - kept if block.point.model.window_tokens else 0
            if feasible[run]:
                by_run[key, evicted].append(run)
    for (key, evicted), runs in by_run.items():
        try:
            _fill(times, profile, selectors[key][0], evicted, runs, prefills, strict)
        except EssimError as error:
            for run in runs:
                times.why[:, run] = np.where(times.why[:, run] == "", str(error), times.why[:, run])
    _rates(times)
    return times


_COLUMNS = (
    *("prefill_s", "decode_s", "step_s", "exposed_routing_s", "gpu_busy_frac", "cpu_busy_frac"),
    *("measured_frac", "step_off_s"),
)


def reasons(block: Block, profile: HardwareProfile) -> Texts:
    """Return why points do not run, or empty strings, shape [batches, runs]."""
    found = np.full(block.shape, "", object)
    most, cannot = block.point.model.max_context_tokens, cannot_route(block.point, profile)
    selectors, bad = block.alike
    for run, why in bad.items():
        found[:, run] = why
    for selector, runs in selectors.values():
        loads = block.loads[runs]
        room = Room(block.at(runs[0]), selector, profile, loads[:, 0], loads[:, 1])
        found[:, runs] = cannot or room.shortages(block.batches[:, None])
        for run, tokens in zip(runs, loads.sum(axis=1).tolist(), strict=True):
            if tokens > most:
                found[:, run] = f"{tokens} tokens exceed the model's context of {most}"
    return found


def _fill(
    times: Times,
    profile: HardwareProfile,
    selector: Selector,
    evicted: int,
    runs: list[int],
    prefills: Prefills,
    strict: bool,
) -> None:
    """Fill in the times of runs with one resolved selector."""
    block = times.block
    for tokens in np.unique(block.loads[runs, 0]):
        run = [run for run in runs if block.loads[run, 0] == tokens]
        once_s, copies_s, sources = _prefill(block.at(run[0]), profile, selector, prefills, strict)
        times.columns["prefill_s"][:, run] = block.batches[:, None] * once_s
        times.texts["prefill_sources"][:, run] = sources
        times.copies_s[run] = copies_s
    runs = [run for run in runs if times.steps[run]]
    if not runs:
        return
    kept = [selector.kept_prompt_tokens(int(block.loads[run, 0])) for run in runs]
    first = np.array(kept, dtype=np.int64) + 1
    spans = Spans(first, first + times.steps[runs] - 1)
    ends = (int(spans.first.min()), int(spans.last.max()))
    steps = Steps(block.at(runs[0]), profile, block.batches, ends, evicted, strict=strict)
    decode = Decode.of(steps, spans, _ticks(profile, steps), times.seed)
    times.decodes.append((runs, decode))
    number, columns = spans.steps, times.columns
    columns["decode_s"][:, runs] = decode.total_s
    columns["step_s"][:, runs] = decode.total_s / number
    columns["step_off_s"][:, runs] = decode.off_s
    columns["exposed_routing_s"][:, runs] = (decode.total_s - decode.unrouted_s) / number
    for device in ("gpu", "cpu"):
        columns[f"{device}_busy_frac"][:, runs] = decode.busy_s[device] / decode.total_s
    columns["measured_frac"][:, runs] = decode.measured_frac
    times.texts["price_sources"][:, runs] = np.array(decode.texts, object)[decode.sources]
    times.attention_s[:, runs] = decode.attention_s


def _rates(times: Times) -> None:
    """Fill in rates; where there is no decode step, decoding takes no time and has no rate."""
    batch, columns = times.block.batches[:, None], times.columns
    columns["decode_s"][:, times.steps == 0] = 0.0
    for name, values in columns.items():
        columns[name] = np.where(times.why == "", values, np.nan)
    for texts in times.texts.values():
        texts[times.why != ""] = None
    columns["tpot_s"] = columns["step_s"]
    columns["decode_tokens_per_s"] = batch / columns["step_s"]
    output = batch * times.block.loads[:, 1]
    columns["output_tokens_per_s"] = output / (columns["prefill_s"] + columns["decode_s"])


def _ticks(profile: HardwareProfile, steps: Steps) -> list[int]:
    """Return the contexts at which a table that prices something on the way has a tick."""
    both = (profile, *([profile.reference] if profile.reference else []))
    names = {price.origin[0] for price in steps.moving_prices() if price.origin}
    found: set[int] = set()
    for table in (one.tables[name] for one in both for name in names if name in one.tables):
        for axis in {"context_tokens", "selected_tokens"} & set(table.axes):
            at = table.axes.index(axis)
            found |= {int(tick) for grid in table.grids.values() for tick in grid.axes[at]}
    return sorted(found)


def _conditions(profile: HardwareProfile) -> list[str]:
    """Return the settings that a table of prefill, of the profile or its reference, is tied to."""
    both = (profile, *([profile.reference] if profile.reference else []))
    names = {*(table for kind in PREFILL_KINDS.values() for table in kind.tables or ())}
    names |= {*PREFILL_KINDS, *(name for kind in SELECTORS.values() for name in kind.tables()[1:])}
    tied = (one.spec.tables[n].holds_for for one in both for n in names if n in one.spec.tables)
    return sorted({key for holds_for in tied for key in holds_for})


def _prefill(
    point: Scenario,
    profile: HardwareProfile,
    selector: Selector,
    known: Prefills,
    strict: bool,
) -> tuple[float, float, str]:
    """Return a sequence's prefill: its time, what its copies add, and the sources of prices."""
    tokens, place = point.workload.input_tokens, point.routing.placement
    asked = Case(point.model, selector, point.routing).settings()
    key = repr(
        (
            *(point.model.name, profile.file, profile.spec.name, tokens, place.hands_over),
            *(
                selector.kept_prompt_tokens(tokens),
                selector.evicts(tokens),
                selector.dense_layers(),
            ),
            *(selector.kind, selector.summary_bytes_per_token_layer(point.model)),
            [asked.get(name) for name in _conditions(profile)],
        )
    )
    if key not in known:
        run = run_prefill(point, profile, finish_maxplus, strict=strict)
        copies = int((run.step_ps - run.unrouted_ps)[0]) / PS_PER_S
        known[key] = (int(run.step_ps[0]) / PS_PER_S, copies, run.sources(1).text)
    return known[key]
