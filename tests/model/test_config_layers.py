"""What a config says of each layer: windows, hybrids, latents, experts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hfconfigs import DEEPSEEK_V2_LITE, LLAMA, MIXTRAL, read

from essim.errors import InputError


@pytest.mark.parametrize(
    ("changes", "sliding"),
    [
        ({"model_type": "mistral", "sliding_window": 4096}, range(32)),
        ({"model_type": "mistral", "sliding_window": None}, []),
        ({"model_type": "qwen2", "sliding_window": 4096}, []),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, []),
        (
            {
                "model_type": "qwen2",
                "sliding_window": 4096,
                "use_sliding_window": True,
                "max_window_layers": 28,
            },
            range(28, 32),
        ),
        ({"model_type": "gemma2", "sliding_window": 4096}, range(0, 32, 2)),
        (
            {"model_type": "gemma3_text", "sliding_window": 4096, "sliding_window_pattern": 6},
            [i for i in range(32) if i % 6 != 5],
        ),
        (
            {
                "model_type": "gpt_oss",
                "sliding_window": 128,
                "layer_types": ["sliding_attention", "full_attention"] * 16,
            },
            range(0, 32, 2),
        ),
    ],
)
def test_which_layers_have_a_window(tmp_path: Path, changes: dict, sliding) -> None:
    shape = read(tmp_path, LLAMA | {"head_dim": 128} | changes)
    assert [i for i in range(32) if shape.mixer(i) == "sliding"] == list(sliding)
    assert shape.window_tokens == (changes["sliding_window"] if sliding else None)


HYBRID = {
    "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 8,
    "full_attention_interval": 4,
    "linear_attn_config": {"full_attn_layers": list(range(4, 33, 4))},
    "attn_type_list": [0, 0, 0, 1] * 8,
    "attn_layer_indices": list(range(3, 32, 4)),
    "full_attn_idxs": list(range(3, 32, 4)),
    "layers_block_type": ["mamba", "mamba", "mamba", "attention"] * 8,
    "hybrid_override_pattern": "M-E*" * 8,
}


EXPERTS = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 1024}


@pytest.mark.parametrize("key", HYBRID)
def test_every_notation_of_a_hybrid_says_which_layers_hold_kv(tmp_path: Path, key: str) -> None:
    experts = EXPERTS if "override" in key else {}
    shape = read(tmp_path, LLAMA, **{key: HYBRID[key]}, **experts)
    assert shape.full_layers() == list(range(3, 32, 4))
    assert shape.kv_bytes_per_token() == 8 * 4096
    with pytest.raises(InputError, match=r"model.recurrent: .* layers of .* have no attention"):
        shape.weight_bytes()


def test_a_latent_is_one_vector_the_same_on_every_rank(tmp_path: Path) -> None:
    shape = read(tmp_path, DEEPSEEK_V2_LITE)
    assert shape.kv_bytes_per_token() == 31_104
    ranks = shape.model_copy(update={"tp": 4})
    assert ranks.rank().kv_bytes_per_token() == ranks.kv_bytes_per_token() == 31_104


def test_a_hybrid_of_latents_holds_kv_where_it_attends(tmp_path: Path) -> None:
    attending = [*range(4, 94, 4), 93]
    shape = read(
        tmp_path,
        DEEPSEEK_V2_LITE,
        model_type="kimi_linear",
        num_hidden_layers=93,
        linear_attn_config={"full_attn_layers": attending, "num_heads": 16, "head_dim": 128}
        | {"short_conv_kernel_size": 4},
    )
    assert len(shape.full_layers()) == 24
    assert shape.kv_bytes_per_token() == 27_648
    # Each other layer holds a 128x128 state a head in fp32, and three steps of q, k and v.
    assert shape.state_bytes() == 69 * (16 * 128 * 128 * 4 + 3 * 16 * 128 * 3 * 2)


@pytest.mark.parametrize(
    ("changes", "moe"),
    [
        ({}, range(32)),
        ({"first_k_dense_replace": 3}, range(3, 32)),
        ({"decoder_sparse_step": 2}, range(1, 32, 2)),
        ({"mlp_only_layers": [0, 5]}, [i for i in range(32) if i not in (0, 5)]),
        ({"expert_layer_period": 2, "expert_layer_offset": 1}, range(1, 32, 2)),
        ({"moe_layer_freq": [0] + [1] * 31}, range(1, 32)),
        ({"num_local_experts": 1}, []),
    ],
)
def test_which_layers_have_experts(tmp_path: Path, changes: dict, moe) -> None:
    shape = read(tmp_path, MIXTRAL | changes)
    assert [i for i in range(32) if shape.mlp(i) == "moe"] == list(moe)
