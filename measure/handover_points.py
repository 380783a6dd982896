"""Points of the hand-over between GPU and CPU: flags, payloads, round trips and plain copies."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

import torch

from measure.gpu import Launch
from measure.gpu_points import Point, spec
from measure.kernels.handover import Channel, empty


def handover_points() -> Iterator[Point]:
    """Launch floor, publish, await and both with the answer long there, and the round trip."""
    yield spec("launch", 0, "hot", size_bytes=0, part="empty"), lambda: [empty] * 64
    for size_bytes, part in itertools.product((256, 8192, 65536), ("publish", "await", "both")):
        yield (
            spec("handover", 0, "hot", size_bytes=size_bytes, part=part),
            partial(make_handovers, size_bytes, part, None),
        )
    for busy_us in (0, 10, 50):
        yield (
            spec("handover", 0, "hot", size_bytes=8192, part=f"round_trip_{busy_us}us"),
            partial(make_handovers, 8192, "both", busy_us * 1e-6),
        )
    for size_bytes in (256, 8192, 65536, 1 << 20, 32 << 20):
        for part in ("d2h", "h2d"):
            yield (
                spec("copy", 0, "hot", size_bytes=size_bytes, part=part),
                partial(make_copies, size_bytes, part),
            )


def make_copies(size_bytes: int, part: str) -> list[Launch]:
    """Launches of a copy between GPU and pinned memory."""
    here = torch.empty(size_bytes, dtype=torch.uint8)
    there = torch.empty(size_bytes, dtype=torch.uint8, device="cpu").pin_memory()
    source, target = (here, there) if part == "d2h" else (there, here)
    return [partial(target.copy_, source, non_blocking=True)] * 64


CHANNELS: list[Channel] = []


def make_handovers(size_bytes: int, part: str, busy_s: float | None) -> list[Launch]:
    """Launches on a channel of their own, answered in advance or by a thread."""
    for old in CHANNELS:
        old.close()
    CHANNELS[:] = [channel := Channel()]
    source, indices = torch.zeros(size_bytes, dtype=torch.uint8), torch.zeros(256).int()
    if busy_s is None:
        channel.answered()
    else:
        channel.serve(busy_s)

    def both() -> None:
        channel.publish(source)
        channel.await_answer(indices)

    launches: dict[str, Launch] = {
        "publish": lambda: channel.publish(source),
        "await": lambda: channel.await_answer(indices),
        "both": both,
    }
    return [launches[part]] * 64
