"""Whatever a config says, only an error for people comes out."""

from __future__ import annotations

import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
from hfconfigs import DEEPSEEK_V2_LITE, JAMBA, LLAMA, MIXTRAL
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from publicconfigs import (
    DBRX,
    DECILM_7B,
    ERNIE_21B,
    EXAONE_32B,
    GRANITE_4_SMALL,
    HUNYUAN_A13B,
    KIMI_LINEAR_48B,
    LAGUNA,
    LFM2,
    MPT_7B,
    NEMOTRON_H_8B,
    RECURRENT_GEMMA_2B,
)
from test_config_weights import AWQ, GPT_OSS_20B, GPTQ, INT4, QWEN_7B, tensors

from essim.errors import InputError
from essim.model.hf import read_config

YARN = {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}}
CONFIGS = [
    *(LLAMA | YARN, DEEPSEEK_V2_LITE, MIXTRAL, JAMBA, RECURRENT_GEMMA_2B, DECILM_7B, ERNIE_21B),
    *(LAGUNA, EXAONE_32B, LFM2, NEMOTRON_H_8B, KIMI_LINEAR_48B, DBRX, MPT_7B, HUNYUAN_A13B),
    *(GRANITE_4_SMALL, GPT_OSS_20B, {"text_config": LLAMA, "quantization_config": AWQ}),
    QWEN_7B | {"quantization_config": GPTQ},
    QWEN_7B | {"quantization_config": tensors(["lm_head", "self_attn"], **INT4)},
]
KEYS = sorted({key for config in CONFIGS for key in config})
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([-1, 0, 1, 2, 3, 7, 64, 10**4, 10**9, 10**18, -(10**18)]),
    st.floats(allow_nan=False),
    st.sampled_from(["", "full_attention", "LLLG", "fp8", "auto", "yarn", "*M-E", "gemma3", "7"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from([*KEYS, "quant_method", "factor", "type"]), inner),
    ),
    max_leaves=6,
)


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    """Return a real config, some keys of which are dropped, replaced, moved or borrowed."""
    config = json.loads(json.dumps(draw(st.sampled_from(CONFIGS))))
    for _ in range(draw(st.integers(1, 4))):
        places = [config, *(value for value in config.values() if isinstance(value, dict))]
        place = draw(st.sampled_from(places))
        key = draw(st.sampled_from(sorted(place) or KEYS))
        change = draw(st.sampled_from(["drop", "replace", "borrow", "scale"]))
        if change == "drop":
            place.pop(key, None)
        elif change == "replace":
            place[key] = draw(VALUES)
        elif change == "borrow":
            other = draw(st.sampled_from(CONFIGS))
            borrowed = draw(st.sampled_from(sorted(other)))
            place[borrowed] = json.loads(json.dumps(other[borrowed]))
        elif type(place.get(key)) is int:
            place[key] *= draw(st.sampled_from([0, 2, 3, 1000, 10**9]))
    return config


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(mutated())
def test_only_an_input_error_comes_out(config: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(config))
        try:
            shape = read_config(file)
            assert shape.kv_bytes_per_token() > 0
            assert shape.weight_bytes() > 0
            return
        except InputError as error:
            message = str(error)
    assert "config.json" in message or "model.recurrent" in message


@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: str(c.get("model_type", "nested")))
def test_what_is_mutated_can_be_read(tmp_path: Path, config: dict[str, Any]) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert read_config(file).kv_bytes_per_token() > 0
