"""Shapes: bytes of KV and weights, layer lists, ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from essim.model.shape import PRESETS, ModelShape

LLAMA = PRESETS["llama-3.1-8b"].model_dump()


def test_kv_bytes_of_the_presets() -> None:
    assert {name: m.kv_bytes_per_token() for name, m in PRESETS.items()} == {
        "llama-3.1-8b": 131072,
        "llama-3-8b": 131072,
        "llama-3.1-70b": 327680,
        "mistral-7b-v0.2": 131072,
        "qwen2.5-7b": 57344,
        "qwen2.5-32b": 262144,
        "smollm2-135m": 23040,
    }
    assert 3072 * PRESETS["qwen2.5-7b"].kv_bytes_per_token() == 168 * 2**20


def test_weights_of_llama_are_the_published_parameter_count() -> None:
    assert PRESETS["llama-3.1-8b"].weight_bytes() == 2 * 8_030_261_248
    assert PRESETS["smollm2-135m"].weight_bytes() == 2 * 134_515_008


def test_gemm_shapes_are_n_by_k() -> None:
    model = PRESETS["llama-3.1-8b"]
    shapes = {name: model.gemm_shape(name) for name in ("qkv", "o", "gate_up", "down", "head")}
    assert shapes == {
        "qkv": (6144, 4096),
        "o": (4096, 4096),
        "gate_up": (28672, 4096),
        "down": (4096, 14336),
        "head": (128256, 4096),
    }


def test_unknown_dtypes_are_errors_not_zero_bytes() -> None:
    fields = PRESETS["llama-3.1-8b"].model_dump() | {"kv_dtype": "int3"}
    with pytest.raises(ValidationError, match="unknown dtype 'int3'"):
        ModelShape(**fields)


def test_quantised_kv_carries_its_scales() -> None:
    """A 16-bit scale for 32 FP8 elements is 1.0625 bytes an element."""
    shape = ModelShape(**LLAMA | {"kv_dtype": "fp8", "kv_scale_group": 32})
    assert shape.kv_bytes_per_token() == 1.0625 * 65536 == 69_632


def test_fewer_kv_heads_than_ranks_are_copied() -> None:
    shape = ModelShape(**PRESETS["llama-3.1-70b"].model_dump() | {"tp": 16})
    rank = shape.rank()
    assert rank.kv_heads == 1
    assert rank.kv_bytes_per_token() == 40_960
    assert 16 * rank.kv_bytes_per_token() == 655_360
    assert shape.kv_bytes_per_token() == 327_680
    assert rank.tp == 1


def test_the_vocabulary_is_padded_to_the_ranks() -> None:
    sizes = {"vocab": 151552, "tp": 6, "heads": 48, "kv_heads": 6, "ffn": 13824}
    shape = ModelShape(**LLAMA | sizes)
    assert shape.padded_vocab == 151_554
    assert shape.rank().vocab == 25_259
    assert shape.gemm_shape("head") == (151_554, 4096)


def test_ranks_share_the_weights_but_not_the_norms() -> None:
    whole = ModelShape(**LLAMA)
    rank = ModelShape(**LLAMA | {"tp": 4}).rank()
    norms = (2 * 32 + 1) * 4096 * 2
    assert rank.weight_bytes() == (whole.weight_bytes() - norms) / 4 + norms


def test_tied_embeddings_are_stored_once_but_the_head_is_as_large() -> None:
    tied, untied = (ModelShape(**LLAMA | {"tied_embeddings": tied}) for tied in (True, False))
    assert untied.weight_bytes() - tied.weight_bytes() == 128256 * 4096 * 2
    assert tied.gemm_shape("head") == untied.gemm_shape("head") == (128256, 4096)


def test_fp8_weights_leave_embedding_head_and_norms_in_16_bits() -> None:
    shape = ModelShape(**LLAMA | {"weight_dtype": "fp8"})
    matrices = 32 * 4096 * (6144 + 4096 + 3 * 14336)
    assert PRESETS["llama-3.1-8b"].weight_bytes() - shape.weight_bytes() == matrices
    assert shape.weight_bytes() == matrices + 2 * (2 * 128256 * 4096 + 65 * 4096)


@given(st.integers(0, 10**6), st.integers(1, 10**5))
def test_a_window_caps_what_its_layers_hold(tokens: int, window: int) -> None:
    mixers = ["sliding", "full"] * 16
    shape = ModelShape(**LLAMA | {"mixers": mixers, "window_tokens": window})
    held = 16 * tokens + 16 * min(tokens, window)
    assert shape.kv_bytes(tokens, tokens) == held * 4096
    assert shape.kv_bytes(tokens, tokens) <= PRESETS["llama-3.1-8b"].kv_bytes(tokens, tokens)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mixers": ["full"]}, "mixers lists 1 layers, not 32"),
        ({"mixers": ["recurrent"] * 32}, "no layer attends"),
        ({"mixers": ["sliding"] * 32}, "sliding layers need window_tokens"),
        ({"mixers": ["linear"] * 32}, "should be 'full', 'sliding', 'recurrent' or 'none'"),
        ({"mlps": ["moe"] * 32}, "moe is not given"),
        ({"moe": {"experts": 2, "experts_per_token": 3, "ffn": 8}}, "exceeds experts"),
        ({"kv_scale_group": 32}, "kv_scale_group needs a quantised kv_dtype, not bf16"),
        ({"kv_scale_group": 48, "kv_dtype": "fp8"}, "must divide the 128 elements"),
        ({"tp": 3}, r"heads \(32\) must be a multiple of tp \(3\)"),
        ({"tp": 6, "heads": 48, "ffn": 12288}, r"tp \(6\) must divide kv_heads \(8\)"),
        (
            {"mla": {"kv_rank": 512, "rope_dim": 64, "nope_dim": 128, "v_dim": 128}},
            "under mla, head_dim must be nope_dim",
        ),
    ],
)
def test_shapes_that_contradict_themselves_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ModelShape(**LLAMA | changes)
