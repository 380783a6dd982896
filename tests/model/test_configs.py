"""Configs of model families: sizes, what is assumed and what is refused."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from hfconfigs import DEEPSEEK_V2_LITE, JAMBA, LLAMA, MIXTRAL, read, write

from essim.errors import InputError
from essim.model.hf import expand_model, read_config
from essim.model.shape import PRESETS, ModelShape


def test_a_config_json_gives_the_preset(tmp_path: Path) -> None:
    shape = read(tmp_path, LLAMA)
    preset = PRESETS["llama-3.1-8b"]
    assert shape.model_dump() | {"name": ""} == preset.model_dump() | {"name": ""}


def test_a_config_is_named_by_its_file_or_its_folder(tmp_path: Path) -> None:
    file = write(tmp_path, LLAMA)
    assert read_config(file).name == tmp_path.name
    assert read_config(file.rename(tmp_path / "mine.json")).name == "mine"


def test_an_explicit_head_dim_wins(tmp_path: Path) -> None:
    sizes = {"num_hidden_layers": 36, "hidden_size": 2560}
    assert read(tmp_path, LLAMA, **sizes, head_dim=128).kv_bytes_per_token() == 147456
    assert read(tmp_path, LLAMA, **sizes).kv_bytes_per_token() == 92160


def test_a_null_head_dim_is_an_absent_one(tmp_path: Path) -> None:
    assert read(tmp_path, LLAMA, head_dim=None).head_dim == 128


@pytest.mark.parametrize("value", [None, "absent"])
def test_absent_kv_heads_fall_back_and_say_so(tmp_path: Path, value: object) -> None:
    with pytest.warns(UserWarning, match=r"config.json:\d+: num_key_value_heads is absent: 32"):
        assert read(tmp_path, LLAMA, num_key_value_heads=value).kv_heads == 32


def test_multi_query_attention_under_the_names_of_gpt2(tmp_path: Path) -> None:
    fields = {
        "model_type": "gpt_bigcode",
        "n_layer": 24,
        "n_embd": 2048,
        "n_head": 16,
        "n_inner": 8192,
        "n_positions": 2048,
        "vocab_size": 49280,
        "multi_query": True,
    }
    shape = read(tmp_path, fields)
    assert 8192 * shape.kv_bytes_per_token() == 100_663_296
    assert (shape.ffn, shape.max_context_tokens, shape.tied_embeddings) == (8192, 2048, True)
    # SantaCoder has 1.1 billion parameters: two MLP matrices, not three.
    assert shape.weight_bytes() / 2 == pytest.approx(1.12e9, rel=0.01)
    with pytest.warns(UserWarning, match="8192 taken, four times the hidden size"):
        assert read(tmp_path, fields, n_inner=None).ffn == 8192


def test_a_nested_text_model_is_read_and_errors_point_into_it(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="only the text model under text_config"):
        shape = read(tmp_path, {"model_type": "llava", "text_config": LLAMA})
    assert shape.kv_bytes_per_token() == 131072
    broken = {"text_config": LLAMA | {"hidden_size": 4097}}
    with (
        pytest.warns(UserWarning, match="only the text model"),
        pytest.raises(InputError, match=r"config.json:5: text_config.hidden_size: hidden_size"),
    ):
        read(tmp_path, broken)


def test_weights_are_the_published_parameter_counts(tmp_path: Path) -> None:
    assert read(tmp_path, MIXTRAL).weight_bytes() == 2 * 46_702_792_704
    assert read(tmp_path, DEEPSEEK_V2_LITE).weight_bytes() == 2 * 15_706_484_224
    # Jamba's inner norms are left out.
    assert read(tmp_path, JAMBA).weight_bytes() / 2 == pytest.approx(51_570_323_328, rel=1e-5)
    next_80b = {
        "model_type": "qwen3_next",
        "num_hidden_layers": 48,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "intermediate_size": 5120,
        "vocab_size": 151936,
        "full_attention_interval": 4,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    }
    shape = read(tmp_path, LLAMA | next_80b)
    assert shape.weight_bytes() / 2 == pytest.approx(79.67e9, rel=0.002)
    assert shape.kv_bytes_per_token() == 12 * 2048


def test_deepseek_v3_is_671_billion_parameters_mostly_in_fp8(tmp_path: Path) -> None:
    v3 = {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "intermediate_size": 18432,
        "vocab_size": 129280,
        "q_lora_rank": 1536,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3,
    }
    fields = DEEPSEEK_V2_LITE | v3
    shape = read(tmp_path, fields)
    assert shape.weight_bytes() == 2 * 671_026_404_352
    assert shape.kv_bytes_per_token() == 70_272
    small = read(tmp_path, fields, quantization_config={"quant_method": "fp8"})
    assert small.weight_dtype == "fp8"
    assert small.weight_bytes() == pytest.approx(shape.weight_bytes() / 2, rel=0.005)


def test_an_unknown_model_type_is_read_by_its_keys_and_says_so(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="model type 'novel' is not known"):
        assert read(tmp_path, LLAMA, model_type="novel").kv_bytes_per_token() == 131072


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 4097}, "hidden_size (4097) is not a multiple of num_attention_heads (32)"),
        ({"num_key_value_heads": 5}, "heads (32) must be a multiple of kv_heads (5)"),
        ({"num_hidden_layers": "absent"}, "num_hidden_layers: required, but missing"),
        ({"num_hidden_layers": 0}, "config.json:3: num_hidden_layers: must be 1 or more"),
        (
            {"num_hidden_layers": "absent", "n_layer": 0},
            "config.json:11: n_layer: must be 1 or more",
        ),
        ({"vocab_size": "many"}, "vocab_size: must be a whole number (got 'many')"),
        ({"intermediate_size": None}, "intermediate_size: required, but missing"),
        ({"layer_types": ["nope"] * 32}, "config.json:12: layer_types: layers of kind 'nope'"),
        ({"layer_types": ["chunked_attention"] * 32}, "layers of kind 'chunked_attention'"),
        ({"layer_types": ["full_attention"]}, "layer_types: lists 1 layers, not 32"),
        ({"hybrid_override_pattern": "*?" * 16}, "hybrid_override_pattern: layers of kind '?'"),
        ({"attn_layer_indices": [32]}, "attn_layer_indices: names a layer outside the 32"),
        ({"mamba_d_state": 128}, "config.json:12: mamba_d_state: the config has layers without"),
        ({"num_experts": 8}, "num_experts_per_tok: required, but missing"),
        ({"kv_lora_rank": 512}, "qk_rope_head_dim: required, but missing"),
        ({"index_topk": 2048}, "index_topk: attention with a built-in token indexer"),
        ({"attention_chunk_size": 8192}, "attention_chunk_size: chunked attention"),
        ({"num_kv_shared_layers": 8}, "num_kv_shared_layers: layers that share KV"),
        ({"quantization_config": {"quant_method": "hqq"}}, "weights quantised by 'hqq'"),
    ],
)
def test_what_cannot_be_modelled_is_refused_by_name(tmp_path, changes, message: str) -> None:
    with pytest.raises(InputError) as error:
        read(tmp_path, LLAMA, **changes)
    assert message in str(error.value)


def test_nothing_is_said_where_nothing_is_assumed(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for fields in (LLAMA, MIXTRAL, JAMBA, DEEPSEEK_V2_LITE):
            read(tmp_path, fields)


def test_a_mapping_may_start_from_a_preset_or_a_config(tmp_path: Path) -> None:
    fields = expand_model({"preset": "llama-3.1-8b", "kv_dtype": "fp8"}, tmp_path)
    assert ModelShape(**fields).kv_bytes_per_token() == 65536
    write(tmp_path, DEEPSEEK_V2_LITE)
    fields = expand_model({"preset": "config.json", "tp": 2}, tmp_path)
    assert ModelShape(**fields).rank().heads == 8


def test_falcon_is_multi_query_unless_its_new_architecture_says_otherwise(tmp_path: Path) -> None:
    falcon = {"model_type": "falcon", "num_key_value_heads": "absent", "multi_query": True}
    old = read(tmp_path, LLAMA, **falcon, num_kv_heads=32)
    new = read(tmp_path, LLAMA, **falcon, num_kv_heads=8, new_decoder_architecture=True)
    assert (old.kv_heads, new.kv_heads) == (1, 8)


def test_latents_without_head_sizes_take_deepseeks_and_say_so(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="v_head_dim is absent: 128 taken"):
        shape = read(tmp_path, DEEPSEEK_V2_LITE, v_head_dim="absent")
    assert shape == read(tmp_path, DEEPSEEK_V2_LITE)
