"""The mailbox between GPU and host, and the stream beside the main one."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from cuda import require_cuda

require_cuda()
torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]

from measure.harness.gpu import capture, replay_s, streams  # noqa: E402
from measure.kernels.cpu_router.abi import UPDATE_SLOTS, request_word  # noqa: E402
from measure.kernels.handover.mailbox import Mailbox  # noqa: E402
from measure.tables.cpu.plan import ROUTER_PLAN  # noqa: E402
from measure.tables.cpu.routing import router_shape  # noqa: E402


@pytest.mark.parametrize("batch", [1, 40])
def test_what_was_published_lies_in_the_mailbox_and_a_take_reads_it(batch: int, check) -> None:
    """That a payload is there before its flag shows in the decode steps: keys change by layer."""
    shape = router_shape(ROUTER_PLAN, batch, 4096)
    context = torch.randint(1, 4096, (batch,), dtype=torch.int32)
    latents = torch.randn(batch, shape.rank).bfloat16()
    keys = torch.randn(batch, shape.kv_heads, shape.head_dim).bfloat16()
    pages = torch.randint(0, 1024, (batch, shape.kv_heads, shape.top_pages), dtype=torch.int32)
    seen = torch.full_like(pages, -1)
    box = Mailbox(shape, 1, context, torch.full((1,), 37, dtype=torch.int32))

    def inside(at: int, like: torch.Tensor) -> torch.Tensor:
        return box.memory[at : at + like.nbytes].view(like.dtype).view(like.shape)

    inside(box.layout.indices, pages).copy_(pages)
    box.answer_ahead()
    post = partial(box.publish, (3, "latent", latents), (2, keys))
    graph = capture([post, partial(box.take, seen)] * 4)
    for _ in range(4):
        graph.replay()
    torch.cuda.synchronize()
    count = 4 + 4 * 4  # each launch is run once before it is captured
    words = box.memory[: 8 * (1 + UPDATE_SLOTS)].view(torch.int64).tolist()
    expected = (request_word(count, 3, "latent"), request_word(count, 2))
    slot = box.layout.keys + count % UPDATE_SLOTS * keys.nbytes
    same = {
        "flags": (words[0], words[1 + count % UPDATE_SLOTS]) == expected,
        "latents": torch.equal(inside(box.layout.input, latents), latents.cpu()),
        "keys": torch.equal(inside(slot, keys), keys.cpu()),
        "positions": torch.equal(inside(box.layout.positions, context), context.cpu() + 36),
        "pages": torch.equal(seen, pages),
    }
    check({name: float(not good) for name, good in same.items()}, 0.0)


def test_the_second_stream_runs_beside_the_first_however_many_were_handed_out(check) -> None:
    _, side = streams()
    others = [torch.cuda.Stream() for _ in range(40)]

    def wait() -> None:
        torch.cuda._sleep(1_000_000)

    def fork() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            wait()
        wait()
        torch.cuda.current_stream().wait_stream(side)

    alone_s, both_s = (float(np.median(replay_s(capture([one]), 9))) for one in (wait, fork))
    check({f"both over one alone, {len(others)} others": both_s / alone_s}, 1.5)
