"""A folder as Hugging Face keeps it: config.json, tokenizer.json and safetensors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from essim.errors import AbsentError, InputError
from measure.fidelity.weights.checkpoint import Checkpoint, Layer, Sizes, rope_frequencies
from measure.fidelity.weights.hashes import sha256
from measure.fidelity.weights.tokens import HINT, Tokens, from_json

_KINDS = ("llama", "qwen2", "mistral")
_NAMES = {
    "norm1": "input_layernorm.weight",
    "query": "self_attn.q_proj.weight",
    "key": "self_attn.k_proj.weight",
    "value": "self_attn.v_proj.weight",
    "output": "self_attn.o_proj.weight",
    "norm2": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "query_bias": "self_attn.q_proj.bias",
    "key_bias": "self_attn.k_proj.bias",
    "value_bias": "self_attn.v_proj.bias",
}


def read_folder(folder: Path) -> tuple[Checkpoint, Tokens]:
    """Return weights and tokenizer of a folder.

    Raises
    ------
    InputError
        If a file is missing, the model is of another type, or tensors are left that nothing reads.
    AbsentError
        Without the package safetensors.
    """
    config = _config(folder / "config.json")
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise InputError("no safetensors in this folder", file=folder)
    sizes = _sizes(folder / "config.json", config)
    tensors = _tensors(files)
    layers = []
    for index in range(sizes.layers):
        at = f"model.layers.{index}."
        own = {f: tensors.pop(at + n) for f, n in _NAMES.items() if at + n in tensors}
        layers.append(Layer(**own))
        tensors.pop(at + "self_attn.rotary_emb.inv_freq", None)
    embedding, norm = tensors.pop("model.embed_tokens.weight"), tensors.pop("model.norm.weight")
    head = tensors.pop("lm_head.weight", embedding)
    if tensors:
        message = f"tensors that are not read: {', '.join(sorted(tensors)[:4])}"
        raise InputError(message, file=folder)
    frequencies = _frequencies(folder / "config.json", config, sizes)
    name, digest = folder.resolve().name, sha256(files)
    made = Checkpoint(name, digest, sizes, embedding, tuple(layers), norm, head, frequencies)
    return made, from_json(folder / "tokenizer.json")


def _config(file: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read ({error})", file=file) from None
    if config.get("model_type") not in _KINDS or config.get("hidden_act", "silu") != "silu":
        kind = f"{config.get('model_type')!r} with {config.get('hidden_act')!r}"
        raise InputError(f"a model of type {kind}", f"Read: {', '.join(_KINDS)}", file=file)
    windowed = config.get("use_sliding_window", config["model_type"] == "mistral")
    if windowed and config.get("sliding_window"):
        hint = "Layers have to attend to the whole context"
        raise InputError("a sliding window is not read", hint, file=file, key="sliding_window")
    return config


def _sizes(file: Path, config: dict[str, Any]) -> Sizes:
    try:
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        return Sizes(
            layers=config["num_hidden_layers"],
            hidden=hidden,
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or hidden // heads,
            ffn=config["intermediate_size"],
            vocab=config["vocab_size"],
            rope_base=float((config.get("rope_parameters") or config).get("rope_theta", 10000.0)),
            norm_eps=config["rms_norm_eps"],
            max_context_tokens=config["max_position_embeddings"],
        )
    except KeyError as error:
        raise InputError("is missing", file=file, key=str(error.args[0])) from None


def _tensors(files: list[Path]) -> dict[str, Tensor]:
    try:
        from safetensors.torch import load_file
    except ModuleNotFoundError as error:
        raise AbsentError(f"reading safetensors needs {error.name}", HINT) from None
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors |= {name: tensor.float() for name, tensor in load_file(file).items()}
        except Exception as error:  # The package raises its own, of no common base.
            raise InputError(f"cannot be read ({error})", file=file) from None
    return tensors


def _frequencies(file: Path, config: dict[str, Any], sizes: Sizes) -> Tensor:
    """Return RoPE's frequencies, with Llama 3's scaling where the config asks for it."""
    frequencies = rope_frequencies(sizes)
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return frequencies
    if kind != "llama3":
        message = f"RoPE scaled by {kind!r} is not read"
        raise InputError(message, "'default' and 'llama3' are", file=file)
    factor, old = scaling["factor"], scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = old * frequencies / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return torch.lerp(frequencies / factor, frequencies, kept)
