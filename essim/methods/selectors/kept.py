"""Methods that keep some tokens and route nothing in a step: one family, a name each."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from essim.methods.selectors.base import Phase, RouteWork, Selector, Tokens, Values, share_of
from essim.methods.selectors.chosen import Share, Some
from essim.model.shape import Count, ModelShape


class Kept(Selector):
    """Attends to all that it keeps. Without its own rule it keeps everything."""

    query_conditioned: ClassVar[bool] = False
    granularity: ClassVar[str] = "token"
    needs: ClassVar[str] = "nothing in a step"

    kind: Any

    def selected_tokens(self, context: Tokens) -> Tokens:
        """Return what is attended to."""
        return self.attended_tokens(context)

    def attended_tokens(self, context: Tokens) -> Tokens:
        """Return all that is cached."""
        return context

    def read_tokens(self, model: ModelShape, context: Tokens) -> Values:
        """Return what is attended to."""
        return np.asarray(self.attended_tokens(context), dtype=np.float64)


class SnapKV(Kept):
    """SnapKV (Li et al., 2024): the prompt's tokens that its last queries attend to.

    Stage 1 of RocketKV, whose code it shares: the last 32 tokens stay, the others by pooled
    attention of theirs. Source: the released code, exact.
    """

    unrouted: ClassVar[str] = "it chooses once, after prefill"
    needs: ClassVar[str] = "prompt's last queries"

    kind: Literal["snapkv"] = "snapkv"
    prompt_budget: Count = 4096

    def kept_prompt_tokens(self, input_tokens: int) -> int:
        """Return min(input, prompt_budget): what is generated stays."""
        return min(input_tokens, self.prompt_budget)


class TwinKV(Kept):
    """TwinKV (2025): the prompt's tokens by value energy, less what distant keys repeat.

    Half of the prompt stays by default. Source: the abstract alone; the work of its choice, K
    against K, is not priced beyond stage 1's.
    """

    unrouted: ClassVar[str] = "it chooses once, after prefill"
    needs: ClassVar[str] = "prompt's keys and values"

    kind: Literal["twinkv"] = "twinkv"
    kept_frac: Share = 0.5

    def kept_prompt_tokens(self, input_tokens: int) -> int:
        """Return the kept share of the prompt."""
        return max(1, round(self.kept_frac * input_tokens))


class Budgeted(Kept):
    """A cache that never grows past a budget."""

    kind: Any
    top_tokens: Count = 2048
    local_tokens: Some = 0

    def most_tokens(self) -> int:
        """Return the budget."""
        return self.top_tokens + self.local_tokens

    def cached_tokens(self, tokens: int) -> int:
        """Return no more than the budget."""
        return min(tokens, self.most_tokens())

    def attended_tokens(self, context: Tokens) -> Tokens:
        """Return no more than the budget."""
        return np.minimum(context, self.most_tokens())


class H2O(Budgeted):
    """H2O (Zhang et al., 2023): heavy hitters by summed attention, and the last tokens.

    The cache never grows past both. Each step adds its attention weights to the sums and evicts the
    least. Source: the paper (arXiv 2306.14048) and its released code, exact.
    """

    unrouted: ClassVar[str] = "it chooses what to evict after attention, by the step's own weights"
    needs: ClassVar[str] = "own attention weights"
    summary_of: ClassVar[str] = "summed weights"

    kind: Literal["h2o"] = "h2o"

    def summary_bytes_per_token_layer(self, model: ModelShape) -> float:
        """Return 4 H: a sum of each head."""
        return 4.0 * model.heads

    def after_work(self, model: ModelShape, context: Tokens) -> RouteWork:
        """Return the sums read and written with the weights read, then the least of them."""
        kept = self.attended_tokens(context)
        moved = 3 * kept * self.summary_bytes_per_token_layer(model)
        return RouteWork((Phase("gather", byte_count=moved), Phase("top", alone_items=kept * 1.0)))

    def prefill_work(self, model: ModelShape, tokens: int) -> RouteWork:
        """Return the sums over all queries, inferred: scores of the causal half once more."""
        keys = tokens * model.kv_bytes_per_token_layer() / 2
        return RouteWork((Phase("scan", keys, float(tokens) ** 2 * model.q_width),))


class CORE(Budgeted):
    """CORE (2025): what an indexer keeps, and a latent memory of what it evicted.

    Each step attends to the kept tokens and `memory_tokens` latent slots; the indexer runs when a
    window of tokens is full, and is not priced. Source: the abstract alone.
    """

    unrouted: ClassVar[str] = "it chooses when it evicts, not in a step"
    needs: ClassVar[str] = "keys that are evicted"

    kind: Literal["core"] = "core"
    memory_tokens: Some = 64

    def most_tokens(self) -> int:
        """Return the budget and the latent slots."""
        return super().most_tokens() + self.memory_tokens

    def after_work(self, model: ModelShape, context: Tokens) -> RouteWork:
        """Return the normalisation by memory and tokens: one small kernel."""
        return RouteWork((Phase("gather", byte_count=4.0 * model.q_width),))


class KAP(Kept):
    """KAP of GraphSpec (2025): an access plan compiled before decoding; its drafting is left out.

    A step reads `read_frac` of the cache, published for proposals at 128K. Nothing is evicted.
    Source: the abstract alone: this is a bound on what a plan without any routing costs.
    """

    unrouted: ClassVar[str] = "its plan is compiled before decoding"
    granularity: ClassVar[str] = "block"
    needs: ClassVar[str] = "a plan of the request"

    kind: Literal["kap"] = "kap"
    read_frac: Share = 0.055

    def assumes(self) -> str:
        """Return the share of the cache that is read."""
        return f"{self.read_frac:.1%} of the cache is read (published at 128K)"

    def attended_tokens(self, context: Tokens) -> Tokens:
        """Return the share of the context that the plan lists."""
        return share_of(context, self.read_frac)
