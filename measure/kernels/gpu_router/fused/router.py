"""The fused GPU router (``router_fused.cu``): one kernel from query to page indices."""

from __future__ import annotations

import ctypes
import dataclasses
from dataclasses import dataclass

import torch

from essim.errors import InputError
from measure.harness.gpu import stream_handle
from measure.kernels.cuda_build import check, load_cuda
from measure.kernels.gpu_router.stepwise.widen import widen

DIM = 128
SHARED_BYTES = 227 * 1024
SMS = 132


class RouteArgs(ctypes.Structure):
    """Mirror of ``RouteArgs`` in ``router_fused.cu``."""

    _fields_ = [
        (name, ctypes.c_void_p) for name in ("queries", "keys", "summaries", "context", "indices")
    ] + [
        (name, ctypes.c_int32)
        for name in (
            "batch",
            "kv_heads",
            "group",
            "row_pages",
            "page_tokens",
            "top",
            "channels",
            "max_pages",
            "cluster",
            "threads",
            "words",
            "overlap",
        )
    ]


@dataclass(frozen=True)
class Tuning:
    """How the work is spread.

    Parameters
    ----------
    cluster
        Blocks a (sequence, KV head): 1, 2, 4, 8 or 16.
    threads
        Threads a block: 256 or 512.
    words
        32-bit words of 4 pages a lane reads from each channel row: 1, 2 or 4.
    overlap
        Launch before the kernel ahead has ended (programmatic dependent launch).
    """

    cluster: int
    threads: int
    words: int
    overlap: bool = False


def default_tuning(pairs: int, pages: int) -> Tuning:
    """The best of a sweep on an H200 over batch 1..32 and 1,023..3,071 pages.

    ``pairs`` is batch x KV heads.
    """
    cluster = 8 if pairs <= SMS // 8 else 2 if pairs <= SMS // 2 else 1
    share = pages // cluster
    words = 1 if share <= 256 else 2 if share <= 1024 else 4
    if pairs > SMS:
        return Tuning(cluster, 256, 4)
    return Tuning(cluster, 256 if share <= 128 else 512, words)


@dataclass
class FusedRouter:
    """State of one layer's router on the GPU.

    Attributes
    ----------
    queries
        BF16 [batch, kv_heads, group, 128], after RoPE.
    keys
        BF16 [batch, kv_heads, 128] of the current token.
    summaries
        e5m2 codes as uint8 [batch, kv_heads, 2 (min, max), 128, row_pages].
    context
        int32 [batch]: tokens in the cache, the current one included.
    indices
        int32 [batch, kv_heads, top]: pages, best first; -1 where there are fewer.
    """

    queries: torch.Tensor
    keys: torch.Tensor
    summaries: torch.Tensor
    context: torch.Tensor
    indices: torch.Tensor
    page_tokens: int
    channels: int
    max_pages: int
    tuning: Tuning | None = None

    def __post_init__(self) -> None:
        batch, kv_heads, group, dim = self.queries.shape
        rows, top = self.summaries.shape[-1], self.indices.shape[-1]
        rules = (
            (dim == DIM, f"head_dim must be {DIM}"),
            (group <= 8, "at most 8 heads a KV head"),
            (top <= 64, "at most 64 top pages"),
            (0 < self.channels <= DIM, f"channels must be 1..{DIM}"),
            (
                rows % 128 == 0 and rows > self.max_pages,
                "row_pages must be a multiple of 128 above max_pages",
            ),
        )
        for good, message in rules:
            if not good:
                raise InputError(f"fused router: {message}")
        tuning = self.tuning or default_tuning(batch * kv_heads, self.max_pages)
        padded = -(-self.max_pages // 128) * 128
        width = 4 if group <= 4 else 8
        if padded * (width + 1) * 4 + padded * width // 32 * 8 > SHARED_BYTES - 9216:
            raise InputError(f"fused router: {self.max_pages} pages do not fit in shared memory")
        pointer = {
            name: getattr(self, name).data_ptr()
            for name in ("queries", "keys", "summaries", "context", "indices")
        }
        self._args = RouteArgs(
            **pointer,
            batch=batch,
            kv_heads=kv_heads,
            group=group,
            row_pages=rows,
            page_tokens=self.page_tokens,
            top=top,
            channels=self.channels,
            max_pages=self.max_pages,
            cluster=tuning.cluster,
            threads=tuning.threads,
            words=tuning.words,
            overlap=tuning.overlap,
        )

    def __call__(self) -> None:
        """Launch the route and the update by the current token's keys, which is one kernel."""
        self._launch(self.keys.data_ptr())

    def scan(self) -> None:
        """Launch the route alone."""
        self._launch(None)

    def update(self) -> None:
        """Launch the update alone."""
        widen(self.keys, self.summaries, self.context, self.page_tokens)

    def _launch(self, keys: int | None) -> None:
        self._args.keys = keys
        code = load_cuda("router_fused").essim_route_fused(
            ctypes.byref(self._args), ctypes.c_void_p(stream_handle())
        )
        check(code, "fused router")

    def retarget(self, queries: torch.Tensor) -> None:
        """Route from other queries, and into the current ``indices``, from now on."""
        self.queries = queries
        self._args.queries, self._args.indices = queries.data_ptr(), self.indices.data_ptr()

    @property
    def bytes_read(self) -> int:
        """Least bytes of summaries a launch reads at ``max_pages``."""
        batch, kv_heads = self.queries.shape[:2]
        return int(batch * kv_heads) * self.max_pages * self.channels


def random_router(
    batch: int,
    context_tokens: int,
    *,
    kv_heads: int = 8,
    group: int = 4,
    page_tokens: int = 4,
    top: int = 32,
    channels: int = 32,
    tuning: Tuning | None = None,
    like: FusedRouter | None = None,
) -> FusedRouter:
    """A router on fresh random queries, keys and summaries.

    Channels differ in size as real ones do. With ``like`` only the summaries are new: they are what
    a decode step finds cold, the rest has just been written.
    """
    pages = (context_tokens - 1) // page_tokens
    rows = (pages // 128 + 1) * 128
    spread = torch.rand(kv_heads, DIM, 1) * 2 + 0.25
    middle = torch.randn(batch, kv_heads, DIM, rows) * spread
    half = torch.rand(batch, kv_heads, DIM, rows)
    planes = torch.stack([middle - half, middle + half], dim=2)
    summaries = planes.to(torch.float8_e5m2).view(torch.uint8)
    if like is not None:
        return dataclasses.replace(like, summaries=summaries)
    return FusedRouter(
        torch.randn(batch, kv_heads, group, DIM).bfloat16(),
        torch.randn(batch, kv_heads, DIM).bfloat16(),
        summaries,
        torch.full((batch,), context_tokens, dtype=torch.int32),
        torch.full((batch, kv_heads, top), -7, dtype=torch.int32),
        page_tokens,
        channels,
        pages,
        tuning,
    )
