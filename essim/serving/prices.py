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
from essim.step.ops import MAIN_STREAM, decode_step
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
        self.mixed_ops = mixed_step(case.model, case.selector, case.routing, decodes=True)
        self.main_ops = sum(op.stream == MAIN_STREAM for op in self.mixed_ops)
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
        self._layer_rows = LazyCells(lambda rows: self._exact_rows(rows)[0])
        self._outer_rows = LazyCells(lambda rows: self._exact_rows(rows)[1])
        self._heads: dict[int, int] = {}
        self._fixed: dict[int, int] = {}
        self._past_noted = False
        self._mixed: dict[tuple[int, int, int], tuple[int, int]] = {}
        self._kinds: dict[tuple[str, int], int] = {}
        self._vectors: dict[tuple[str, int], Picoseconds] = {}
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
            sum(int(self._time_ps(kind, rows, rows)) * n for kind, n in kinds.items())
            for kinds in (self.layer_kinds, self.outer_kinds)
        )
        return layer, outer

    def rows_ps(self, rows: int) -> tuple[int, int]:
        """Return what the row ops of all layers take, and those outside of them."""
        if rows > _EXACT_ROWS:
            return self._layer_rows.at(rows), self._outer_rows.at(rows)
        return self._exact_rows(rows)

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
            kinds = self.attention_kinds.items()
            total = sum(self._over_contexts(kind, batch) * n for kind, n in kinds)
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
            found = self._exposed[key] = Cells(self._exposed_ps(*key))
        return found

    def _exposed_ps(self, batch: int, beside: int) -> Picoseconds:
        """Return what routing exposes at the ends of cells, in steady state.

        Each step runs twice and the second counts. What is not exposed is the main stream's own
        time without routing.
        """
        rows = batch + beside if beside else self.padded(batch)
        routed = batch if self.place.hands_over or beside else rows
        ops = self.mixed_ops if beside else self.decode_ops
        routing = {op.kind for op in ops if op.kind in KINDS and KINDS[op.kind].part == "routing"}
        if self.place.stream == MAIN_STREAM:
            counts = Counter(op.kind for op in ops if op.kind in routing)
            return np.asarray(sum(self._over_contexts(k, routed) * n for k, n in counts.items()))
        context = self._contexts()
        times = {
            k: np.broadcast_to(self._time_ps(k, routed, rows), context.shape)
            for k in ({op.kind for op in ops} - {"attn_chunk"})
        }
        if beside:
            times["attn_chunk"] = np.full(context.shape, self._prefill.at(beside))
        main = Counter(op.kind for op in ops if op.stream == MAIN_STREAM and op.kind not in routing)
        alone = sum(times[kind] * n for kind, n in main.items())
        twice = {kind: np.repeat(row, 2) for kind, row in times.items()}
        last = [Graph.of(ops).last_main]
        return np.asarray(
            finish_maxplus(ops, [twice[op.kind] for op in ops], last)[0, 1::2] - alone
        )

    def _time_ps(self, kind: str, batch: int, rows: int) -> Picoseconds:
        """Return an op's time: of its rows alone, or at the ends of cells of the context."""
        if kind in self.layer_kinds or kind in self.outer_kinds:
            key = kind, rows
            if key not in self._kinds:
                self._kinds[key] = self._scalar(kind, rows, rows)
            return np.array(self._kinds[key], dtype=np.int64)
        return self._over_contexts(kind, batch)

    def _over_contexts(self, kind: str, batch: int) -> Picoseconds:
        """Return an op's time at the ends of cells of the context, priced once."""
        key = kind, batch
        if key not in self._vectors:
            self._vectors[key] = self._price(kind, Point(batch, batch, self._contexts()))
        return self._vectors[key]

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
