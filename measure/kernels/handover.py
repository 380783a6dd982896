"""Publish and await between a CUDA stream and a CPU thread (``handover.cu``)."""

from __future__ import annotations

import ctypes

import numpy as np
import numpy.typing as npt
import torch

from essim.errors import AbsentError, InputError
from measure.gpu import stream_handle
from measure.kernels.cuda_build import check, load_cuda

PAYLOAD_BYTES, INDEX_BYTES = 1 << 20, 1 << 17


def _library() -> ctypes.CDLL:
    library = load_cuda("handover")
    library.essim_channel.restype = ctypes.c_void_p
    library.essim_channel_payload.restype = ctypes.c_void_p
    return library


class Channel:
    """A mapped mailbox with a payload to the CPU and indices back.

    Raises
    ------
    AbsentError
        Where memory cannot be mapped.
    """

    def __init__(self) -> None:
        self._library = _library()
        self._pointer = ctypes.c_void_p(
            self._library.essim_channel(
                ctypes.c_size_t(PAYLOAD_BYTES), ctypes.c_size_t(INDEX_BYTES)
            )
        )
        if not self._pointer:
            raise AbsentError("no mapped pinned memory", "The GPU must map host memory")

    def publish(self, source: torch.Tensor) -> None:
        """Launch: copy ``source`` to the CPU, then count the request flag up."""
        self._check_size(source, PAYLOAD_BYTES)
        check(
            self._library.essim_publish(
                self._pointer,
                ctypes.c_void_p(source.data_ptr()),
                ctypes.c_size_t(source.nbytes),
                ctypes.c_void_p(stream_handle()),
            ),
            "publish",
        )

    def await_answer(self, indices: torch.Tensor) -> None:
        """Launch: spin until the last request is answered, then read ``indices``."""
        self._check_size(indices, INDEX_BYTES)
        check(
            self._library.essim_await(
                self._pointer,
                ctypes.c_void_p(indices.data_ptr()),
                ctypes.c_size_t(indices.nbytes),
                ctypes.c_void_p(stream_handle()),
            ),
            "await",
        )

    @staticmethod
    def _check_size(tensor: torch.Tensor, most: int) -> None:
        if tensor.nbytes % 16 or tensor.nbytes > most or not tensor.is_contiguous():
            raise InputError(
                f"hand-over: {tensor.nbytes} bytes", f"Contiguous, a multiple of 16, at most {most}"
            )

    def serve(self, busy_s: float) -> None:
        """Let a spinning CPU thread answer each request after ``busy_s``."""
        self._library.essim_channel_serve(self._pointer, ctypes.c_double(busy_s))

    def answered(self, ahead: int = 1 << 30) -> None:
        """Without a serving thread: answer the next ``ahead`` requests in advance."""
        self._library.essim_channel_answered(self._pointer, ctypes.c_uint32(ahead))

    def payload(self, size_bytes: int) -> npt.NDArray[np.uint8]:
        """What the CPU sees of the payload, a copy."""
        at = self._library.essim_channel_payload(self._pointer)
        return np.frombuffer(ctypes.string_at(at, size_bytes), dtype=np.uint8)

    def close(self) -> None:
        """Stop the thread and free the memory."""
        self._library.essim_channel_free(self._pointer)


def empty() -> None:
    """Launch an empty kernel: what a launch itself costs."""
    check(_library().essim_empty(ctypes.c_void_p(stream_handle())), "empty kernel")
