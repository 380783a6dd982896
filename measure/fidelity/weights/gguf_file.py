"""A GGUF file of architecture llama (Llama, Mistral, SmolLM2) or qwen2, dequantised to float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from essim.errors import AbsentError, InputError
from measure.fidelity.weights.checkpoint import Checkpoint, Layer, Sizes, rope_frequencies
from measure.fidelity.weights.hashes import sha256
from measure.fidelity.weights.tokens import Tokens, byte_level_bpe

HINT = "pip install 'essim[fidelity]'"
# Field of a layer -> its tensor's name in the file.
_NAMES = {
    "norm1": "attn_norm.weight",
    "query": "attn_q.weight",
    "key": "attn_k.weight",
    "value": "attn_v.weight",
    "output": "attn_output.weight",
    "norm2": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "query_bias": "attn_q.bias",
    "key_bias": "attn_k.bias",
    "value_bias": "attn_v.bias",
}


def read_gguf(file: Path) -> tuple[Checkpoint, Tokens]:
    """Return weights and tokenizer of a GGUF file.

    Raises
    ------
    InputError
        If it is no GGUF, of another architecture, or has tensors that nothing here reads.
    AbsentError
        Without the package gguf.
    """
    fields, tensors = _contents(file)
    kind = fields.get("general.architecture")
    if kind not in ("llama", "qwen2"):
        hint = "Models of the Llama, Qwen2 or Mistral type are read"
        raise InputError(f"architecture {kind!r}", hint, file=file)
    sizes = _sizes(file, fields, str(kind), tensors)
    # llama.cpp keeps rotated pairs side by side in llama's rows; qwen2's rotate halves already.
    paired = kind == "llama"
    layers = tuple(_layer(tensors, index, sizes, paired) for index in range(sizes.layers))
    embedding, norm = tensors.pop("token_embd.weight"), tensors.pop("output_norm.weight")
    head = tensors.pop("output.weight", embedding)
    frequencies = rope_frequencies(sizes)
    if "rope_freqs.weight" in tensors:
        frequencies = frequencies / tensors.pop("rope_freqs.weight")
    elif f"{kind}.rope.scaling.type" in fields:
        raise InputError("RoPE is scaled in a way that is not read", file=file)
    if tensors:
        raise InputError(f"tensors that are not read: {', '.join(sorted(tensors)[:4])}", file=file)
    name = f"{file.name.removesuffix('.gguf')}"
    made = Checkpoint(name, sha256([file]), sizes, embedding, layers, norm, head, frequencies)
    return made, byte_level_bpe(file, fields)


def _contents(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return metadata and tensors; matrices are [outputs, inputs]."""
    try:
        from gguf import GGUFReader
        from gguf.quants import dequantize
    except ModuleNotFoundError as error:
        raise AbsentError(f"reading a GGUF needs {error.name}", HINT) from None
    try:
        reader = GGUFReader(file)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read as GGUF ({error})", file=file) from None
    fields = {name: field.contents() for name, field in reader.fields.items()}
    tensors = {
        tensor.name: torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).copy()).float()
        for tensor in reader.tensors
    }
    return fields, tensors


def _sizes(file: Path, fields: dict[str, Any], kind: str, tensors: dict[str, Tensor]) -> Sizes:
    def of(key: str, otherwise: Any = None) -> Any:
        value = fields.get(f"{kind}.{key}", otherwise)
        if value is None:
            raise InputError("is not in the file", file=file, key=f"{kind}.{key}")
        return value

    heads, hidden = of("attention.head_count"), of("embedding_length")
    if of("expert_count", 0):
        raise InputError("a mixture of experts is not read", file=file)
    return Sizes(
        layers=of("block_count"),
        hidden=hidden,
        heads=heads,
        kv_heads=of("attention.head_count_kv", heads),
        head_dim=of("attention.key_length", hidden // heads),
        ffn=of("feed_forward_length"),
        vocab=len(tensors["token_embd.weight"]),
        rope_base=of("rope.freq_base", 10000.0),
        norm_eps=of("attention.layer_norm_rms_epsilon"),
        max_context_tokens=of("context_length"),
    )


def _layer(tensors: dict[str, Tensor], index: int, sizes: Sizes, paired: bool) -> Layer:
    """Take the tensors of a layer out of `tensors`."""
    own = {
        field: tensors.pop(f"blk.{index}.{name}")
        for field, name in _NAMES.items()
        if f"blk.{index}.{name}" in tensors
    }
    if paired:
        for field, heads in (("query", sizes.heads), ("key", sizes.kv_heads)):
            own[field] = halves(own[field], heads)
    return Layer(**own)


def halves(rows: Tensor, heads: int) -> Tensor:
    """Return rows [heads D, inputs] whose rotated pairs lie side by side with halves apart.

    The file has rows (0, D/2, 1, D/2+1, ...) of each head; the forward pass rotates x[:D/2]
    against x[D/2:].
    """
    apart = rows.view(heads, -1, 2, rows.shape[-1]).transpose(1, 2)
    return apart.reshape(rows.shape)
