"""Dense attention: the whole cache, every step, nothing to select."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from essim.methods.selectors.base import Selector, Tokens, Values
from essim.model.shape import ModelShape


class Dense(Selector):
    """Attend to every cached token."""

    query_conditioned: ClassVar[bool] = False
    granularity: ClassVar[str] = "all"
    needs: ClassVar[str] = "nothing"

    kind: Literal["dense"] = "dense"

    def selected_tokens(self, context: Tokens) -> Tokens:
        """Return the whole context."""
        return context

    def attended_tokens(self, context: Tokens) -> Tokens:
        """Return the whole context."""
        return context

    def read_tokens(self, model: ModelShape, context: Tokens) -> Values:
        """Return the whole context."""
        return np.asarray(context, dtype=np.float64)
