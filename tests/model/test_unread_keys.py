"""A key that changes sizes and that nobody reads ends in a refusal that names it."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from hfconfigs import DEEPSEEK_V2_LITE, LLAMA, MIXTRAL, read

from essim.errors import InputError
from essim.model.shape import PRESETS

CHANGE_SIZES = {
    "num_key_value_groups_per_layer": [4] * 32,
    "hidden_size_per_layer_input": 256,
    "vocab_size_per_layer_input": 1000,
    "per_layer_config": {"3": {"head_dim": 512}},
    "attention_layer_types": ["local"] * 32,
    "mixer_block_types": ["rwkv", "attention"],
    "layer_group_size": 8,
    "o_groups": 8,
    "o_lora_rank": 1024,
    "laurel_rank": 64,
    "zero_expert_num": 256,
    "n_experts": 8,
    "moe_every_n_layers": 2,
    "num_first_dense_layers": 3,
    "residual_moe": True,
    "residual_mlp_width": 4096,
    "local_window_size": 512,
    "swa_layers": [1, 3],
    "window_size": 256,
    "mlp_expansion": 3,
    "shared_attention_every": 6,
    "mixer_cfg": {"layer": "Mamba2"},
    "moe_config": {"experts": 8},
    "ffn_multipliers": 2.5,
    "ffn_dim_multiplier": 1.3,
    "kv_compression_ratio": 4,
    "value_head_dim": 64,
    "num_loops": 4,
    "depth_decoder_layers": 6,
}
CHANGE_NOTHING = {
    "router_aux_loss_coef": 0.01,
    "output_router_logits": True,
    "use_sliding_window": False,
    "n_group": 8,
    "topk_group": 4,
    "num_expert_group": 1,
    "expert_dropout": 0.1,
    "residual_dropout": 0.1,
    "residual_multiplier": 0.22,
    "num_nextn_predict_layers": 1,
    "layer_norm_eps": 1e-5,
    "head_dim": 128,
    "attention_bias": True,
    "mlp_bias": True,
    "hidden_dropout_prob": 0.1,
    "no_rope_layers": [1, 1, 1, 0] * 8,
    "chunk_size_feed_forward": 2,
    "pretraining_tp": 1,
    "_attn_implementation": "eager",
    "rope_theta": 500000.0,
    "partial_rotary_factor": 0.5,
    "norm_topk_prob": True,
    "architectures": ["LlamaForCausalLM"],
}
MEANS_NOTHING = (None, 0, False, "", [], {})


@pytest.mark.parametrize("key", CHANGE_SIZES)
def test_a_key_that_nobody_reads_and_that_changes_sizes_is_named(tmp_path: Path, key: str) -> None:
    message = rf"config.json:12: {key}: may change the sizes of the model, and is not understood"
    with pytest.raises(InputError, match=message):
        read(tmp_path, LLAMA, **{key: CHANGE_SIZES[key]})


@pytest.mark.parametrize("nothing", MEANS_NOTHING, ids=repr)
def test_values_that_mean_nothing_do_not_matter(tmp_path: Path, nothing: object) -> None:
    shape = read(tmp_path, LLAMA, **dict.fromkeys(CHANGE_SIZES, nothing))
    assert shape.weight_bytes() == PRESETS["llama-3.1-8b"].weight_bytes()


def test_what_changes_no_size_passes_without_a_word(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shape = read(tmp_path, LLAMA, **CHANGE_NOTHING)
    assert shape.model_dump() | {"name": ""} == PRESETS["llama-3.1-8b"].model_dump() | {"name": ""}


def test_keys_inside_what_is_read_are_looked_at_too(tmp_path: Path) -> None:
    nested = {"kv_n_heads": 8, "window_size": 128}
    with pytest.raises(InputError, match=r"attn_config.window_size: may change the sizes"):
        read(tmp_path, LLAMA, attn_config=nested)
    text = LLAMA | {"window_size": 128}
    with (
        pytest.warns(UserWarning, match="only the text model"),
        pytest.raises(InputError, match=r"config.json:13: text_config.window_size: may change"),
    ):
        read(tmp_path, {"text_config": text})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_kv_heads": 4}, "num_kv_heads: 4 is not the 8 of num_key_value_heads"),
        ({"n_layer": 16}, "n_layer: 16 is not the 32 of num_hidden_layers"),
        ({"n_routed_experts": 4}, "n_routed_experts: 4 is not the 8 of num_local_experts"),
        ({"num_dense_layers": 2, "n_dense_layers": 3}, "n_dense_layers: 3 is not the 2 of num"),
    ],
)
def test_two_names_of_one_thing_must_agree(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, MIXTRAL | changes)
    same = dict.fromkeys(changes, 8) if len(changes) == 1 else {}
    same = {"num_kv_heads": 8, "n_layer": 32, "n_routed_experts": 8} if same else {}
    assert read(tmp_path, MIXTRAL, **same) == read(tmp_path, MIXTRAL)


@pytest.mark.parametrize(
    ("kind", "meaning"),
    [
        ("zamba2", "attention shared between layers"),
        ("falcon_h1", "attention and a recurrence in one layer"),
        ("longcat_flash", "two attentions a layer"),
        ("step3", "factorised attention"),
    ],
)
def test_types_whose_keys_do_not_tell_are_refused(tmp_path: Path, kind: str, meaning: str) -> None:
    with pytest.raises(InputError, match=f"config.json:2: model_type: {kind}: {meaning} cannot"):
        read(tmp_path, LLAMA, model_type=kind)


def test_the_width_of_experts_is_not_guessed_in_silence(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="moe_intermediate_size is absent: 10944 taken"):
        read(tmp_path, DEEPSEEK_V2_LITE, moe_intermediate_size="absent")


def test_experts_that_there_are_none_of_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="mlp_layer_types: lists layers with experts"):
        read(tmp_path, LLAMA, mlp_layer_types=["sparse"] * 32)
    with pytest.raises(InputError, match="mlp_layer_types: MLPs of kind 'odd'"):
        read(tmp_path, MIXTRAL, mlp_layer_types=["odd"] * 32)
    with pytest.raises(InputError, match="num_experts_per_tok: 9 experts a token, of 8"):
        read(tmp_path, MIXTRAL, num_experts_per_tok=9)
