"""The C++ router as a decode loop drives it: it posts, goes on, and takes pages when needed."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from essim.errors import AbsentError, InputError
from measure.kernels.cpu_router import abi
from measure.kernels.cpu_router.router import Codes16, Router


def codes(values: Tensor) -> Codes16:
    """BF16 bits of a tensor."""
    bits: Codes16 = values.bfloat16().contiguous().view(torch.uint16).numpy()
    return bits


class PoolRouting:
    """Routes and summary updates of one decode loop, all sequences of the same length.

    The mailbox holds one route: before the next one is posted, the answer to the one before is
    taken, though its layer may need it only later. It holds `UPDATE_SLOTS` updates; a key waits
    where its slot's last update has not been answered. A route waits for its layer's last update.

    Attributes
    ----------
    queries
        BF16 bits [b, H, D] of the query that the pool made of each layer's latent, if kept.
    routes
        (layer, posted, answered) in seconds of `time.perf_counter`, for tracing; ``answered`` is
        when the main stream first saw the answer.
    """

    def __init__(self, router: Router, *, keep_queries: bool = False) -> None:
        self.router, self._keeps_queries = router, keep_queries
        self.queries: dict[int, Codes16] = {}
        self.routes: list[tuple[int, float, float]] = []
        self._asked: tuple[int, int] | None = None  # layer, ticket
        self._asked_s = self._seen_s = 0.0
        self._taken: dict[int, npt.NDArray[np.int32]] = {}
        self._posted = 0
        self._last_update: dict[int, int] = {}
        s, layout, slots = router.shape, router.layout, abi.UPDATE_SLOTS
        self._position, self._context = np.zeros((2, s.batch), np.int32)
        self._words = self._view(abi.UPDATE_REQUESTS, np.uint64, slots)
        self._answer = self._view(abi.UPDATE_ANSWER, np.uint64, 1)
        self._error = self._view(abi.UPDATE_ERROR, np.int32, 1)
        self._key_tokens = self._view(layout.key_tokens, np.int32, slots, s.batch)
        self._keys = self._view(layout.keys, np.uint16, slots, s.batch, s.kv_heads, s.head_dim)

    def _view(self, offset: int, dtype: Any, *shape: int) -> npt.NDArray[Any]:
        address = self.router.lib.essim_mailbox(self.router.pool) + offset
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return np.frombuffer((ctypes.c_char * size).from_address(address), dtype).reshape(shape)

    def fill(self, layer: int, keys: Tensor) -> None:
        """Build a layer's summaries from keys [b, G, tokens, D], while nothing is outstanding."""
        for sequence, own in enumerate(keys):
            self.router.build(layer, sequence, codes(own.transpose(0, 1)))

    def publish(
        self, layer: int, kind: abi.Kind, values: Tensor, position: int, tokens: int
    ) -> None:
        """Ask for the pages of a layer from a latent or a query [b, width]; does not wait for them.

        `position` is the RoPE position of the newest token, `tokens` the context with it.
        """
        if self._asked is not None:
            self._collect()
        self._wait_update(self._last_update.get(layer, 0))
        self._position[:], self._context[:] = position, tokens
        ticket = self.router.post(layer, kind, codes(values), self._position, self._context)
        self._asked = layer, ticket
        self._asked_s, self._seen_s = time.perf_counter(), 0.0

    def pages(self, layer: int, count: int) -> Tensor:
        """Wait for a layer's pages and return the first `count`, ascending [b, G, count]."""
        if self._asked is not None and self._asked[0] == layer:
            self._collect()
        if layer not in self._taken:
            raise InputError(f"no route of layer {layer} was posted")
        return torch.from_numpy(self._taken.pop(layer)[..., :count])

    def look(self) -> None:
        """Note the time if the outstanding route has been answered (`routes`)."""
        if self._asked is not None and not self._seen_s and self.router.answered(self._asked[1]):
            self._seen_s = time.perf_counter()

    def _collect(self) -> None:
        assert self._asked is not None
        layer, ticket = self._asked
        self._taken[layer] = self.router.collect(ticket)
        if self._keeps_queries:
            self._keep_query(layer)
        self.routes.append((layer, self._asked_s, self._seen_s or time.perf_counter()))
        self._asked = None

    def _keep_query(self, layer: int) -> None:
        s = self.router.shape
        bits = np.empty((s.batch, s.heads, s.head_dim), np.uint16)
        self.router.lib.essim_query(self.router.pool, ctypes.c_void_p(bits.ctypes.data))
        self.queries[layer] = bits

    def post_key(self, layer: int, key: Tensor, slot: int) -> None:
        """Hand over a layer's new key [b, G, D], the cache's token `slot`; does not wait."""
        number = self._posted + 1
        self._wait_update(number - abi.UPDATE_SLOTS)
        at = number % abi.UPDATE_SLOTS
        self._keys[at], self._key_tokens[at] = codes(key), slot
        # The request word goes last; x86, which the pool needs anyway, keeps the order of stores.
        self._words[at] = abi.request_word(number, layer)
        self._posted = self._last_update[layer] = number

    def drain(self) -> None:
        """Wait until nothing is outstanding, and forget pages that nobody took."""
        if self._asked is not None:
            self._collect()
        self._wait_update(self._posted)
        self._taken.clear()

    def _wait_update(self, number: int) -> None:
        if int(self._answer[0]) < number:
            deadline = time.perf_counter() + self.router.timeout_s
            while int(self._answer[0]) < number:
                if time.perf_counter() > deadline:
                    raise AbsentError(
                        f"the CPU router did not update a summary within {self.router.timeout_s} s",
                        f"Workers that stand still: {self.router.stalled() or 'none'}",
                    )
        if self._error[0]:
            raise InputError(f"CPU router: update: {abi.ERRORS[int(self._error[0])]}")
