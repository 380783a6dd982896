"""What steps of a server cost: lines in whole picoseconds, from the tables that price a run.

A step is the main stream's time if routing took none, which is a sum over its ops, and what
routing exposes, which an engine finds on the same list of ops. Attention and a CPU router see the
mean context of the sequences that decode (all their tokens, all their pages); a router on the GPU
waits for the longest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from essim.engines import finish_maxplus
from essim.engines.graph import Graph
from essim.hardware.profile import HardwareProfile
from essim.serving.lines import CELL_TOKENS, Cells, LazyCells, ends_of_cells
from essim.serving.load import Chunk
from essim.simulate.replay import to_ps
from essim.step.kinds import KINDS, Case, Point
from essim.step.mixed import mixed_step
from essim.step.ops import MAIN_STREAM, Op, decode_step
from essim.step.price import SOURCES, CostModel

# Rows up to here are priced one by one, as batches are measured.
_EXACT_ROWS = 256
# The window beside a chunk is that beside the next smaller of these: never longer than it is.
_CHUNKS = (0, 32, 128, 512, 2048, 8192)

Picoseconds = NDArray[np.int64]


@dataclass(frozen=True)
class StepSettings:
    """What a server does to its steps.

    Attributes
    ----------
    longest_tokens
        No cache holds more.
    graph_batches
        Batches that CUDA graphs exist of: decode steps are padded to the next. Empty: none is.
    room_tokens
        Routers on the GPU are launched for so long a context, whatever is there; 0 is the longest
        of the batch.
    host_ps
        What the host takes between any two steps.
    eager_op_ps
        What the host takes to launch an op of a step with a chunk, which no graph holds.
    link_shares
        Replicas that share the link to the host.
    """

    longest_tokens: int
    graph_batches: tuple[int, ...] = ()
    room_tokens: int = 0
    host_ps: int = 0
    eager_op_ps: int = 0
    link_shares: int = 1


@dataclass
class StepPrices:
    """Prices of a model's steps on a machine, with a selector and a routing.

    Attributes
    ----------
    sources
        The worst source of every op kind priced so far.
    """

    profile: HardwareProfile
    case: Case
    settings: StepSettings
    strict: bool = False
    sources: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        case = self.case
        self.costs = CostModel(self.profile, case, strict=self.strict)
        self.decode_ops = decode_step(case.model, case.selector, case.routing)
        mixed = mixed_step(case.model, case.selector, case.routing, decodes=True)
        self.main_ops = sum(op.stream == MAIN_STREAM for op in mixed)
        # Row ops are those whose time hangs on the rows of the step alone.
        flow = [op for op in self.decode_ops if KINDS[op.kind].part == "flow"]
        flow = [op for op in flow if op.kind not in ("head", "host")]
        self.layer_kinds = Counter(op.kind for op in flow if op.layer is not None)
        self.outer_kinds = Counter(op.kind for op in flow if op.layer is None)
        self.attention_kinds = Counter(
            op.kind for op in self.decode_ops if KINDS[op.kind].part == "attention"
        )
        self.layers = case.model.layers
        summarised = case.selector.summary_bytes_per_token_layer(case.model) > 0
        self.summaries = (self.layers - case.selector.dense_layers()) * summarised
        self.place = case.routing.placement
        self.routed = any(op.stage == "route" for op in self.decode_ops)
        self.host_kind_ps = self._scalar("host", 1, 1)
        self._rows: dict[int, tuple[int, int]] = {}
        self._layer_rows = LazyCells(lambda rows: self._exact_rows(rows)[0])
        self._outer_rows = LazyCells(lambda rows: self._exact_rows(rows)[1])
        self._heads: dict[int, int] = {}
        self._fixed: dict[int, int] = {}
        self._past_noted = False
        self._mixed: dict[tuple[int, int, int], tuple[int, int]] = {}
        self._attention: dict[int, Cells] = {}
        self._exposed: dict[tuple[int, int], Cells] = {}
        self._prefill = LazyCells(lambda n: self._scalar("attn_prefill", 1, n))
        self._stage1 = LazyCells(lambda n: self._scalar("stage1_select", 1, n))
        self._summary = LazyCells(lambda n: self._scalar("summary_build", 1, n))
        self._norm = LazyCells(lambda n: self._scalar("norm", n, n))
        self._copy = LazyCells(lambda n: self._scalar("summary_d2h", 1, n))

    def _price(self, kind: str, point: Point) -> Picoseconds:
        price = self.costs.price(kind, point)
        self._note(kind, int(price.rank.max()))
        return to_ps(price.mean_s)

    def _note(self, kind: str, rank: int) -> None:
        known = SOURCES.index(self.sources[kind]) if kind in self.sources else 0
        self.sources[kind] = SOURCES[max(rank, known)]

    def _scalar(self, kind: str, batch: int, rows: int) -> int:
        return int(self._price(kind, Point(batch, rows, np.array([rows], dtype=np.int64)))[0])

    def _exact_rows(self, rows: int) -> tuple[int, int]:
        """Return what so many rows take in one layer and outside of the layers, times layers."""
        layer, outer = (
            sum(self._scalar(kind, rows, rows) * n for kind, n in kinds.items())
            for kinds in (self.layer_kinds, self.outer_kinds)
        )
        return layer, outer

    def rows_ps(self, rows: int) -> tuple[int, int]:
        """Return what the row ops of all layers take, and those outside of them."""
        if rows not in self._rows:
            if rows <= _EXACT_ROWS:
                self._rows[rows] = self._exact_rows(rows)
            else:
                self._rows[rows] = self._layer_rows.at(rows), self._outer_rows.at(rows)
        return self._rows[rows]

    def head_ps(self, samples: int) -> int:
        """Return the LM head's time for so many sequences."""
        if samples not in self._heads:
            self._heads[samples] = self._scalar("head", samples, samples) if samples else 0
        return self._heads[samples]

    def padded(self, batch: int) -> int:
        """Return the batch of the graph that decodes so many sequences."""
        return next((size for size in self.settings.graph_batches if size >= batch), batch)

    def _cells_of(self, batch: int) -> Cells:
        """Return the lines of a decode step's attention over the mean context."""
        if batch not in self._attention:
            at = Point(batch, batch, self._contexts())
            total = sum(self._price(kind, at) * n for kind, n in self.attention_kinds.items())
            self._attention[batch] = Cells(np.asarray(total))
        return self._attention[batch]

    def _contexts(self) -> Picoseconds:
        return ends_of_cells(-(-(self.settings.longest_tokens + 1) // CELL_TOKENS))

    def exposed(self, batch: int, chunk_tokens: int) -> Cells:
        """Return the lines of what routing exposes, over the context that it goes by."""
        if self.place.stream == MAIN_STREAM:
            chunk_tokens = 0  # nothing to hide behind
        key = batch, _CHUNKS[bisect_right(_CHUNKS, chunk_tokens) - 1]
        found = self._exposed.get(key)
        if found is None:
            found = self._exposed[key] = Cells(self._exposed_ps(*key, self._contexts()))
        return found

    def _exposed_ps(self, batch: int, beside: int, contexts: Picoseconds) -> Picoseconds:
        """Return what routing exposes in steady state: each step runs twice, the second counts."""
        case, rows = self.case, self.padded(batch)
        ops: tuple[Op, ...] = self.decode_ops
        if beside:
            ops, rows = (
                mixed_step(case.model, case.selector, case.routing, decodes=True),
                (batch + beside),
            )
        routed = batch if self.place.hands_over or beside else rows
        at = Point(routed, rows, np.repeat(contexts, 2))
        prices = {k: self._price(k, at) for k in {op.kind for op in ops} if k != "attn_chunk"}
        if beside:
            prices["attn_chunk"] = np.full(at.context_tokens.shape, self._prefill.at(beside))
        last, zero = [Graph.of(ops).last_main], np.zeros_like(at.context_tokens)
        free = [
            zero if op.kind in KINDS and KINDS[op.kind].part == "routing" else prices[op.kind]
            for op in ops
        ]
        whole = finish_maxplus(ops, [prices[op.kind] for op in ops], last)[0, 1::2]
        return np.asarray(whole - finish_maxplus(ops, free, last)[0, 1::2])

    def routing_line(
        self, batch: int, mean: int, longest: int, chunk_tokens: int = 0
    ) -> tuple[int, int, int]:
        """Return (value, slope, steps) of what routing exposes."""
        if not self.routed:
            return 0, 0, CELL_TOKENS
        cells = self.exposed(batch, chunk_tokens)
        if self.settings.room_tokens and not self.place.hands_over:
            return cells.line(self.settings.room_tokens)[0], 0, CELL_TOKENS
        tokens = mean if self.place.hands_over else longest
        return *cells.line(tokens), CELL_TOKENS - (tokens - 1) % CELL_TOKENS

    def decode_line(self, batch: int, mean: int, longest: int) -> tuple[int, int, int]:
        """Return a decode step's time, its growth a step, and for how many steps so."""
        fixed = self._fixed.get(batch)
        if fixed is None:
            size = self.padded(batch)
            fixed = sum(self.rows_ps(size)) + self.head_ps(size) + self.host_kind_ps
            self._fixed[batch] = fixed = fixed + self.settings.host_ps
        value, slope = self._cells_of(batch).line(mean)
        exposed, growth, steps = self.routing_line(batch, mean, longest)
        left = CELL_TOKENS - (mean - 1) % CELL_TOKENS
        return fixed + value + exposed, slope + growth, min(steps, left)

    def chunk_attention_ps(self, size: int, past: int) -> int:
        """Return one layer's attention of a chunk over itself and what is before it.

        That is what the whole prompt's causal attention takes more with the chunk than without, so
        the chunks of a prompt sum to its prefill; no less than the chunk takes alone.
        """
        alone = self._prefill.at(size)
        if not past:
            return alone
        if not self._past_noted:
            self._past_noted = True
            self._note("attn_prefill", SOURCES.index("scaled"))
        more = self._prefill.at(past + size) - self._prefill.at(past)
        return more if more > alone else alone

    def chunk_step(self, batch: int, mean: int, longest: int, chunks: Sequence[Chunk]) -> int:
        """Return the time of a step with chunks: one list of ops, GEMMs over all of its rows."""
        size, ended, in_layers = 0, [], 0
        for tokens, past, prompt in chunks:
            size += tokens
            in_layers += self.chunk_attention_ps(tokens, past)
            if prompt:
                ended.append(prompt)
        in_layers *= self.layers
        of_rows, total = self._shared(batch, size, len(ended))
        in_layers += of_rows
        for prompt in ended:
            if self.case.selector.evicts(prompt):
                in_layers += self.layers * self._stage1.at(prompt)
            if self.summaries:
                in_layers += self.summaries * self._summary.at(prompt)
        if batch:
            in_layers += self._cells_of(batch).line(mean)[0]
            total += self.routing_line(batch, mean, longest, size)[0]
        total += in_layers
        if ended:
            total += self._copies_ps(ended, in_layers // self.layers, batch + size)
        return max(total, self.main_ops * self.settings.eager_op_ps)

    def _shared(self, batch: int, size: int, ended: int) -> tuple[int, int]:
        """Return what a step's rows take in the layers, and what is outside of them."""
        key = batch, size, ended
        found = self._mixed.get(key)
        if found is None:
            of_rows, outer = self.rows_ps(batch + size)
            outer += self.head_ps(batch + ended) + self.settings.host_ps
            found = self._mixed[key] = of_rows, outer + (self.host_kind_ps if batch else 0)
        return found

    def _copies_ps(self, ended: Sequence[int], layer_ps: int, rows: int) -> int:
        """Return what summaries that go to the host's router add before the head, a layer each."""
        if not (ended and self.summaries and self.place.hands_over):
            return 0
        copy_ps = sum(self._copy.at(prompt) for prompt in ended) * self.settings.link_shares
        copies = self.summaries
        behind_ps = max(copy_ps, copies * copy_ps - (copies - 1) * layer_ps)
        return max(0, behind_ps - self._norm.at(rows))


@dataclass(frozen=True)
class Scaled:
    """Prices of which every one is off alike."""

    prices: StepPrices
    millionths: int

    def decode_line(self, batch: int, mean: int, longest: int) -> tuple[int, int, int]:
        """Return a decode step's line, off by the factor."""
        first, growth, steps = self.prices.decode_line(batch, mean, longest)
        return first * self.millionths // 10**6, growth * self.millionths // 10**6, steps

    def chunk_step(self, batch: int, mean: int, longest: int, chunks: Sequence[Chunk]) -> int:
        """Return the time of a step with chunks, off by the factor."""
        return self.prices.chunk_step(batch, mean, longest, chunks) * self.millionths // 10**6
