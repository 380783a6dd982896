"""The CPU router: a pool of spinning C++ threads behind ctypes.

One call updates K-summaries or routes a layer for the whole batch; ctypes releases the GIL. The
pool is a server of a mailbox, so another device can drive it through shared memory instead: it
writes a payload and a request word, and reads the answer word and the page indices
(`Router.layout`, `router_abi.request_word`).

BF16 values travel as uint16 bits (`measure.kernels.numbers.to_bf16`).
"""

from __future__ import annotations

import ctypes
import time
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from essim.errors import AbsentError, InputError
from measure.kernels.cpu_router.abi import ERRORS, KINDS, Kind, RouterShape, make_config
from measure.kernels.cpu_router.library import available_isas, best_isa, library, mailbox_layout
from measure.kernels.numbers import from_bf16, to_bf16

Codes16 = npt.NDArray[np.uint16]
Indices = npt.NDArray[np.int32]


def _array(values: npt.NDArray[Any], dtype: Any, shape: tuple[int, ...], name: str) -> Any:
    """A C-contiguous array that has exactly this type and shape."""
    if values.dtype != dtype or values.shape != shape:
        raise InputError(
            f"CPU router: {name} is {values.dtype}{list(values.shape)}",
            f"It must be {np.dtype(dtype)}{list(shape)}",
        )
    return np.ascontiguousarray(values)


def _pointer(values: npt.NDArray[Any]) -> ctypes.c_void_p:
    return ctypes.c_void_p(values.ctypes.data)


class Router:
    """A pool of router threads and everything they read.

    Parameters
    ----------
    shape
        Sizes of the model, the batch and the selection.
    threads
        Workers; each spins on its own CPU while the router exists.
    storage
        Type of the K-summaries, ``e5m2`` or ``bf16``.
    isa
        One of `ISAS`; the best one if None.
    row_pages
        Consecutive pages of one channel in memory, a multiple of 64; by default all of them.
    prefetch_bytes
        What an idle worker pulls into its L2 cache for the next layer; 0 turns it off.
    prefetch_chunks
        How many chunks of 64 pages scoring prefetches ahead.
    pin
        Pin each worker to a CPU, where there is one for each.
    mailbox
        Writable memory of `mailbox_bytes`, 64-byte aligned, shared with another device or process.
    timeout_s
        When a call gives a worker up.
    """

    def __init__(
        self,
        shape: RouterShape,
        threads: int,
        *,
        storage: str = "e5m2",
        isa: str | None = None,
        row_pages: int = 65536,
        prefetch_bytes: int = 512 << 10,
        prefetch_chunks: int = 3,
        rms_eps: float = 1e-5,
        pin: bool = True,
        mailbox: memoryview | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        self._pool: ctypes.c_void_p | None = None
        self._shared: Any = None
        self.shape, self.threads, self.timeout_s = shape, threads, timeout_s
        self.storage, self.isa = storage, isa or best_isa()
        prefetch = prefetch_bytes, prefetch_chunks
        self.config = make_config(
            shape, threads, storage, self.isa, row_pages, *prefetch, rms_eps, pin
        )
        self.lib = library()
        if not self.lib.essim_has_isa(self.config.isa):
            known = ", ".join(available_isas())
            raise AbsentError(f"this CPU has no {self.isa}", f"It has {known}")
        self.layout = mailbox_layout(self.config)
        self._shared = None if mailbox is None else _shared_bytes(mailbox, self.layout.total)
        address = None if self._shared is None else ctypes.addressof(self._shared)
        pool = self.lib.essim_create(ctypes.byref(self.config), ctypes.c_void_p(address))
        if not pool:
            raise AbsentError("not enough memory or threads for the CPU router")
        self._pool = ctypes.c_void_p(pool)

    def __enter__(self) -> Router:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop and join the workers, free the memory."""
        if self._pool is not None:
            self.lib.essim_destroy(self._pool)
            self._pool = self._shared = None

    @property
    def pool(self) -> ctypes.c_void_p:
        """Handle for the C functions."""
        if self._pool is None:
            raise InputError("CPU router: already closed")
        return self._pool

    def set_up(self, layer: int, up: Codes16) -> None:
        """Up-projection of a layer, BF16 [rank, heads * head_dim]."""
        s = self.shape
        up = _array(up, np.uint16, (s.rank, s.heads * s.head_dim), "up")
        self.lib.essim_set_up(self.pool, self._layer(layer), _pointer(up))

    def set_down(self, layer: int, down: Codes16, norm: Codes16) -> None:
        """Down-projection, BF16 [hidden, rank], and the weight of the layer's RMSNorm [hidden].

        The norm's weight is folded into the projection, which is rounded to BF16 once more.
        """
        s = self.shape
        down = _array(down, np.uint16, (s.hidden, s.rank), "down")
        norm = _array(norm, np.uint16, (s.hidden,), "norm")
        rows = fold_norm(down, norm)
        self.lib.essim_set_down(self.pool, self._layer(layer), _pointer(rows))

    def set_rope(self, table: npt.NDArray[np.float32]) -> None:
        """Cosines and sines, [positions, 2, head_dim / 2] (`reference.rope_table`)."""
        table = _array(table, np.float32, (len(table), 2, self.shape.head_dim // 2), "table")
        self.lib.essim_set_rope(self.pool, _pointer(table), ctypes.c_int64(len(table)))

    def build(self, layer: int, sequence: int, keys: Codes16) -> None:
        """Summaries of a whole sequence from its keys, BF16 [tokens, kv_heads, head_dim]."""
        s = self.shape
        keys = _array(keys, np.uint16, (len(keys), s.kv_heads, s.head_dim), "keys")
        if not 0 <= sequence < s.batch or len(keys) > s.capacity_tokens:
            raise InputError("CPU router: sequence or token count out of range")
        self.lib.essim_build(
            self.pool, self._layer(layer), sequence, _pointer(keys), ctypes.c_int64(len(keys))
        )

    def update(self, layer: int, keys: Codes16, tokens: Indices) -> None:
        """Append one key a sequence.

        Parameters
        ----------
        keys
            BF16 [batch, kv_heads, head_dim].
        tokens
            Index of the new token in each sequence, int32 [batch].
        """
        s = self.shape
        keys = _array(keys, np.uint16, (s.batch, s.kv_heads, s.head_dim), "keys")
        tokens = _array(tokens, np.int32, (s.batch,), "tokens")
        self._check(
            self.lib.essim_update(
                self.pool, layer, _pointer(keys), _pointer(tokens), ctypes.c_double(self.timeout_s)
            )
        )

    def route(
        self, layer: int, kind: Kind, values: Codes16, positions: Indices, tokens: Indices
    ) -> Indices:
        """Choose the pages of a layer.

        Parameters
        ----------
        kind
            What ``values`` holds, BF16: post-RoPE ``query`` [batch, heads * head_dim], ``latent``
            [batch, rank], or the anchor's ``hidden`` state [batch, hidden].
        positions
            RoPE position of each sequence, int32 [batch].
        tokens
            Context length of each sequence, the current token included, int32 [batch].

        Returns
        -------
        Page indices [batch, kv_heads, top_pages], ascending, -1 where there are fewer pages. The
        tail page is never among them.
        """
        return self.collect(self.post(layer, kind, values, positions, tokens))

    def post(
        self, layer: int, kind: Kind, values: Codes16, positions: Indices, tokens: Indices
    ) -> int:
        """Ask for a route and return its ticket at once; one may be outstanding."""
        s = self.shape
        width = {"query": s.heads * s.head_dim, "latent": s.rank, "hidden": s.hidden}[kind]
        values = _array(values, np.uint16, (s.batch, width), "values")
        positions = _array(positions, np.int32, (s.batch,), "positions")
        tokens = _array(tokens, np.int32, (s.batch,), "tokens")
        ticket: int = self.lib.essim_post(
            self.pool,
            layer,
            KINDS.index(kind),
            _pointer(values),
            _pointer(positions),
            _pointer(tokens),
        )
        return ticket

    def answered(self, ticket: int) -> bool:
        """Whether a posted route has its answer."""
        return bool(self.lib.essim_answered(self.pool, ctypes.c_uint32(ticket)))

    def collect(self, ticket: int) -> Indices:
        """Wait for a posted route and return its page indices, as `route` does."""
        s = self.shape
        out = np.empty((s.batch, s.kv_heads, s.top_pages), np.int32)
        self._check(
            self.lib.essim_collect(
                self.pool, ctypes.c_uint32(ticket), _pointer(out), ctypes.c_double(self.timeout_s)
            )
        )
        return out

    def randomize(self, seed: int) -> None:
        """Fill every layer with plausible noise, for timing."""
        self.lib.essim_randomize(self.pool, seed)

    def summaries(self, layer: int, sequence: int, tokens: int) -> npt.NDArray[Any]:
        """Codes [kv_heads, pages, 2, head_dim] of min and max, the open page included."""
        s = self.shape
        pages = -(-tokens // s.page_tokens)
        dtype = np.uint8 if self.storage == "e5m2" else np.uint16
        out = np.empty((s.kv_heads, pages, 2, s.head_dim), dtype)
        self.lib.essim_read(
            self.pool, self._layer(layer), sequence, ctypes.c_int64(tokens), _pointer(out)
        )
        return out

    def stalled(self, interval_s: float = 0.1) -> list[int]:
        """Workers whose heartbeat stood still during ``interval_s``."""
        before = self._heartbeats()
        time.sleep(interval_s)
        return [int(i) for i in np.flatnonzero(self._heartbeats() == before)]

    def _heartbeats(self) -> npt.NDArray[np.uint64]:
        address = self.lib.essim_mailbox(self.pool) + self.layout.heartbeat
        raw = (ctypes.c_uint64 * (8 * self.threads)).from_address(address)
        return np.array(raw[::8], dtype=np.uint64)

    def _layer(self, layer: int) -> int:
        if not 0 <= layer < self.shape.layers:
            raise InputError(f"CPU router: no layer {layer}")
        return layer

    def _check(self, code: int) -> None:
        if code == 0:
            return
        if code == -2:
            raise AbsentError("the CPU router was stopped")
        if code == -1:
            stalled = self.stalled()
            raise AbsentError(
                f"the CPU router did not answer within {self.timeout_s:g} s",
                f"Workers that stand still: {stalled or 'none'}",
            )
        raise InputError(f"CPU router: {ERRORS[code]}")


def fold_norm(down: Codes16, norm: Codes16) -> Codes16:
    """RMSNorm's weight times the down-projection, as BF16 rows [rank, hidden]."""
    return np.ascontiguousarray(to_bf16((from_bf16(down) * from_bf16(norm)[:, None]).T))


def _shared_bytes(mailbox: memoryview, size_bytes: int) -> Any:
    if mailbox.nbytes < size_bytes:
        raise InputError(f"CPU router: mailbox of {mailbox.nbytes} bytes", f"It needs {size_bytes}")
    shared = (ctypes.c_char * mailbox.nbytes).from_buffer(mailbox)
    if ctypes.addressof(shared) % 64:
        raise InputError("CPU router: mailbox is not aligned to 64 bytes")
    return shared
