import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from essim.configs import expand_model, read_config
from essim.errors import InputError
from essim.model import PRESETS, ModelShape

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
    "rope_theta": 500000.0,
}


def config(folder: Path, **changes: object) -> Path:
    file = folder / "config.json"
    fields = {k: v for k, v in (LLAMA | changes).items() if v != "absent"}
    file.write_text(json.dumps(fields, indent=1))
    return file


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


def test_a_config_json_gives_the_preset(tmp_path: Path) -> None:
    shape = read_config(config(tmp_path))
    preset = PRESETS["llama-3.1-8b"]
    assert shape.model_dump() | {"name": ""} == preset.model_dump() | {"name": ""}


def test_an_explicit_head_dim_wins(tmp_path: Path) -> None:
    file = config(
        tmp_path, num_hidden_layers=36, hidden_size=2560, num_attention_heads=32, head_dim=128
    )
    assert read_config(file).kv_bytes_per_token() == 147456


def test_null_head_dim_and_absent_kv_heads_fall_back(tmp_path: Path) -> None:
    shape = read_config(config(tmp_path, head_dim=None, num_key_value_heads="absent"))
    assert (shape.head_dim, shape.kv_heads) == (128, 32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "deepseek_v3"}, "config.json:2: model_type: model type 'deepseek_v3'"),
        ({"kv_lora_rank": 512}, "kv_lora_rank: multi-head latent attention"),
        ({"num_local_experts": 8}, "num_local_experts: mixture of experts"),
        ({"model_type": "mistral", "sliding_window": 4096}, "sliding_window: sliding-window"),
        ({"hidden_size": 4097}, "hidden_size (4097) is not a multiple of num_attention_heads (32)"),
        ({"num_key_value_heads": 5}, "heads (32) must be a multiple of kv_heads (5)"),
        ({"num_hidden_layers": "absent"}, "num_hidden_layers: required, but missing"),
        ({"num_hidden_layers": 0}, "config.json:3: num_hidden_layers: input should be greater"),
        ({"vocab_size": "many"}, "vocab_size: input should be a valid integer"),
    ],
)
def test_what_cannot_be_modelled_is_refused_by_name(tmp_path, changes, message: str) -> None:
    with pytest.raises(InputError) as error:
        read_config(config(tmp_path, **changes))
    assert message in str(error.value)


def test_unused_sliding_window_is_no_obstacle(tmp_path: Path) -> None:
    file = config(tmp_path, model_type="qwen2", sliding_window=131072, use_sliding_window=False)
    assert read_config(file).layers == 32


def test_a_mapping_may_start_from_a_preset(tmp_path: Path) -> None:
    fields = expand_model({"preset": "llama-3.1-8b", "kv_dtype": "fp8"}, tmp_path)
    assert ModelShape(**fields).kv_bytes_per_token() == 65536


def test_unknown_dtypes_are_errors_not_zero_bytes() -> None:
    fields = PRESETS["llama-3.1-8b"].model_dump() | {"kv_dtype": "int3"}
    with pytest.raises(ValidationError, match="unknown dtype 'int3'"):
        ModelShape(**fields)
