"""Configs as families publish them: bytes worked out by hand from the architecture, in elements.

Counts of weights leave out biases and norms of single heads, as docs/models.md says.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from hfconfigs import LLAMA, read

from essim.errors import InputError
from essim.model.shape import ModelShape

RECURRENT_GEMMA_2B = {
    "model_type": "recurrent_gemma",
    "hidden_size": 2560,
    "intermediate_size": 15360,
    "num_hidden_layers": 26,
    "num_attention_heads": 10,
    "num_key_value_heads": 1,
    "attention_window_size": 2048,
    "lru_width": 2560,
    "conv1d_width": 4,
    "block_types": ["recurrent", "recurrent", "attention"],
    "vocab_size": 256000,
    "max_position_embeddings": 8192,
}
DECILM_7B = {
    "model_type": "deci",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads_per_layer": [4] * 11 + [2] * 4 + [1] * 4 + [2, 4, 2] + [4] * 10,
    "max_position_embeddings": 8192,
    "vocab_size": 32000,
    "tie_word_embeddings": False,
}
GEMMA_7B = {
    "model_type": "gemma",
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 256000,
    "max_position_embeddings": 8192,
}
QWEN_7B = {
    "model_type": "qwen",
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "kv_channels": 128,
    "max_position_embeddings": 8192,
    "seq_length": 8192,
    "vocab_size": 151936,
    "no_bias": True,
    "tie_word_embeddings": False,
}
ERNIE_21B = {
    "model_type": "ernie4_5_moe",
    "hidden_size": 2560,
    "intermediate_size": 12288,
    "num_hidden_layers": 28,
    "num_attention_heads": 20,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "vocab_size": 103424,
    "moe_num_experts": 64,
    "moe_k": 6,
    "moe_num_shared_experts": 2,
    "moe_intermediate_size": 1536,
    "moe_layer_start_index": 1,
    "moe_layer_end_index": -1,
    "moe_layer_interval": 1,
    "tie_word_embeddings": True,
}
LAGUNA = {
    "model_type": "laguna",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 40,
    "num_attention_heads": 48,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 100352,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": False,
    "sliding_window": 512,
    "layer_types": (["full_attention"] + ["sliding_attention"] * 3) * 10,
    "num_attention_heads_per_layer": [48, 64, 64, 64] * 10,
    "mlp_layer_types": ["dense"] + ["sparse"] * 39,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "norm_topk_prob": True,
}
ARCEE = {
    "model_type": "arcee",
    "hidden_act": "relu2",
    "hidden_size": 2560,
    "intermediate_size": 18432,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
EXAONE_32B = {
    "model_type": "exaone4",
    "hidden_size": 5120,
    "intermediate_size": 27392,
    "num_hidden_layers": 64,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "vocab_size": 102400,
    "sliding_window": 4096,
    "sliding_window_pattern": "LLLG",
    "tie_word_embeddings": False,
}
LFM2 = {
    "model_type": "lfm2",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "block_auto_adjust_ff_dim": False,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "conv_L_cache": 3,
    "conv_bias": False,
    "full_attn_idxs": [2, 5, 8, 10, 12, 14],
    "max_position_embeddings": 128000,
    "vocab_size": 65536,
    "tie_word_embeddings": True,
}
NEMOTRON_H_8B = {
    "model_type": "nemotron_h",
    "hidden_size": 4096,
    "intermediate_size": 21504,
    "mlp_hidden_act": "relu2",
    "num_hidden_layers": 52,
    "hybrid_override_pattern": "M-M-M-M*-" + "M-M-M-M-M*-" * 3 + "M-M-M-M-M-",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_query_groups": 8,
    "head_dim": 128,
    "mamba_num_heads": 128,
    "mamba_head_dim": 64,
    "n_groups": 8,
    "ssm_state_size": 128,
    "conv_kernel": 4,
    "chunk_size": 128,
    "expand": 2,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "vocab_size": 131072,
}
KIMI_LINEAR_48B = {
    "model_type": "kimi_linear",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 27,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 72,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
        "kda_layers": [i for i in range(1, 27) if i % 4],
        "head_dim": 128,
        "num_heads": 32,
        "short_conv_kernel_size": 4,
    },
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 1024,
    "num_experts": 256,
    "num_experts_per_token": 8,
    "num_shared_experts": 1,
    "num_expert_group": 1,
    "topk_group": 1,
    "use_grouped_topk": True,
    "model_max_length": 1048576,
    "tie_word_embeddings": False,
    "vocab_size": 163840,
}
DBRX = {
    "model_type": "dbrx",
    "d_model": 6144,
    "n_heads": 48,
    "n_layers": 40,
    "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "rope_theta": 500000},
    "ffn_config": {
        "ffn_hidden_size": 10752,
        "moe_jitter_eps": 0.01,
        "moe_loss_weight": 0.05,
        "moe_num_experts": 16,
        "moe_top_k": 4,
    },
    "max_seq_len": 32768,
    "tie_word_embeddings": False,
    "vocab_size": 100352,
}
MPT_7B = {
    "model_type": "mpt",
    "d_model": 4096,
    "n_heads": 32,
    "n_layers": 32,
    "expansion_ratio": 4,
    "attn_config": {"alibi": True, "attn_type": "multihead_attention", "prefix_lm": False},
    "no_bias": True,
    "max_seq_len": 2048,
    "vocab_size": 50432,
}
HUNYUAN_A13B = {
    "model_type": "hunyuan_v1_moe",
    "hidden_size": 4096,
    "intermediate_size": 3072,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "attention_head_dim": 128,
    "num_experts": 64,
    "moe_topk": [8] * 32,
    "moe_intermediate_size": [3072] * 32,
    "num_shared_expert": [1] * 32,
    "moe_layer_num_skipped": 0,
    "use_mixed_mlp_moe": True,
    "use_cla": False,
    "cla_share_factor": 2,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
    "vocab_size": 128167,
}
GRANITE_4_SMALL = {
    "model_type": "granitemoehybrid",
    "hidden_size": 4096,
    "intermediate_size": 768,
    "shared_intermediate_size": 1536,
    "num_hidden_layers": 40,
    "layer_types": ["attention" if i in (5, 15, 25, 35) else "mamba" for i in range(40)],
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 72,
    "num_experts_per_tok": 10,
    "mamba_d_conv": 4,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_expand": 2,
    "mamba_n_groups": 1,
    "mamba_n_heads": 128,
    "mamba_chunk_size": 256,
    "residual_multiplier": 0.22,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "vocab_size": 100352,
}


def quietly(folder: Path, fields: dict, **changes: object) -> ModelShape:
    """Return a shape whatever had to be assumed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read(folder, fields, **changes)


@pytest.mark.parametrize(
    ("fields", "kv_bytes_per_token", "weights"),
    [
        # 26 MLPs of three 2560 x 7680, 8 x 14,417,920 of attention, 18 mixers of 3 x 2560^2 +
        # 2 x 2560 x 256 + 2560 + 4 x 2560, 53 norms and one embedding.
        (RECURRENT_GEMMA_2B, 8 * 1024, 2_682_099_200),
        # Attention of 104 KV heads in all: 32 x 2 x 4096^2 + 2 x 104 x 128 x 4096.
        (DECILM_7B, 104 * 512, 7_082_348_544),
        (GEMMA_7B, 458_752, 8_537_680_896),
        (QWEN_7B, 524_288, 7_720_931_328),
        (ERNIE_21B, 57_344, 21_825_436_160),
        (LAGUNA, 163_840, 33_437_681_664),
        (ARCEE, 327_680, 4_022_766_080),
        (EXAONE_32B, 262_144, 32_003_200_000),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_bytes_of_published_configs(
    tmp_path: Path, fields: dict, kv_bytes_per_token: int, weights: int
) -> None:
    shape = quietly(tmp_path, fields)
    assert shape.kv_bytes_per_token() == kv_bytes_per_token
    assert shape.weight_bytes() == 2 * weights


@pytest.mark.parametrize(
    ("fields", "kv_bytes_per_token", "billions"),
    [
        (NEMOTRON_H_8B, 4 * 4096, 8.10),
        (KIMI_LINEAR_48B, 7 * 576 * 2, 49.12),
        (DBRX, 40 * 4096, 131.6),
        (MPT_7B, 32 * 16384, 6.65),
        (HUNYUAN_A13B, 32 * 4096, 80.4),
        (GRANITE_4_SMALL, 4 * 4096, 32.2),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_weights_are_those_that_the_makers_publish(
    tmp_path: Path, fields: dict, kv_bytes_per_token: int, billions: float
) -> None:
    shape = quietly(tmp_path, fields)
    assert shape.kv_bytes_per_token() == kv_bytes_per_token
    assert shape.weight_bytes() / 2e9 == pytest.approx(billions, rel=0.003)


def test_block_types_repeat_and_their_attention_has_a_window(tmp_path: Path) -> None:
    shape = quietly(tmp_path, RECURRENT_GEMMA_2B)
    assert [i for i in range(26) if shape.mixer(i) == "sliding"] == [2, 5, 8, 11, 14, 17, 20, 23]
    assert shape.kv_bytes(2048, 2048) == shape.kv_bytes(4096, 4096) == 16_777_216
    # A state of 2560 in fp32, and three steps of the convolution's input in 16 bits.
    assert shape.state_bytes() == 18 * (2560 * 4 + 3 * 2560 * 2)


def test_a_step_reads_the_experts_of_a_token_and_the_shared_ones(tmp_path: Path) -> None:
    shape = quietly(tmp_path, ERNIE_21B)
    moe = shape.moe
    assert moe is not None
    assert [shape.mlp(i) for i in range(3)] == ["dense", "moe", "moe"]
    one = 3 * 2560 * (moe.experts_per_token * moe.ffn + moe.shared_ffn)
    assert shape.count("moe") * one + 3 * 2560 * shape.ffn == 2_642_411_520


@pytest.mark.parametrize(
    ("changes", "moe"),
    [
        ({"moe_layer_start_index": 3}, range(3, 28)),
        ({"moe_layer_end_index": 20}, range(1, 21)),
        ({"moe_layer_interval": 2}, range(1, 28, 2)),
        ({"moe_layer_start_index": "absent"}, range(1, 28)),
    ],
)
def test_where_experts_start_and_end(tmp_path: Path, changes: dict, moe: range) -> None:
    shape = quietly(tmp_path, ERNIE_21B, **changes)
    assert [i for i in range(28) if shape.mlp(i) == "moe"] == list(moe)


@pytest.mark.parametrize(
    ("changes", "full"),
    [
        ({}, 16),
        ({"sliding_window_pattern": "lllg"}, 16),
        ({"sliding_window_pattern": "LG"}, 32),
        ({"sliding_window_pattern": 4}, 16),
        ({"sliding_window_pattern": "absent"}, 16),
        ({"sliding_window_pattern": None}, 64),
        ({"sliding_window": None}, 64),
        ({"layer_types": ["sliding_attention", "full_attention"] * 32}, 32),
    ],
)
def test_patterns_of_windows(tmp_path: Path, changes: dict, full: int) -> None:
    shape = quietly(tmp_path, EXAONE_32B, **changes)
    assert len(shape.full_layers()) == full
    held = full * 65_536 + (64 - full) * 4096
    assert shape.kv_bytes(65_536, 65_536) == 4096 * held


def test_a_pattern_of_other_letters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"config.json:12: sliding_window_pattern: 'LXG' is nei"):
        read(tmp_path, EXAONE_32B, sliding_window_pattern="LXG")


@pytest.mark.parametrize(("window", "sliding"), [(262_144, 0), (131_072, 0), (131_071, 32)])
def test_a_window_that_nothing_fills_is_full_attention(
    tmp_path: Path, window: int, sliding: int
) -> None:
    shape = read(tmp_path, LLAMA, model_type="phi3", sliding_window=window)
    assert shape.count("sliding") == sliding
    assert shape.window_tokens == (window if sliding else None)


@pytest.mark.parametrize(
    ("changes", "head_dim"),
    [
        ({"model_type": "gemma2"}, 256),
        ({"model_type": "gemma3_text"}, 256),
        ({"model_type": "qwen3"}, 128),
        (
            {
                "model_type": "gpt_oss",
                "sliding_window": 128,
                "layer_types": ["full_attention"] * 32,
            },
            64,
        ),
        ({"model_type": "gemma", "head_dim": None}, 256),
        ({"model_type": "gemma", "head_dim": 64}, 64),
        ({"model_type": "mistral", "sliding_window": None}, 80),
    ],
)
def test_families_have_heads_of_their_own_where_the_file_says_nothing(
    tmp_path: Path, changes: dict, head_dim: int
) -> None:
    assert quietly(tmp_path, LLAMA | {"hidden_size": 2560} | changes).head_dim == head_dim


def test_what_is_taken_from_the_family_is_said(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="head_dim is absent: 256 taken, the default of gemma"):
        read(tmp_path, GEMMA_7B)


@pytest.mark.parametrize("kind", ["arcee", "llama", "novel"])
def test_squared_relu_has_no_gate_whatever_the_type(tmp_path: Path, kind: str) -> None:
    assert not quietly(tmp_path, ARCEE, model_type=kind).gated_mlp
    assert quietly(tmp_path, ARCEE, model_type="bitnet").gated_mlp


def test_lfm2_adjusts_its_width(tmp_path: Path) -> None:
    """Two thirds of 12,288 is 8192; of 10,000 it is 6666, in multiples of 256 then 6912."""
    old = {"intermediate_size": "absent", "block_auto_adjust_ff_dim": True, "num_heads": 32}
    assert read(tmp_path, LFM2, **old, block_ff_dim=12288).ffn == 8192
    assert read(tmp_path, LFM2, **old, block_ff_dim=10000).ffn == 6912
    assert read(tmp_path, LFM2).ffn == 8192


def test_heads_may_differ_by_layer(tmp_path: Path) -> None:
    shape = read(tmp_path, LAGUNA)
    assert shape.heads == 64
    assert shape.other_layers is not None
    assert [(o.layers, o.heads) for o in shape.other_layers] == [(list(range(0, 40, 4)), 48)]
    swa = {"swa_num_attention_heads": 64, "num_attention_heads_per_layer": "absent"}
    assert read(tmp_path, LAGUNA, **swa).weight_bytes() == shape.weight_bytes()


def test_per_layer_lists_are_of_as_many_layers_as_there_are(tmp_path: Path) -> None:
    message = r"config.json:7: num_key_value_heads_per_layer: lists 2 layers, not 32"
    with pytest.raises(InputError, match=message):
        read(tmp_path, DECILM_7B, num_key_value_heads_per_layer=[1, 2])


@pytest.mark.parametrize(
    ("rope", "tokens"),
    [
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}, 131_072),
        ({"rope_type": "yarn", "factor": 4.0}, 131_072),
        ({"type": "yarn", "factor": 2, "original_max_position_embeddings": 8192}, 32_768),
        ({"type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 32_768),
        ({"type": "longrope", "factor": 8.0}, 32_768),
        ({"type": "mrope", "mrope_section": [16, 24, 24]}, 32_768),
        (None, 32_768),
    ],
)
def test_yarn_stretches_the_original_context(tmp_path: Path, rope: Any, tokens: int) -> None:
    shape = read(tmp_path, LLAMA, max_position_embeddings=32768, rope_scaling=rope)
    assert shape.max_context_tokens == tokens
    stretched = quietly(
        tmp_path, GEMMA_7B, model_type="gemma3_text", sliding_window=1024, rope_scaling=rope
    )
    assert stretched.max_context_tokens == 8192


def test_a_scaled_context_is_not_scaled_twice(tmp_path: Path) -> None:
    rope = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
    shape = read(tmp_path, LLAMA, max_position_embeddings=163_840, rope_scaling=rope)
    assert shape.max_context_tokens == 163_840


def test_other_scalings_are_said_to_be_left_out(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="rope_scaling of type linear is not applied"):
        shape = read(tmp_path, LLAMA, rope_scaling={"type": "linear", "factor": 4.0})
    assert shape.max_context_tokens == 131_072
