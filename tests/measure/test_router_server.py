"""The router as a server of shared memory: round trip, stop, a worker that died."""

from __future__ import annotations

import gc
import multiprocessing
import time
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from float64 import router as ref

from essim.errors import AbsentError, InputError
from measure.kernels import numbers
from measure.kernels.cpu_router import abi
from measure.kernels.cpu_router.abi import RouterShape
from measure.kernels.cpu_router.library import best_isa, mailbox_layout
from measure.kernels.cpu_router.router import Router
from measure.kernels.numbers import rope_table
from measure.studies.cpu_router import LATENT, sample

SHAPE = abi.RouterShape(2, 2, 4, 2, 64, 4, 400, 8, 16, rank=64)
POISON = 0x7F7F7F7F
LAYOUT = ("positions", "context_tokens", "input", "key_tokens", "keys", "indices")


def view(buffer: Any, offset: int, dtype: Any, *shape: int) -> npt.NDArray[Any]:
    return np.frombuffer(buffer, dtype, int(np.prod(shape)), offset).reshape(shape)


def post(buffer: Any, at: int, word: int, answer_at: int) -> None:
    """Write a request word and wait for its answer, as a device would."""
    view(buffer, at, np.uint64, 1)[0] = word
    deadline = time.monotonic() + 20
    while int(view(buffer, answer_at, np.uint64, 1)[0]) != word & 0xFFFFFFFF:
        assert time.monotonic() < deadline
        time.sleep(0.0005)


def drive(name: str, offsets: dict[str, int], steps: list[tuple[Any, ...]], out: Any) -> None:
    """A client in another process: per step an update of layer 0 and a route of layer 1."""
    memory = SharedMemory(name)
    box, s = memory.buf, SHAPE
    routes = []
    for number, (keys, latent, tokens) in enumerate(steps, 1):
        slot = number % abi.UPDATE_SLOTS
        size = s.batch * s.kv_heads * s.head_dim
        view(box, offsets["keys"] + 2 * slot * size, np.uint16, *keys.shape)[:] = keys
        view(box, offsets["key_tokens"] + 4 * slot * s.batch, np.int32, s.batch)[:] = tokens - 1
        post(box, abi.update_request_at(number), abi.request_word(number, 1), abi.UPDATE_ANSWER)
        view(box, offsets["input"], np.uint16, *latent.shape)[:] = latent
        view(box, offsets["positions"], np.int32, s.batch)[:] = tokens - 1
        view(box, offsets["context_tokens"], np.int32, s.batch)[:] = tokens
        indices = view(box, offsets["indices"], np.int32, s.batch, s.kv_heads, s.top_pages)
        indices[:] = POISON
        post(box, abi.ROUTE_REQUEST, abi.request_word(number, 1, "latent"), abi.ROUTE_ANSWER)
        routes.append(indices.copy())
    out.send(routes)
    del box, indices
    gc.collect()
    memory.close()


@pytest.fixture
def memory() -> Any:
    config = abi.make_config(SHAPE, 2, "e5m2", best_isa(), 256, 0, 1, 1e-5, False)
    block = SharedMemory(create=True, size=mailbox_layout(config).total)
    yield block
    gc.collect()  # views of the block
    block.close()
    block.unlink()


def filled(rng: np.random.Generator, keys: Any, up: Any, **options: Any) -> Router:
    router = Router(SHAPE, 2, pin=False, **options)
    router.set_rope(numbers.rope_table(400, SHAPE.head_dim))
    router.set_up(1, up)
    for sequence in range(SHAPE.batch):
        router.build(1, sequence, keys[sequence])
    return router


def test_another_process_drives_the_server(memory: SharedMemory) -> None:
    rng = np.random.default_rng(11)
    keys = numbers.to_bf16(rng.standard_normal((2, 301, 2, 64)))
    up = numbers.to_bf16(rng.standard_normal((64, 256)) / 8)
    steps = [
        (
            numbers.to_bf16(rng.standard_normal((2, 2, 64))),
            numbers.to_bf16(rng.standard_normal((2, 64))),
            np.array([302 + i, 302 + i], np.int32),
        )
        for i in range(6)
    ]
    with filled(rng, keys, up, mailbox=memory.buf) as server:
        offsets = {name: int(getattr(server.layout, name)) for name in LAYOUT}
        context = multiprocessing.get_context("spawn")
        receive, send = context.Pipe(duplex=False)
        client = context.Process(target=drive, args=(memory.name, offsets, steps, send))
        client.start()
        assert receive.poll(40)
        routes = receive.recv()
        client.join()
    with filled(rng, keys, up) as direct:
        for (new, latent, tokens), route in zip(steps, routes, strict=True):
            direct.update(1, new, tokens - 1)
            expected = direct.route(1, "latent", latent, tokens - 1, tokens)
            np.testing.assert_array_equal(route, expected)


def test_a_bad_request_is_answered_with_an_error(memory: SharedMemory) -> None:
    with Router(SHAPE, 2, pin=False, mailbox=memory.buf):
        post(memory.buf, abi.ROUTE_REQUEST, abi.request_word(1, 99), abi.ROUTE_ANSWER)
        assert int(view(memory.buf, abi.ROUTE_ERROR, np.int32, 1)[0]) == 1
        post(memory.buf, abi.update_request_at(1), abi.request_word(1, 99), abi.UPDATE_ANSWER)
        assert int(view(memory.buf, abi.UPDATE_ERROR, np.int32, 1)[0]) == 1


def test_outstanding_updates_are_all_done(memory: SharedMemory) -> None:
    rng = np.random.default_rng(3)
    keys = numbers.to_bf16(rng.standard_normal((4, 2, 2, 64)))
    with Router(SHAPE, 2, pin=False, mailbox=memory.buf) as server:
        for token in range(4):  # posted without waiting, layers in turn
            slot = (token + 1) % abi.UPDATE_SLOTS
            at = server.layout.keys + 2 * slot * keys[0].size
            view(memory.buf, at, np.uint16, 2, 2, 64)[:] = keys[token]
            view(memory.buf, server.layout.key_tokens + 8 * slot, np.int32, 2)[:] = token // 2
            word = abi.request_word(token + 1, token % 2)
            view(memory.buf, abi.update_request_at(token + 1), np.uint64, 1)[0] = word
        post(memory.buf, abi.update_request_at(4), abi.request_word(4, 1), abi.UPDATE_ANSWER)
        for layer in range(2):
            codes = server.summaries(layer, 1, 2)
            expected = numbers.from_bf16(keys[layer::2, 1])
            np.testing.assert_array_equal(codes[:, 0, 0], ref.to_e5m2(expected.min(axis=0)))
            np.testing.assert_array_equal(codes[:, 0, 1], ref.to_e5m2(expected.max(axis=0)))
        late = abi.request_word(9, 0)  # update 5 was overwritten before it was seen
        post(memory.buf, abi.update_request_at(9), late, abi.UPDATE_ANSWER)
        assert int(view(memory.buf, abi.UPDATE_ERROR, np.int32, 1)[0]) == 5


def test_stop(memory: SharedMemory) -> None:
    one = np.array([1, 1], np.int32)
    with Router(SHAPE, 2, pin=False, mailbox=memory.buf, timeout_s=20) as server:
        assert int(view(memory.buf, abi.ALIVE, np.uint32, 1)[0]) == 2
        view(memory.buf, abi.STOP, np.uint32, 1)[0] = 1
        deadline = time.monotonic() + 20
        while int(view(memory.buf, abi.ALIVE, np.uint32, 1)[0]) and time.monotonic() < deadline:
            time.sleep(0.001)
        assert int(view(memory.buf, abi.ALIVE, np.uint32, 1)[0]) == 0
        with pytest.raises(AbsentError, match="stopped"):
            server.route(0, "query", np.zeros((2, 256), np.uint16), one, one)


def eventually_stalled(server: Router, workers: list[int]) -> bool:
    """A busy machine may keep a live worker off its CPU for a while."""
    return any(server.stalled(0.2) == workers for _ in range(20))


def test_a_worker_that_died_is_detected() -> None:
    one = np.array([1, 1], np.int32)
    query = np.zeros((2, 256), np.uint16)
    with Router(SHAPE, 2, pin=False, timeout_s=0.2) as server:
        assert eventually_stalled(server, [])
        server.lib.essim_stall(server.pool, 1, 1)
        assert eventually_stalled(server, [1])
        with pytest.raises(AbsentError, match=r"stand still: \[(0, )?1\]"):
            server.route(0, "query", query, one, one)


def test_a_mailbox_that_is_too_small_is_refused() -> None:
    with pytest.raises(InputError, match="mailbox of 64 bytes"):
        Router(SHAPE, 1, mailbox=memoryview(bytearray(64)))


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_routes_and_updates_in_flight_never_wait_for_each_other(threads: int) -> None:
    """A share of a KV head may be another worker's: nobody may block on an update meanwhile."""
    shape = RouterShape(
        layers=3,
        batch=1,
        heads=8,
        kv_heads=2,
        head_dim=64,
        page_tokens=4,
        capacity_tokens=512,
        top_pages=8,
        channels=16,
        rank=16,
    )
    with Router(shape, threads, timeout_s=5.0) as router:
        router.set_rope(rope_table(512, 64))
        router.randomize(7)
        seconds = sample(router, LATENT, 512, 0.0, 400, update=True)
    assert len(seconds) == 400
    assert (seconds > 0).all()
