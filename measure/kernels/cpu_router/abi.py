"""What Python and the C++ router agree on: shapes, the configuration, the mailbox."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from essim.errors import InputError

if TYPE_CHECKING:
    from essim.model.shape import ModelShape

Kind = Literal["query", "latent", "hidden"]

ISAS = ("portable", "avx2", "avx512", "avx512bf16", "amx")
STORAGES = ("e5m2", "bf16")
KINDS = ("query", "latent", "hidden")
MAX_BATCH, MAX_HEAD_DIM, MAX_GROUP = 64, 256, 16
ERRORS = {
    1: "layer out of range",
    2: "token count out of range",
    3: "position out of range",
    4: "input of a kind this router has no weights for",
    5: "more updates outstanding than the mailbox has slots",
}


@dataclass(frozen=True)
class Pages:
    """How pages are chosen: tokens a page, pages a KV head, channels that scoring reads."""

    page_tokens: int
    top: int
    channels: int


@dataclass(frozen=True)
class RouterShape:
    """What is routed. ``rank`` and ``hidden`` may be 0 where queries arrive ready."""

    layers: int
    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    page_tokens: int
    capacity_tokens: int
    top_pages: int
    channels: int
    rank: int = 0
    hidden: int = 0

    @staticmethod
    def of(
        model: ModelShape, batch: int, capacity_tokens: int, pages: Pages, rank: int
    ) -> RouterShape:
        """Return the sizes for a model; without early queries `rank` is 0."""
        return RouterShape(
            layers=model.layers,
            batch=batch,
            heads=model.heads,
            kv_heads=model.kv_heads,
            head_dim=model.head_dim,
            page_tokens=pages.page_tokens,
            capacity_tokens=capacity_tokens,
            top_pages=pages.top,
            channels=pages.channels,
            rank=rank,
        )

    def check(self) -> None:
        """Raise InputError for what the kernels cannot do."""
        rules = (
            (0 < self.layers < 65536, "layers must be 1..65535"),
            (0 < self.batch <= MAX_BATCH, f"batch must be 1..{MAX_BATCH}"),
            (self.kv_heads > 0 and self.heads > 0, "heads and kv_heads must be positive"),
            (
                self.kv_heads > 0 and self.heads % self.kv_heads == 0,
                "heads must be a multiple of kv_heads",
            ),
            (self.heads <= MAX_GROUP * self.kv_heads, f"at most {MAX_GROUP} heads a KV head"),
            (
                0 < self.head_dim <= MAX_HEAD_DIM and self.head_dim % 32 == 0,
                f"head_dim must be a multiple of 32, at most {MAX_HEAD_DIM}",
            ),
            (0 < self.channels <= self.head_dim, "channels must be 1..head_dim"),
            (
                self.page_tokens > 0 and self.top_pages > 0 and self.capacity_tokens > 0,
                "page_tokens, top_pages and capacity_tokens must be positive",
            ),
            (self.rank >= 0 and self.rank % 2 == 0, "rank must be even"),
            (self.hidden >= 0 and self.hidden % 32 == 0, "hidden must be a multiple of 32"),
            (self.rank > 0 or self.hidden == 0, "a down-projection needs a rank"),
        )
        for good, message in rules:
            if not good:
                raise InputError(f"CPU router: {message}")


class Config(ctypes.Structure):
    """Mirror of ``Config`` in ``router/layout.h``."""

    _fields_ = [
        (name, ctypes.c_int32)
        for name in (
            "layers",
            "batch",
            "heads",
            "kv_heads",
            "head_dim",
            "rank",
            "hidden",
            "page_tokens",
            "capacity_tokens",
            "top_pages",
            "channels",
            "storage",
            "row_pages",
            "threads",
            "isa",
            "pin",
            "prefetch_bytes",
            "prefetch_chunks",
        )
    ] + [("rms_eps", ctypes.c_float)]


class Layout(ctypes.Structure):
    """Mirror of ``MailboxLayout``: byte offsets of the parts of a mailbox.

    The head of a mailbox is fixed: route request 0, update requests from 8, route answer 64,
    update answer 72, route error 80, update error 84, stop 128, workers alive 192.
    """

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            "total",
            "heartbeat",
            "positions",
            "context_tokens",
            "input",
            "key_tokens",
            "keys",
            "indices",
        )
    ]


ROUTE_REQUEST, UPDATE_REQUESTS, ROUTE_ANSWER, UPDATE_ANSWER = 0, 8, 64, 72
ROUTE_ERROR, UPDATE_ERROR, STOP, ALIVE = 80, 84, 128, 192
UPDATE_SLOTS, SPANS = 4, 4096


def make_config(
    shape: RouterShape,
    threads: int,
    storage: str,
    isa: str,
    row_pages: int,
    prefetch_bytes: int,
    prefetch_chunks: int,
    rms_eps: float,
    pin: bool,
) -> Config:
    """The C configuration, checked."""
    shape.check()
    if threads < 1 or row_pages < 64 or row_pages % 64 or min(prefetch_bytes, prefetch_chunks) < 0:
        raise InputError(
            "CPU router: threads, row_pages or prefetching out of range",
            "row_pages is a multiple of 64",
        )
    if storage not in STORAGES or isa not in ISAS:
        raise InputError(
            f"CPU router: unknown storage {storage!r} or instruction set {isa!r}",
            f"Known: {', '.join(STORAGES)}; {', '.join(ISAS)}",
        )
    return Config(
        **vars(shape),
        storage=STORAGES.index(storage),
        row_pages=row_pages,
        threads=threads,
        isa=ISAS.index(isa),
        pin=pin,
        prefetch_bytes=prefetch_bytes,
        prefetch_chunks=prefetch_chunks,
        rms_eps=rms_eps,
    )


def request_word(sequence: int, layer: int, kind: Kind = "query") -> int:
    """A request: the client counts ``sequence`` up by one a request, each word on its own."""
    return sequence & 0xFFFFFFFF | layer << 32 | KINDS.index(kind) << 48


def update_request_at(sequence: int) -> int:
    """Byte offset of the request word of an update: updates take turns in `UPDATE_SLOTS` slots."""
    return UPDATE_REQUESTS + 8 * (sequence % UPDATE_SLOTS)
