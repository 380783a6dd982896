"""VestigeKV: kept rows, and a scan of the archive with the query of the step before."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from essim.methods.selectors.base import Phase, RouteWork, Tokens, Values, share_of
from essim.methods.selectors.chosen import Chosen, Share
from essim.model.shape import Count, ModelShape


class VestigeKV(Chosen):
    """VestigeKV (2025): 1 of 32 rows kept, the rest scanned with the previous step's query.

    Index of a row: 64 + `rank` values of 2 bytes and 2 more; `recall_frac` of rows are recalled and
    read whole. Published for latent rows (MLA) of 1152 bytes; here a KV head's row takes the place
    of one. Up to `dense_below_tokens` attention reads all. Nothing is evicted.
    Source: the released documents, exact for bytes and kernels of MLA; other models inferred.
    """

    early_loses: ClassVar[str] = (
        "its order of work: its scan uses the query of the step before, early as it is"
    )
    granularity: ClassVar[str] = "row"
    needs: ClassVar[str] = "query of the step before"
    summary_of: ClassVar[str] = "index rows"

    kind: Literal["vestigekv"] = "vestigekv"
    rank: Count = 64
    recall_frac: Share = 1 / 32
    kept_frac: Share = 1 / 32
    dense_below_tokens: Count = 32768

    def assumes(self) -> str:
        """Return the share of rows that is recalled."""
        return f"{self.recall_frac:.1%} of rows are recalled (published)"

    def index_row_bytes(self) -> int:
        """Return bytes of the index that a scan reads of one row: 2 (64 + r) + 2."""
        return 2 * (64 + self.rank) + 2

    def step_bytes(self, row_bytes: float) -> float:
        """Return bytes read a step of one cached row: its index, and the row where recalled."""
        return self.index_row_bytes() + self.recall_frac * row_bytes

    def selected_tokens(self, context: Tokens) -> Tokens:
        """Return the rows that are recalled."""
        return share_of(context, self.recall_frac)

    def attended_tokens(self, context: Tokens) -> Tokens:
        """Return all up to the limit, beyond it rows kept and recalled."""
        some = share_of(context, self.recall_frac + self.kept_frac)
        return np.where(context < self.dense_below_tokens, context, np.minimum(context, some))

    def read_tokens(self, model: ModelShape, context: Tokens) -> Values:
        """Return what is attended to."""
        return np.asarray(self.attended_tokens(context), dtype=np.float64)

    def index_bytes(self, model: ModelShape, context: Tokens) -> Tokens:
        """Return an index of 4 bytes for each row recalled and each KV head."""
        return 4 * model.kv_heads * self.selected_tokens(context)

    def summary_bytes_per_token_layer(self, model: ModelShape) -> float:
        """Return G (2 (64 + r) + 2)."""
        return float(model.kv_heads * self.index_row_bytes())

    def route_work(self, model: ModelShape, context: Tokens, channels: int | None) -> RouteWork:
        """Return the scan of the archive: six kernels, of which one reads the index.

        Below the limit they find nothing to read.
        """
        tokens = np.where(context < self.dense_below_tokens, 0.0, context)
        read = tokens * self.summary_bytes_per_token_layer(model)
        flops = 2.0 * tokens * model.heads * (64 + self.rank)
        chosen = 1.0 * self.selected_tokens(context)
        return RouteWork(
            (
                Phase("gather", launches=2),
                Phase("scan", read, flops),
                Phase("top", launches=3, alone_items=chosen),
            )
        )
