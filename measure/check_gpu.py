"""Check every GPU kernel against float64 on random inputs: ``python -m measure.check_gpu``."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch

from essim.methods.selectors.dense import Dense
from measure.decode.gpu import checks as gpu_checks
from measure.decode.shared.prefill import prefill
from measure.decode.shared.reference import float64_step
from measure.harness.gpu import capture, replay_s, require_gpu, streams
from measure.kernels import attention_reference, flow_checks
from measure.kernels.attention.launch import (
    Attention,
    dense_attention,
    random_cache,
    random_pages,
    sparse_attention,
)
from measure.kernels.compare import relative_error
from measure.kernels.cpu_router.abi import UPDATE_SLOTS, request_word
from measure.kernels.gpu_router.exact_topk.router import ExactTopKRouter
from measure.kernels.gpu_router.fused import router as router_fused
from measure.kernels.gpu_router.fused.router import Tuning
from measure.kernels.gpu_router.quest import router as router_quest
from measure.kernels.gpu_router.stepwise import router as router_stepwise
from measure.kernels.handover.mailbox import Mailbox
from measure.kernels.router_checks import check_fused, check_stepwise, floats
from measure.kernels.selector_checks import check_exact_topk, check_quest, check_quest_summaries
from measure.tables.cpu.plan import ROUTER_PLAN
from measure.tables.cpu.routing import router_shape

Row = tuple[str, float, float]
"""Name, error, bound."""

BF16, ATTENTION, PROXY = 4e-3, 1e-2, 1e-2
# Tensor cores add FP8 products up with few bits more than BF16 has.
FP8 = 1e-2


def fused_rows() -> Iterator[Row]:
    """Every tuning, page counts around tile and cluster borders, groups of 1 to 8 heads."""
    tunings = [Tuning(c, t, w) for c, t, w in itertools.product((1, 2, 8, 16), (256, 512), (1, 4))]
    tunings += [Tuning(4, 512, 2), Tuning(2, 512, 4, overlap=True)]
    for i, tuning in enumerate(tunings):
        tokens = (4096, 517, 6147)[i % 3]
        router = router_fused.random_router(2, tokens, kv_heads=2, tuning=tuning)
        router.context[1] = tokens - 2 - 5 * (i % 2)
        for name, error in check_fused(router).items():
            yield f"fused {tuning} {tokens} {name}", error, 1e-4
    for channels, group, tokens in ((128, 4, 2049), (45, 8, 1300), (32, 1, 130), (32, 4, 6)):
        router = router_fused.random_router(
            1, tokens, kv_heads=3, group=group, channels=channels, top=32
        )
        for name, error in check_fused(router).items():
            yield f"fused r={channels} group={group} {tokens} {name}", error, 1e-4
    for top, threads, tokens in ((33, 256, 4096), (48, 512, 6147), (64, 256, 517), (64, 512, 9999)):
        tuning = Tuning(2, threads, 2)
        router = router_fused.random_router(2, tokens, kv_heads=2, top=top, tuning=tuning)
        yield f"fused top={top} {tokens}", check_fused(router)["selection"], 1e-4
    router = router_fused.random_router(2, 40000, kv_heads=1, top=64, page_tokens=4)
    yield "fused 40000 selection", check_fused(router)["selection"], 1e-4


def stepwise_rows() -> Iterator[Row]:
    """Both with and without the channel filter."""
    for tokens, channels in itertools.product((4097, 12288, 130), (32, 128)):
        router = router_stepwise.random_router(2, tokens, kv_heads=2, channels=channels)
        router.context[1] = tokens - 2
        for name, error in check_stepwise(router).items():
            yield f"stepwise r={channels} {tokens} {name}", error, 1e-4


def selector_rows() -> Iterator[Row]:
    """Quest by query and KV head, exact top-k; contexts around pages, chunks and the budget.

    Quest's summaries of a prompt, for pages of several sizes.
    """
    for tokens, shared in itertools.product((6, 2049, 32768, 65530), (False, True)):
        router = router_quest.random_router(2, tokens, kv_heads=2, shared=shared)
        router.context[1] = tokens - 3
        for name, error in check_quest(router).items():
            yield f"quest {tokens} shared={shared} {name}", error, 1e-4
    for tokens, page_tokens in itertools.product((1, 2049, 32768, 40957), (4, 16, 33)):
        error = check_quest_summaries(8, tokens, 128, page_tokens)
        yield f"quest summaries {tokens} page={page_tokens}", error, 0.0
    for tokens, spread in itertools.product((6, 2049, 4096, 32769, 65536), (0, 1, 4)):
        cache = random_cache(2, tokens, kv_heads=2)
        cache.context[1] = tokens - 3
        queries = (spread * torch.randn(2, 2, 4, 128)).bfloat16()
        error = check_exact_topk(ExactTopKRouter(queries, cache, tokens, 2048))
        yield f"exact top-k {tokens} spread={spread}", error, 1e-4


def attention_rows() -> Iterator[Row]:
    """Dense and sparse, with and without splits, block sizes 4 to 32."""
    for tokens, splits in itertools.product((1000, 4097), (1, 7, 0)):
        queries, cache = torch.randn(2, 8, 4, 128).bfloat16(), random_cache(2, tokens)
        op = (
            Attention(queries, cache, splits) if splits else dense_attention(queries, cache, tokens)
        )
        op.cache.context[1] = tokens - 3
        op()
        error = relative_error(floats(op.result), attention_reference.attention(op))
        yield f"attention dense {tokens} splits={splits}", error, ATTENTION
    for block, splits in itertools.product((4, 8, 16, 32), (0, 3)):
        cache, pages = random_cache(2, 1003, block_tokens=block), random_pages(2, 8, 250, 32)
        queries = torch.randn(2, 8, 4, 128).bfloat16()
        op = (
            Attention(queries, cache, splits, pages)
            if splits
            else sparse_attention(queries, cache, pages)
        )
        op()
        error = relative_error(floats(op.result), attention_reference.attention(op))
        yield f"attention sparse block={block} splits={splits}", error, ATTENTION
    queries, cache = torch.randn(2, 8, 4, 128).bfloat16(), random_cache(2, 4003, block_tokens=16)
    op = sparse_attention(queries, cache, random_pages(2, 8, 250, 127), 16)
    op()
    error = relative_error(floats(op.result), attention_reference.attention(op))
    yield "attention sparse page=16 block=16", error, ATTENTION
    yield "attention prefill", flow_checks.check_prefill(2, 4, 1037, 128), ATTENTION


def gemm_rows() -> Iterator[Row]:
    """BF16 and FP8 GEMMs, decode and prefill rows, at sizes of the measured layer."""
    for rows, (n, k) in itertools.product((1, 16, 300), ((6144, 4096), (1024, 14336))):
        yield f"gemm bf16 {rows} {n}x{k}", flow_checks.check_gemm(rows, n, k), BF16
        yield f"gemm fp8 {rows} {n}x{k}", flow_checks.check_gemm(rows, n, k, fp8=True), FP8


def flow_rows() -> Iterator[Row]:
    """The main flow, the projection and stage 1."""
    yield "norm", flow_checks.check_norm(8, 4096), BF16
    yield "rope", flow_checks.check_rope(4, 500, 8, 4, 128), BF16
    yield "silu", flow_checks.check_silu(4, 14336), BF16
    yield "embed and sample", flow_checks.check_ends(4, 128256, 256), 0.0
    yield "down-projection", flow_checks.check_down(8, 4096, 128), BF16
    for width, full in ((4096, True), (128, False)):
        for batch in (1, 20):
            error = flow_checks.check_query(batch, width, 8, 4, 128, full)
            yield f"proxy query k={width} b={batch}", error, PROXY
    yield "summary build", flow_checks.check_summary_build(8, 4097, 128, 4), 0.0
    yield "stage 1", flow_checks.check_stage1(4, 4, 5000, 1024), 1e-2
    yield from gemm_rows()


def handover_rows() -> Iterator[Row]:
    """What a publish wrote is in the mailbox, and its flags; a take reads what lies there.

    That a payload is there before its flag, and an answer before its own, shows in the decode
    steps: their keys and queries change with every layer.
    """
    for batch in (1, 40):
        shape = router_shape(ROUTER_PLAN, batch, 4096)
        context = torch.randint(1, 4096, (batch,), dtype=torch.int32)
        latents = torch.randn(batch, shape.rank).bfloat16()
        keys = torch.randn(batch, shape.kv_heads, shape.head_dim).bfloat16()
        pages = torch.randint(0, 1024, (batch, shape.kv_heads, shape.top_pages), dtype=torch.int32)
        seen = torch.full_like(pages, -1)
        box = Mailbox(shape, 1, context, torch.full((1,), 37, dtype=torch.int32))

        def part(at: int, like: torch.Tensor, box: Mailbox = box) -> torch.Tensor:
            return box.memory[at : at + like.nbytes].view(like.dtype).view(like.shape)

        part(box.layout.indices, pages).copy_(pages)
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
        good = {
            "flags": (words[0], words[1 + count % UPDATE_SLOTS]) == expected,
            "latents": torch.equal(part(box.layout.input, latents), latents.cpu()),
            "keys": torch.equal(part(slot, keys), keys.cpu()),
            "positions": torch.equal(part(box.layout.positions, context), context.cpu() + 36),
            "pages": torch.equal(seen, pages),
        }
        for name, same in good.items():
            yield f"hand-over b={batch}: {name}", float(not same), 0.0


def stream_rows() -> Iterator[Row]:
    """The second stream runs beside the first, however many torch has handed out since."""
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
    yield f"second stream beside the first, {len(others)} others", both_s / alone_s, 1.5


def prefill_rows() -> Iterator[Row]:
    """A prompt's logits are those of a step that takes in its last token."""
    prompt = torch.arange(7, 127)
    with gpu_checks.small("dense") as run:
        cached, logits = prefill(run.weights, Dense(), prompt, run.cache.rope)
        cos_sin = np.stack([floats(part[len(prompt) - 1]) for part in run.cache.rope])
        cache = [(floats(keys), floats(values)) for keys, values in cached]
        last = prompt[-1:].cpu().numpy()
        expected = float64_step(run.weights, last, cache, {}, gpu_checks.PAGE, cos_sin).logits
    error = relative_error(floats(logits), expected)
    yield "decode dense: logits of a prefill", error, gpu_checks.BOUNDS["logits"]


FAMILIES = (
    *(fused_rows, stepwise_rows, selector_rows),
    *(attention_rows, flow_rows, handover_rows, stream_rows, prefill_rows),
    gpu_checks.decode_rows,
)


def main() -> int:
    """Print a row a check; 1 where any fails."""
    require_gpu()
    torch.manual_seed(int(sys.argv[1]) if len(sys.argv) > 1 else torch.seed() % 2**31)
    failed = checked = 0
    for family in FAMILIES:
        for name, error, bound in family():
            good = error <= bound
            checked, failed = checked + 1, failed + (not good)
            if not good:
                print(f"WRONG {name}: {error:.3g} > {bound:.3g}", flush=True)
    print(f"{checked} checks, {failed} wrong, seed {torch.initial_seed()}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
