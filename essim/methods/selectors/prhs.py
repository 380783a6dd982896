"""PrHS: choices ahead of time (CIS over steps, PSAW and ETF over layers, CPE all of them)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from essim.methods.selectors.base import Phase, RouteWork, Tokens, share_of
from essim.methods.selectors.chosen import Share
from essim.methods.selectors.double_sparsity import Labelled
from essim.methods.selectors.kept import Kept
from essim.model.shape import Count, ModelShape


class Reused(Labelled):
    """A choice by labels that later steps reuse while their queries are like the first.

    A block of `block_steps` queries shares a choice; where a query is unlike the reference it is
    made again, in `drift_frac` of steps: what the published ratio leaves for blocks of 8.
    """

    kind: Any
    block_steps: Count = 8
    drift_frac: Share = 0.039

    def retrieval_frac(self) -> float:
        """Return the share of steps that retrieve: starts of blocks, and drift in between."""
        return min(1.0, 1 / self.block_steps + self.drift_frac)

    def assumes(self) -> str:
        """Return the share that retrieves."""
        return f"{self.retrieval_frac():.1%} of steps retrieve (published for blocks of 8: 16.4 %)"

    def route_work(self, model: ModelShape, context: Tokens, channels: int | None) -> RouteWork:
        """Return a comparison of queries and the widening each step, and the mean of retrievals."""
        found = self.retrieval(model, context).times(self.retrieval_frac())
        chosen = np.minimum(context, self.top_tokens) * 4.0 * model.kv_heads
        alike = Phase("gather", flops=2.0 * model.q_width)
        widened = Phase("gather", byte_count=3 * chosen)
        return RouteWork((Phase("gather"), alike, widened, *found.phases))


class CIS(Reused):
    """CIS of PrHS (2025): Double Sparsity's choice, reused while queries are alike, and widened.

    Source: the paper's tables and text; kernels inferred.
    """

    kind: Literal["cis"] = "cis"


class Windowed(Reused):
    """CIS with PSAW in later layers and ETF in prefill.

    Of what CIS attends to, `kept_frac` lies in the windows of PSAW, in the mean over layers: fitted
    on a third of the published operator cells (`essim.validate.published.prhs`).
    """

    kind: Any
    kept_frac: Share = 0.975
    layers_frac: Share = 0.5
    frozen_frac: Share = 0.5

    def attended_tokens(self, context: Tokens) -> Tokens:
        """Return what CIS attends to, less what lies outside the windows."""
        return share_of(super().attended_tokens(context), self.kept_frac)

    def prefill_density(self, tokens: int) -> float:
        """Return what ETF leaves: 1 - layers x frozen^2."""
        return 1 - self.layers_frac * self.frozen_frac**2


class CPE(Windowed):
    """CPE of PrHS (2025): CIS, with PSAW in later layers and ETF in prefill.

    Source: the paper's tables and text, inferred.
    """

    kind: Literal["cpe"] = "cpe"


class PSAW(Kept):
    """PSAW of PrHS (2025): in later layers a window over the last tokens, known in advance.

    Layers before `dense_layer_count` attend to all; the others to `window_frac` of the context. No
    query is needed and nothing is evicted.
    Source: the paper's text; its schedule over steps is taken as one share, inferred.
    """

    unrouted: ClassVar[str] = "its window is known in advance"
    granularity: ClassVar[str] = "window"

    kind: Literal["psaw"] = "psaw"
    dense_layer_count: Count = 16
    window_frac: Share = 0.5

    def dense_layers(self) -> int:
        """Return `dense_layer_count`."""
        return self.dense_layer_count

    def attended_tokens(self, context: Tokens) -> Tokens:
        """Return the window, a share of the context."""
        return share_of(context, self.window_frac)

    def assumes(self) -> str:
        """Return the share of the context in the window."""
        return f"windows of {self.window_frac:.0%} of the context (assumed)"


class ETF(Kept):
    """ETF of PrHS (2025): in later layers of prefill the early tokens are frozen.

    From layer `first_layer` on the first `frozen_frac` of the prompt is computed no more: its share
    of causal attention, its square, is saved. The saving of GEMMs is not counted.
    Source: the paper's text, inferred.
    """

    prefill_only: ClassVar[bool] = True
    unrouted: ClassVar[str] = "it freezes tokens of the prompt, and decodes as dense attention does"
    granularity: ClassVar[str] = "token"

    kind: Literal["etf"] = "etf"
    layers_frac: Share = 0.5
    frozen_frac: Share = 0.5

    def prefill_density(self, tokens: int) -> float:
        """Return 1 - layers x frozen^2."""
        return 1 - self.layers_frac * self.frozen_frac**2
