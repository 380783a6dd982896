"""What single keys of a config change, and what a family says where they are absent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hfconfigs import LLAMA, read
from publicconfigs import ARCEE, DECILM_7B, ERNIE_21B, EXAONE_32B, GEMMA_7B, LAGUNA, LFM2, quietly

from essim.errors import InputError


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
