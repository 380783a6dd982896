"""ModelShape: a transformer as the dozen integers that its decode time and memory depend on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, model_validator

from essim.yamlfile import Strict, nearest_hint, read_yaml, validate

DTYPE_BYTES: dict[str, int] = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}

Count = Annotated[int, Field(ge=1, le=10**9)]


def dtype_bytes(dtype: str) -> int:
    """Return bytes per element of `dtype`; an unknown name is a `ValueError`, never zero bytes."""
    if dtype not in DTYPE_BYTES:
        raise ValueError(f"unknown dtype {dtype!r}; one of {', '.join(DTYPE_BYTES)}")
    return DTYPE_BYTES[dtype]


class ModelShape(Strict):
    """A Llama-type decoder: every layer has grouped-query attention and a gated MLP.

    The GEMM shapes, bytes and FLOPs below follow from these fields alone.
    """

    name: str = "inline"
    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    ffn: Count
    vocab: Count
    max_context_tokens: Count = 131072
    tied_embeddings: bool = False
    weight_dtype: str = "bf16"
    kv_dtype: str = "bf16"

    @model_validator(mode="after")
    def _consistent(self) -> ModelShape:
        if self.heads % self.kv_heads:
            raise ValueError(
                f"heads ({self.heads}) must be a multiple of kv_heads ({self.kv_heads})"
            )
        dtype_bytes(self.weight_dtype)
        dtype_bytes(self.kv_dtype)
        return self

    @property
    def q_width(self) -> int:
        """Width of all query heads together, H*D."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of all KV heads together, G*D (of K alone, or of V alone)."""
        return self.kv_heads * self.head_dim

    @property
    def activation_bytes(self) -> int:
        """Bytes of one activation element: 16-bit, whatever the weights are stored in."""
        return 2

    def gemm_shape(self, name: str) -> tuple[int, int]:
        """Return (n, k) of a weight matrix: n outputs, k inputs.

        Parameters
        ----------
        name
            ``qkv``, ``o``, ``gate_up``, ``down`` or ``head`` (the LM head).
        """
        return {
            "qkv": (self.q_width + 2 * self.kv_width, self.hidden),
            "o": (self.hidden, self.q_width),
            "gate_up": (2 * self.ffn, self.hidden),
            "down": (self.hidden, self.ffn),
            "head": (self.vocab, self.hidden),
        }[name]

    def kv_bytes_per_token_layer(self) -> int:
        """Bytes of K and V that one token takes in one layer."""
        return 2 * self.kv_width * dtype_bytes(self.kv_dtype)

    def kv_bytes_per_token(self) -> int:
        """Bytes of K and V that one token takes in all layers (131,072 for llama-3.1-8b)."""
        return self.layers * self.kv_bytes_per_token_layer()

    def weight_bytes(self) -> int:
        """Bytes of all weights; tied embeddings are stored once, norms are 16-bit."""
        element = dtype_bytes(self.weight_dtype)
        per_layer = sum(n * k for n, k in map(self.gemm_shape, ("qkv", "o", "gate_up", "down")))
        norms = (2 * self.layers + 1) * self.hidden * self.activation_bytes
        # Embedding and LM head stay 16-bit in the quantised checkpoints that serving uses.
        tables = self.vocab * self.hidden * self.activation_bytes * (2 - self.tied_embeddings)
        return self.layers * per_layer * element + norms + tables


def _preset(name: str, *integers: int, tied: bool = False) -> ModelShape:
    layers, hidden, heads, kv_heads, head_dim, ffn, vocab, context = integers
    return ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=ffn,
        vocab=vocab,
        max_context_tokens=context,
        tied_embeddings=tied,
    )


# Integers of the published config.json files.
PRESETS: dict[str, ModelShape] = {
    shape.name: shape
    for shape in (
        _preset("llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256, 131072),
        _preset("llama-3-8b", 32, 4096, 32, 8, 128, 14336, 128256, 8192),
        _preset("llama-3.1-70b", 80, 8192, 64, 8, 128, 28672, 128256, 131072),
        _preset("mistral-7b-v0.2", 32, 4096, 32, 8, 128, 14336, 32000, 32768),
        _preset("qwen2.5-7b", 28, 3584, 28, 4, 128, 18944, 152064, 131072),
        _preset("qwen2.5-32b", 64, 5120, 40, 8, 128, 27648, 152064, 131072),
        _preset("smollm2-135m", 30, 576, 9, 3, 64, 1536, 49152, 8192, tied=True),
    )
}


def expand_model(spec: object, folder: Path) -> object:
    """Turn the ``model:`` of a scenario into a mapping of `ModelShape` fields.

    Parameters
    ----------
    spec
        A preset's name, the path of a Hugging Face ``config.json`` (relative to `folder`), or a
        mapping of fields, which may start from ``preset: NAME``. Anything else comes back as is.

    Raises
    ------
    ValueError
        If there is no such preset.
    InputError
        If the config cannot be read or modelled.
    """
    if isinstance(spec, dict) and "preset" in spec:
        rest = {key: value for key, value in spec.items() if key != "preset"}
        return _known_preset(spec["preset"]).model_dump() | rest
    if isinstance(spec, str):
        shape = read_config(folder / spec) if spec.endswith(".json") else _known_preset(spec)
        return shape.model_dump()
    return spec


def _known_preset(name: object) -> ModelShape:
    if name not in PRESETS:
        hint = nearest_hint(str(name), list(PRESETS))
        raise ValueError(f"no model {name!r}; {hint or 'a path must end in .json'}")
    return PRESETS[str(name)]


class _Config(Strict):
    """The fields of a Llama-type ``config.json`` that essim reads."""

    model_config = ConfigDict(extra="ignore")

    num_hidden_layers: Count
    hidden_size: Count
    num_attention_heads: Count
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    intermediate_size: Count
    vocab_size: Count
    max_position_embeddings: Count = 131072
    tie_word_embeddings: bool = False

    @model_validator(mode="after")
    def _head_dim_exact(self) -> _Config:
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"head_dim is absent and hidden_size ({self.hidden_size}) is not a multiple of "
                f"num_attention_heads ({self.num_attention_heads})"
            )
        return self


# Model types whose every layer is plain GQA attention and a gated MLP.
_PLAIN_TYPES = ("llama", "mistral", "qwen2")
# Keys that announce an architecture outside that shape, with what they mean.
_REFUSED_KEYS = {
    "kv_lora_rank": "multi-head latent attention (MLA)",
    "num_local_experts": "mixture of experts",
    "num_experts": "mixture of experts",
    "n_routed_experts": "mixture of experts",
    "layer_types": "layers of several kinds",
    "quantization_config": "quantised weights",
    "text_config": "a nested text model",
}


def read_config(file: Path) -> ModelShape:
    """Read a plain Llama-type Hugging Face ``config.json``.

    Raises
    ------
    InputError
        If the file is not such a config; what cannot be modelled is named.
    """
    document = read_yaml(file)
    data = document.data
    kind = data.get("model_type", "llama")
    if kind not in _PLAIN_TYPES:
        hint = f"Known: {', '.join(_PLAIN_TYPES)}; or write the shape as a mapping"
        raise document.error(f"model type {kind!r} cannot be modelled", hint, at=("model_type",))
    for key, meaning in _REFUSED_KEYS.items():
        if data.get(key):
            hint = "Write the shape as a mapping if it is close enough"
            raise document.error(f"{meaning} cannot be modelled", hint, at=(key,))
    if data.get("sliding_window") and data.get("use_sliding_window", kind == "mistral"):
        raise document.error("sliding-window attention cannot be modelled", at=("sliding_window",))
    config = validate(_Config, data, document)
    fields = {
        "name": file.parent.name or file.stem,
        "layers": config.num_hidden_layers,
        "hidden": config.hidden_size,
        "heads": config.num_attention_heads,
        "kv_heads": config.num_key_value_heads or config.num_attention_heads,
        "head_dim": config.head_dim or config.hidden_size // config.num_attention_heads,
        "ffn": config.intermediate_size,
        "vocab": config.vocab_size,
        "max_context_tokens": config.max_position_embeddings,
        "tied_embeddings": config.tie_word_embeddings,
    }
    return validate(ModelShape, fields, document)
