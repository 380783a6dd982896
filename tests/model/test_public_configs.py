"""Configs as families publish them: bytes worked out by hand from the architecture, in elements.

Counts of weights leave out biases and norms of single heads, as docs/models.md says.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from publicconfigs import (
    ARCEE,
    DBRX,
    DECILM_7B,
    ERNIE_21B,
    EXAONE_32B,
    GEMMA_7B,
    GRANITE_4_SMALL,
    HUNYUAN_A13B,
    KIMI_LINEAR_48B,
    LAGUNA,
    MPT_7B,
    NEMOTRON_H_8B,
    QWEN_7B,
    RECURRENT_GEMMA_2B,
    quietly,
)


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
