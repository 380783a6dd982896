"""How configs say that weights are stored, and what bytes follow."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from hfconfigs import DEEPSEEK_V2_LITE, LLAMA, read
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from essim.errors import InputError
from essim.model.blocks import Quantised
from essim.model.shape import PRESETS, ModelShape

QWEN_7B = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "sliding_window": 131072,
    "use_sliding_window": False,
    "tie_word_embeddings": False,
    "vocab_size": 152064,
}
GPT_OSS_20B = {
    "model_type": "gpt_oss",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "experts_per_token": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "sliding_window": 128,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
    "quantization_config": {
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
        "quant_method": "mxfp4",
    },
}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
# Of Qwen2.5-7B: the matrices of the layers, and what stays 16-bit.
MATRICES = 28 * (2 * 3584**2 + 2 * 3584 * 512 + 3 * 3584 * 18944)
WIDE_BYTES = 2 * (2 * 152064 * 3584 + 57 * 3584)


def tensors(ignore: list[str], **weights: object) -> dict[str, Any]:
    """Return settings of compressed-tensors: one group of weights, and what is left out."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": group},
        "ignore": ignore,
    }


INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}


@pytest.mark.parametrize(
    ("settings", "bits"),
    [
        (AWQ, 4 + 20 / 128),
        (AWQ | {"zero_point": False}, 4 + 16 / 128),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, 4 + 20 / 64),
        (GPTQ, 4 + 20 / 128),
        (GPTQ | {"bits": 8, "group_size": 32}, 8 + 24 / 32),
        (tensors(["lm_head"], **INT4), 4 + 16 / 32),
        (tensors(["lm_head"], **INT4 | {"symmetric": False}), 4 + 20 / 32),
        (tensors(["lm_head"], num_bits=4, type="float", group_size=16), 4 + 8 / 16),
        (tensors(["lm_head"], num_bits=8, type="float"), 8),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8),
    ],
)
def test_a_scale_and_a_zero_point_a_group_count(
    tmp_path: Path, settings: dict, bits: float
) -> None:
    shape = read(tmp_path, QWEN_7B, quantization_config=settings)
    assert shape.weight_bytes() == MATRICES * bits / 8 + WIDE_BYTES


def test_a_row_may_have_one_scale(tmp_path: Path) -> None:
    rows = 28 * (3584 + 2 * 512 + 3584 + 2 * 18944 + 3584)
    shape = read(tmp_path, QWEN_7B, quantization_config=AWQ | {"group_size": -1})
    assert shape.weight_bytes() == MATRICES / 2 + rows * 20 / 8 + WIDE_BYTES


def test_qwen_7b_in_four_bits_is_as_large_as_its_published_files(tmp_path: Path) -> None:
    assert read(tmp_path, QWEN_7B, quantization_config=AWQ).weight_bytes() == 5_570_489_344


def test_mxfp4_is_of_experts_alone(tmp_path: Path) -> None:
    """The published files of gpt-oss-20b are 13.76 GB, biases included."""
    experts = 24 * 32 * 3 * 2880 * 2880
    attention = 24 * (2880 * (64 + 16) * 64 + 64 * 64 * 2880)
    wide = attention + 2 * 201088 * 2880 + 49 * 2880 + 24 * 32 * 2880
    shape = read(tmp_path, GPT_OSS_20B)
    assert shape.weight_bytes() == experts * 17 // 32 + 2 * wide == 13_747_605_120
    assert shape.weight_dtype == "mxfp4"
    settings = {"quant_method": "mxfp4"}
    assert read(tmp_path, GPT_OSS_20B, quantization_config=settings) == shape


@pytest.mark.parametrize(
    ("modules", "wide"),
    [
        (None, None),
        (["lm_head", "model.embed_tokens", "model.norm", "mlp.gate", "vision_tower"], None),
        (["self_attn"], ["attention"]),
        (["model.layers.*.self_attn"], ["attention"]),
        ([f"model.layers.{i}.self_attn" for i in range(27)], ["attention"]),
        (["shared_experts"], ["shared"]),
        (["model.layers.0.mlp"], ["dense"]),
        (["re:.*self_attn.*", "re:.*mlp\\.(gate|up)_proj.*", "re:.*mlp\\.down.*"], None),
        (["mlp.experts"], ["experts"]),
    ],
)
def test_what_is_not_converted_stays_in_16_bits(
    tmp_path: Path, modules: list[str] | None, wide: list[str] | None
) -> None:
    if modules and modules[0].startswith("re:"):
        wide = ["attention", "dense"]
    settings = {"quant_method": "fp8", "modules_to_not_convert": modules}
    shape = read(tmp_path, DEEPSEEK_V2_LITE, quantization_config=settings)
    assert shape.wide == wide
    whole = read(tmp_path, DEEPSEEK_V2_LITE, quantization_config={"quant_method": "fp8"})
    sizes = {
        "attention": 27 * (2048 * (3072 + 576) + 512 * 4096 + 2048 * 2048),
        "dense": 3 * 2048 * 10944,
        "experts": 26 * 64 * 3 * 2048 * 1408,
        "shared": 26 * 3 * 2048 * 2816,
    }
    kept = sum(sizes[part] for part in wide or ())
    assert shape.weight_bytes() - whole.weight_bytes() == kept


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"quant_method": "bitsandbytes"},
            "weights quantised by 'bitsandbytes' cannot be modelled",
        ),
        ("int4", "weights quantised by 'int4' cannot be modelled"),
        ({"bits": 4}, "weights quantised by None cannot be modelled"),
        ({"quant_method": "mxfp4"}, "weights quantised by 'mxfp4, which is of experts,'"),
        (AWQ | {"bits": 5}, "quantization_config.bits: must be 2, 3, 4 or 8 (got 5)"),
        (
            AWQ | {"group_size": "all"},
            "quantization_config.group_size: must be a whole number",
        ),
        (GPTQ | {"lm_head": True}, "quantization_config.lm_head: must be false (got true)"),
        (GPTQ | {"dynamic": {"-:.*": {}}}, "quantization_config.dynamic: "),
        (AWQ | {"modules_to_not_convert": ["q_proj"]}, "only some of the layers' matrices"),
        (AWQ | {"modules_to_not_convert": ["layers.0.mlp"]}, "only some of the layers' matrices"),
        (AWQ | {"modules_to_not_convert": ["odd_module"]}, "the module 'odd_module' is not known"),
        (AWQ | {"modules_to_not_convert": "self_attn"}, "modules_to_not_convert: is not a list"),
        (tensors(["re:*"], **INT4), "config_groups"),
        (tensors([], **INT4), "ignore: the LM head is quantised"),
        (tensors(["lm_head", "re:*"], **INT4), "ignore: 're:*' is not a pattern"),
        ({"quant_method": "compressed-tensors"}, "config_groups: only one group of weights"),
    ],
)
def test_other_ways_to_store_weights_are_refused(
    tmp_path: Path, settings: object, message: str
) -> None:
    if settings == tensors(["re:*"], **INT4):
        settings = {"quant_method": "compressed-tensors", "config_groups": {"a": {}, "b": {}}}
    with pytest.raises(InputError) as error:
        read(tmp_path, QWEN_7B, quantization_config=settings)
    assert message in str(error.value)


@pytest.mark.parametrize("key", ["quantization_config", "compression_config"])
def test_settings_beside_the_text_model_come_first(tmp_path: Path, key: str) -> None:
    """40 layers of 5120 with 32 heads x 128, 8 KV heads and MLPs of 32,768 in FP8."""
    text = LLAMA | {
        "hidden_size": 5120,
        "intermediate_size": 32768,
        "num_hidden_layers": 40,
        "head_dim": 128,
        "vocab_size": 131072,
        "tie_word_embeddings": False,
    }
    outside = {"quant_method": "fp8", "modules_to_not_convert": ["model.vision_tower", "lm_head"]}
    inside = {"quant_method": "hqq"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shape = read(tmp_path, {"text_config": text | {key: inside}, key: outside})
        assert shape.weight_bytes() == 24_914_995_200
        with pytest.raises(InputError, match=f"text_config.{key}: weights quantised by 'hqq'"):
            read(tmp_path, {"text_config": text | {key: inside}})


@given(st.integers(1, 8), st.integers(1, 300), st.integers(1, 300), st.integers(1, 64))
def test_quantised_bytes_are_those_of_weights_and_whole_groups(
    bits: int, outputs: int, inputs: int, group: int
) -> None:
    found = Quantised(bits=bits, group=group, scale_bits=16).matrix_bytes(outputs, inputs)
    groups = sum(len(range(0, inputs, group)) for _ in range(outputs))
    assert found == -(-(outputs * inputs * bits + groups * 16) // 8)
    assert found <= outputs * inputs + 2 * groups


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight_dtype": "int4"}, "unknown dtype 'int4'"),
        ({"quantised": {"bits": 4}}, "quantised needs a weight_dtype such as int4"),
        (
            {
                "weight_dtype": "int4",
                "quantised": {"bits": 4},
                "mixers": ["recurrent", "full"] * 16,
            },
            "those of recurrent layers are not known",
        ),
        ({"other_layers": [{"layers": [32], "heads": 8}]}, "outside the 32 there are"),
        ({"other_layers": [{"layers": [1, 1], "heads": 8}]}, "names a layer twice"),
        ({"other_layers": [{"layers": [1], "heads": 12}]}, "must be a multiple of kv_heads"),
    ],
)
def test_shapes_that_contradict_themselves_are_refused(changes: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ModelShape(**PRESETS["llama-3.1-8b"].model_dump() | changes)
