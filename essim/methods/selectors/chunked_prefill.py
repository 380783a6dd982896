"""Methods that select in a chunked prefill alone; they decode as dense attention does."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from essim.methods.selectors.base import Phase, RouteWork
from essim.methods.selectors.chosen import Share
from essim.methods.selectors.kept import Kept
from essim.model.shape import Count, ModelShape


class ChunkedPrefill(Kept):
    """A prefill in chunks of queries, each against the part of the past that is chosen for it."""

    prefill_only: ClassVar[bool] = True
    unrouted: ClassVar[str] = "it selects in prefill alone, and decodes as dense attention does"
    granularity: ClassVar[str] = "block of 128"
    needs: ClassVar[str] = "queries of a chunk"
    rate_source: ClassVar[str] = "assumed"

    kind: Any
    block_tokens: Count = 128
    density_frac: Share = 0.3

    def assumes(self) -> str:
        """Return the share of causal attention that is computed."""
        return f"{self.density_frac:.1%} of a prompt's attention is computed ({self.rate_source})"

    def prefill_density(self, tokens: int) -> float:
        """Return the share, and the diagonal's blocks besides."""
        return min(1.0, self.density_frac + self.block_tokens / max(tokens, 1))

    def block_scores(self, model: ModelShape, tokens: int) -> Phase:
        """Return scores of every query by mean keys of all blocks before it: half the square."""
        means = tokens / self.block_tokens
        return Phase(
            "scan",
            byte_count=tokens * model.kv_bytes_per_token_layer() / 2.0,
            flops=tokens * means * model.q_width,
            launches=2,
        )


class ByBlocks(ChunkedPrefill):
    """Blocks of 128 whose mean key scores near the best; no sort."""

    kind: Any

    def prefill_work(self, model: ModelShape, tokens: int) -> RouteWork:
        """Return mean keys, H S (S/128) D / 2 multiply-adds, and the mask."""
        return RouteWork((self.block_scores(model, tokens), Phase("gather", launches=1)))


class FlashPrefill(ByBlocks):
    """FlashPrefill (2025): attention over blocks whose mean key scores near the best.

    Source: the released code, exact for its kernels; how many blocks pass depends on the data: as
    many as CompactAttention's speedups over dense attention and over this leave at 128K.
    """

    rate_source: ClassVar[str] = "inferred from published speedups at 128K"

    kind: Literal["flashprefill"] = "flashprefill"
    density_frac: Share = 0.4475


class CompactAttention(ByBlocks):
    """CompactAttention (2025): FlashPrefill's mask as a table of blocks, dense over their union.

    Source: the paper and the released code; the union's share is all that its published speedup
    over dense attention leaves at 128K, 1/2.79.
    """

    rate_source: ClassVar[str] = "inferred from published speedups at 128K"

    kind: Literal["compactattention"] = "compactattention"
    density_frac: Share = 0.358

    def prefill_work(self, model: ModelShape, tokens: int) -> RouteWork:
        """Return FlashPrefill's work and the unions: a flag for each pair of blocks and head."""
        flags = float(model.heads * (tokens / self.block_tokens) ** 2)
        union = Phase("gather", byte_count=flags, launches=2)
        return RouteWork((*super().prefill_work(model, tokens).phases, union))


class QUOKA(ChunkedPrefill):
    """QUOKA (2025): a few unlike queries of a chunk choose 12 % of the past, which is copied.

    Source: the paper (arXiv 2602.08722) and a released port: exact for the copy.
    """

    granularity: ClassVar[str] = "token"

    kind: Literal["quoka"] = "quoka"
    density_frac: Share = 0.12
    chunk_tokens: Count = 2048
    queries_frac: Share = 0.05

    def prefill_work(self, model: ModelShape, tokens: int) -> RouteWork:
        """Return scores of few queries, top-k, and a copy of the chosen KV, for every chunk."""
        chunks = -(-tokens // self.chunk_tokens)
        past = tokens / 2.0
        queries = self.queries_frac * self.chunk_tokens
        row = model.kv_bytes_per_token_layer()
        copied = 4 * self.density_frac * past * row
        scores = 2.0 * queries * past * model.kv_width
        return RouteWork(
            (
                Phase("scan", chunks * past * row / 2, chunks * scores, launches=3.0 * chunks),
                Phase("top", launches=2.0 * chunks, alone_items=np.float64(chunks * past / 8)),
                Phase("gather", byte_count=chunks * copied, launches=2.0 * chunks),
            )
        )
