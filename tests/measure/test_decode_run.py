"""The decode run against float64: what it is fed, what it chooses, what comes out."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

from decodes import CHANNELS, MIX, PAGE, ROUTED, TINY, tiny  # noqa: E402
from float64.decode import float64_step, step_errors  # noqa: E402
from float64.errors import floats  # noqa: E402

from essim.errors import InputError  # noqa: E402
from essim.methods.selectors.dense import Dense  # noqa: E402
from essim.step.ops import decode_step  # noqa: E402
from measure.decode.shared.kv_cache import THETA  # noqa: E402
from measure.decode.shared.prefill import prefill  # noqa: E402
from measure.decode.shared.weights import Weights  # noqa: E402
from measure.kernels.flow import cpu as flow  # noqa: E402

# Sums in fp32; queries in BF16 where the router makes or gets them; scores within fp32 rounding.
LIMITS = {"logits": 2e-5, "input": 1e-5, "query": 1e-2, "selection": 1e-3}


def errors_of_a_step(loop) -> dict[str, float]:
    taken_in = loop.sampled.clone()
    loop.step()
    return step_errors(loop, taken_in, CHANNELS, PAGE)


def assert_sound(errors: dict[str, float]) -> None:
    assert {name: error for name, error in errors.items() if error > LIMITS[name]} == {}


@pytest.mark.parametrize("mode", ROUTED)
def test_every_step_feeds_chooses_and_attends_as_defined(mode: str) -> None:
    with tiny(mode) as loop:
        loop.set_position(101, evicted_tokens=37)
        for _ in range(9):  # over two page borders
            errors = errors_of_a_step(loop)
            assert set(errors) >= {"logits", "query", "selection"}
            assert_sound(errors)
        assert loop.tokens == 110


@pytest.mark.parametrize("mode", ["dense", *ROUTED])
def test_steps_after_a_prefill_are_sound(mode: str) -> None:
    with tiny(mode) as loop:
        loop.prefill(90)
        kept = 90 if mode == "dense" else 48
        assert (loop.tokens, loop.cache.evicted_tokens) == (kept, 90 - kept)
        for _ in range(5):
            assert_sound(errors_of_a_step(loop))


def test_prefill_gives_the_logits_of_a_step_over_the_rest_of_the_prompt() -> None:
    weights, prompt = Weights.random(TINY, 5), torch.arange(7, 47)
    rope = flow.rope_table(64, TINY.head_dim, THETA)
    cached, logits = prefill(weights, Dense(), prompt, rope)
    cache = [(floats(keys), floats(values)) for keys, values in cached]
    cos_sin = np.stack([floats(part[39]) for part in rope])
    step = float64_step(weights, np.array([46]), cache, {}, PAGE, cos_sin)
    np.testing.assert_allclose(floats(logits), step.logits, rtol=1e-3, atol=1e-4)


def test_prefill_evicts_what_the_attention_of_the_last_queries_says() -> None:
    with tiny("dense") as whole, tiny("gpu-target") as loop:
        whole.prefill(90)
        loop.prefill(90)
        for layer in range(TINY.layers):
            full, kept = whole.cache.keys(layer), loop.cache.keys(layer)
            for b, g in np.ndindex(2, TINY.kv_heads):
                same = (full[b, g][:, None] == kept[b, g][None]).all(-1)
                at = same.nonzero()[:, 0]
                assert len(at) == 48
                assert at[-32:].tolist() == list(range(58, 90))
        torch.testing.assert_close(whole.logits, loop.logits)


@pytest.mark.parametrize("mode", ROUTED)
def test_with_pages_for_the_whole_context_logits_are_those_of_dense(mode: str) -> None:
    with tiny("dense") as dense, tiny(mode, top_pages=40) as loop:
        for run in (dense, loop):
            run.set_position(97)
        for _ in range(4):
            dense.step()
            loop.step()
            torch.testing.assert_close(loop.logits, dense.logits, rtol=1e-4, atol=1e-5)
        assert loop.selected(2).shape == (2, 2, 25)


@pytest.mark.parametrize("mode", ["cpu-in", "cpu-mid"])
def test_early_modes_choose_what_the_proxy_of_their_own_anchor_chooses(mode: str) -> None:
    """And not what the other anchor's proxy would choose: the two definitions differ."""
    other = {"cpu-in": "cpu-mid", "cpu-mid": "cpu-in"}[mode]
    with tiny(mode) as loop, tiny(other) as wrong:
        for run in (loop, wrong):
            run.set_position(120)
        assert_sound(errors_of_a_step(loop))
        wrong.step()
        differ = [loop.selected(i).tolist() != wrong.selected(i).tolist() for i in (1, 2, 3)]
        assert any(differ)


def test_mix_uses_each_target_layers_own_anchor() -> None:
    with tiny("cpu-mix") as loop, tiny("cpu-in") as early, tiny("cpu-mid") as middle:
        for run in (loop, early, middle):
            run.set_position(120)
            run.step()
        # Layers up to the first difference of the runs see the same hidden states.
        assert MIX[0] == "in"
        assert torch.equal(loop.captured[1].anchor, early.captured[1].anchor)
        assert not torch.equal(loop.captured[1].anchor, middle.captured[1].anchor)


def test_pages_differ_between_steps_sequences_heads_and_layers() -> None:
    with tiny("gpu-target", batch=3) as loop:
        loop.set_position(140)
        seen = []
        for _ in range(6):
            loop.step()
            for layer in (1, 2, 3):
                seen += [tuple(sorted(row)) for row in loop.selected(layer).flatten(0, 1).tolist()]
        assert len(seen) == 6 * 3 * 3 * 2
        assert len(set(seen)) > 0.9 * len(seen)


@pytest.mark.parametrize("mode", ["cpu-in", "cpu-mid"])
def test_early_queries_resemble_the_layers_own(mode: str) -> None:
    """With every page attended both runs see the same hidden states."""
    with tiny("gpu-target", top_pages=40) as loop, tiny(mode, top_pages=40) as early:
        for run in (loop, early):
            run.set_position(120)
            run.step()
        for layer in (1, 2, 3):
            own, proxy = loop.captured[layer].query, early.captured[layer].query
            alike = torch.cosine_similarity(own.flatten(1), proxy.flatten(1))
            assert 0.5 < alike.min().item() <= alike.max().item() < 0.999


@pytest.mark.parametrize("mode", ["dense", *ROUTED])
def test_a_seed_decides_every_token(mode: str) -> None:
    runs = []
    for seed in (4, 4, 5):
        with tiny(mode, seed=seed) as loop:
            loop.prefill(60)
            tokens = [loop.sampled.tolist()]
            for _ in range(6):
                loop.step()
                tokens.append(loop.sampled.tolist())
            runs.append(tokens)
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


@pytest.mark.parametrize("mode", ["gpu-target", "cpu-mid"])
def test_a_position_that_was_set_is_one_that_was_stepped_to(mode: str) -> None:
    with tiny(mode) as jumped, tiny(mode) as walked:
        walked.set_position(90)
        for _ in range(14):
            walked.step()
        jumped.set_position(103)
        jumped.step()
        assert jumped.tokens == walked.tokens == 104
        for layer in (1, 2, 3):
            assert jumped.selected(layer).shape == walked.selected(layer).shape == (2, 2, 5)
            assert jumped.cache.keys(layer).shape == walked.cache.keys(layer).shape
        assert jumped.selected(3).max() < 25


@pytest.mark.parametrize("tokens", [1, 2, 4, 5, 17])
@pytest.mark.parametrize("mode", ["gpu-target", "cpu-target", "cpu-mid"])
def test_short_contexts_have_fewer_pages_than_are_asked_for(mode: str, tokens: int) -> None:
    with tiny(mode) as loop:
        loop.set_position(tokens)
        assert_sound(errors_of_a_step(loop))
        assert loop.selected(1).shape == (2, 2, min(5, tokens // PAGE))


def test_a_step_needs_room() -> None:
    with tiny("dense", capacity=20) as loop:
        loop.set_position(19)
        loop.step()
        with pytest.raises(InputError, match="position 20"):
            loop.step()
        with pytest.raises(InputError, match="position 20"):
            loop.set_position(20)
    with pytest.raises(InputError, match="ends at 512"):
        tiny("dense", capacity=513)


@pytest.mark.parametrize("mode", ["dense", *ROUTED])
def test_the_trace_has_the_simulators_ops_in_its_order(mode: str) -> None:
    with tiny(mode, trace=True) as loop:
        loop.set_position(100)
        step_s = loop.step()
        ops = decode_step(TINY, loop.selector, loop.routing)
        simulated = [op.name for op in ops if op.stream == "gpu"]
        main = [event for event in loop.events if event[3] == "gpu"]
        assert [name for name, *_ in main if not name.startswith("key_d2h")] == simulated
        ends = [0.0]
        for _, start_s, end_s, _ in main:
            assert ends[-1] <= start_s <= end_s
            ends.append(end_s)
        assert ends[-1] <= step_s
        times = {name: (start_s, end_s) for name, start_s, end_s, _ in loop.events}
        for layer in (1, 2, 3) if mode.startswith("cpu") else ():
            started, answered = times[f"route.{layer}"]
            assert times[f"publish.{layer}"][0] <= started
            assert started <= answered <= times[f"await.{layer}"][1]
        trace = loop.chrome_trace()
        shown = {e["name"]: e for e in trace["traceEvents"] if e["ph"] == "X"}
        assert shown["qkv.3"]["cat"] == "gemm_qkv"
        assert shown["qkv.3"]["dur"] == pytest.approx(
            (times["qkv.3"][1] - times["qkv.3"][0]) * 1e6, abs=1e-5
        )


def test_activations_stay_near_one() -> None:
    weights = Weights.random(TINY, 3)
    x = weights.embed[torch.arange(64)]
    normed = torch.nn.functional.rms_norm(x, (TINY.hidden,), weights.layers[2].norm1)
    qkv = normed @ weights.layers[2].qkv.T
    assert x.std().item() == pytest.approx(1.0, abs=0.1)
    assert qkv[:, : TINY.q_width].std().item() == pytest.approx(1.0, abs=0.3)
    assert qkv[:, TINY.q_width :].std().item() == pytest.approx(1.0, abs=0.3)
