"""RaBitQCache: tokens by one-bit codes, as many as hold a share of the attention."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from essim.methods.selectors.base import Phase, RouteWork, Tokens
from essim.methods.selectors.chosen import ChosenTokens
from essim.model.shape import Count, ModelShape


class RaBitQCache(ChosenTokens):
    """RaBitQCache (2025): tokens by 128-bit codes, top-p: how many depends on the data.

    `top_tokens` is the mean number that holds the share; nothing published gives it, so the default
    is that of the other rows. The last `local_tokens` are not quantised yet and always attended to.
    Two layers are dense. Source: the released vLLM backend, exact for bytes and kernels.
    """

    off_cpu: ClassVar[str] = "the codes that rabitqcache scores are made on the GPU, step by step"
    summary_of: ClassVar[str] = "codes"

    kind: Literal["rabitqcache"] = "rabitqcache"
    dense_layer_count: Count = 2
    local_tokens: int = 256
    code_bytes: Count = 26

    def assumes(self) -> str:
        """Return the mean number of tokens."""
        return f"top-p takes {self.top_tokens} tokens in the mean (assumed)"

    def summary_bytes_per_token_layer(self, model: ModelShape) -> float:
        """Return G x 26: 16 bytes of code, 10 of sums and norms."""
        return float(model.kv_heads * self.code_bytes)

    def route_work(self, model: ModelShape, context: Tokens, channels: int | None) -> RouteWork:
        """Return a rotation of D^2 a KV head, casts of the metadata, and scores of codes.

        Four casts read 10 bytes a token and KV head and write 16; scores read code and metadata;
        then softmax, the search for the share, and the mask.
        """
        tokens = np.asarray(context, dtype=np.float64)
        turn = model.kv_heads * model.head_dim**2
        rotate = Phase("project", 0.0, 2.0 * turn, 2.0 * model.head_dim**2, launches=2)
        casts = Phase("gather", byte_count=26 * model.kv_heads * tokens, launches=4)
        read = tokens * self.summary_bytes_per_token_layer(model)
        flops = 2.0 * tokens * model.kv_width
        return RouteWork((rotate, casts, Phase("scan", read, flops), self.choice(context)))
