"""The CPU router driven by the GPU: launches that publish and take, fit for a CUDA graph."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from essim.errors import AbsentError, InputError
from measure.harness.gpu import stream_handle
from measure.kernels.cpu_router.abi import (
    ERRORS,
    KINDS,
    MAX_BATCH,
    ROUTE_ANSWER,
    ROUTE_ERROR,
    Kind,
    RouterShape,
    make_config,
)
from measure.kernels.cpu_router.library import mailbox_layout
from measure.kernels.cpu_router.router import Router
from measure.kernels.cuda_build import check, load_cuda

# With the 0.1 s that it takes to name stalled workers, a dead router ends a run within a second.
LIMIT_S = 0.5
_NO_ANSWER = 1  # as in mailbox.cu


class _Publish(ctypes.Structure):
    """Mirror of ``Publish`` in ``mailbox.cu``."""

    _fields_ = [
        *((n, ctypes.c_void_p) for n in ("box", "state", "context", "evicted", "values", "keys")),
        *(
            (name, ctypes.c_int64)
            for name in ("positions", "context_tokens", "input", "key_tokens", "key_slots")
        ),
        *(
            (name, ctypes.c_int32)
            for name in (
                *("value_words", "key_words", "batch", "layer", "kind"),
                *("key_layer", "update_first"),
            )
        ),
    ]


def library() -> ctypes.CDLL:
    """The compiled ``mailbox.cu``."""
    return load_cuda("mailbox")


class Mailbox:
    """A router's mailbox in mapped pinned memory, as a GPU writes and reads it.

    Parameters
    ----------
    threads
        Workers of the pool that serves it, if there is one.
    context, evicted
        int32 on the GPU: tokens of each sequence [batch], the current one included; tokens between
        a cache slot and its RoPE position [1].

    Attributes
    ----------
    memory, layout
        Its bytes on the host, and where its parts lie.
    """

    def __init__(self, shape: RouterShape, threads: int, context: Tensor, evicted: Tensor) -> None:
        # Where things lie depends on the sizes alone.
        config = make_config(shape, threads, "e5m2", "portable", 65536, 0, 1, 1e-5, False)
        self.layout = layout = mailbox_layout(config)
        self.memory = torch.zeros(layout.total, dtype=torch.uint8, device="cpu").pin_memory()
        self._state = torch.zeros(4, dtype=torch.int32, device=context.device)
        self._context, self._evicted = context, evicted

    def answer_ahead(self) -> None:
        """Without a pool: let every take find its answer, for a thousand million requests."""
        self.memory[ROUTE_ANSWER : ROUTE_ANSWER + 16].view(torch.int64).fill_(1 << 30)

    def publish(
        self,
        route: tuple[int, Kind, Tensor] | None,
        update: tuple[int, Tensor] | None,
        *,
        update_first: bool = True,
    ) -> None:
        """Launch: hand over what routing and updating need, then their flags.

        Parameters
        ----------
        route
            Layer, kind and values [batch, width] of a route, see `Router.route`.
        update
            Layer and its new keys [batch, kv_heads, head_dim].
        """
        layout = self.layout
        layer, kind, values = route or (0, "query", None)
        key_layer, keys = update or (0, None)
        for tensor in (values, keys):
            if tensor is not None and (tensor.nbytes % 16 or not tensor.is_contiguous()):
                raise InputError(f"mailbox: {tensor.nbytes} bytes", "Contiguous, a multiple of 16")
        arguments = _Publish(
            box=self.memory.data_ptr(),
            state=self._state.data_ptr(),
            context=self._context.data_ptr(),
            evicted=self._evicted.data_ptr(),
            values=None if values is None else values.data_ptr(),
            keys=None if keys is None else keys.data_ptr(),
            positions=layout.positions,
            context_tokens=layout.context_tokens,
            input=layout.input,
            key_tokens=layout.key_tokens,
            key_slots=layout.keys,
            value_words=0 if values is None else values.nbytes // 16,
            key_words=0 if keys is None else keys.nbytes // 16,
            batch=len(self._context),
            layer=layer,
            kind=KINDS.index(kind),
            key_layer=key_layer,
            update_first=update_first,
        )
        stream = ctypes.c_void_p(stream_handle())
        check(library().essim_box_publish(ctypes.byref(arguments), stream), "publish")

    def take(self, indices: Tensor | None) -> None:
        """Launch: wait for the last route's answer and for a free update slot; copy the pages."""
        if indices is not None and (indices.nbytes % 16 or not indices.is_contiguous()):
            raise InputError(f"mailbox: {indices.nbytes} bytes", "Contiguous, a multiple of 16")
        code = library().essim_box_take(
            ctypes.c_void_p(self.memory.data_ptr()),
            ctypes.c_void_p(self._state.data_ptr()),
            ctypes.c_int64(self.layout.indices),
            ctypes.c_void_p(None if indices is None else indices.data_ptr()),
            0 if indices is None else indices.nbytes // 16,
            ctypes.c_uint64(int(LIMIT_S * 1e9)),
            ctypes.c_void_p(stream_handle()),
        )
        check(code, "take")


class GpuMailbox(Mailbox):
    """A mailbox with the pool of router threads that serves it."""

    def __init__(
        self, shape: RouterShape, threads: int, context: Tensor, evicted: Tensor, *, pin: bool
    ) -> None:
        super().__init__(shape, threads, context, evicted)
        view = memoryview(self.memory.numpy()).cast("B")
        self.router = Router(shape, threads, pin=pin, mailbox=view)

    def check(self) -> None:
        """Raise for what went wrong in launches that have ended."""
        failed = int(self._state[2])
        if failed == _NO_ANSWER:
            stalled = self.router.stalled()
            raise AbsentError(
                f"the CPU router did not answer within {LIMIT_S:g} s",
                f"Workers that stand still: {stalled or 'none'}",
            )
        errors = self.memory[ROUTE_ERROR : ROUTE_ERROR + 8].view(torch.int32)
        if failed or any(errors.tolist()):
            # The pool may have cleared its error since.
            known = [ERRORS[error] for error in errors.tolist() if error]
            raise InputError(f"CPU router: {known[0] if known else 'it refused a request'}")


def empty() -> None:
    """Launch an empty kernel: what a launch itself costs."""
    check(library().essim_empty(ctypes.c_void_p(stream_handle())), "empty kernel")


def advance(context: Tensor) -> None:
    """Launch: one more token in each sequence, int32 [batch]."""
    if len(context) > MAX_BATCH:
        raise InputError(f"{len(context)} sequences", f"At most {MAX_BATCH}")
    pointer, stream = ctypes.c_void_p(context.data_ptr()), ctypes.c_void_p(stream_handle())
    check(library().essim_advance(pointer, len(context), stream), "advance")


def stamp(times_ns: Tensor, index: int) -> None:
    """Launch: write the GPU's clock into ``times_ns`` int64 [count] at an index."""
    pointer = ctypes.c_void_p(times_ns.data_ptr() + 8 * index)
    check(library().essim_stamp(pointer, ctypes.c_void_p(stream_handle())), "stamp")
