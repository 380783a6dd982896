"""Read a model: a preset, a ``config.json``, or a mapping that starts from one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import AliasChoices, Field

from essim.errors import BadValueError
from essim.model.hf.blocks import read_mla, read_moe, read_recurrent
from essim.model.hf.layers import mixers, mlps, window_tokens
from essim.model.hf.source import Part, Source
from essim.model.shape import PRESETS, Count, ModelShape
from essim.text.yaml import nearest_hint, read_yaml, validate

# Model types whose MLP has two matrices, not the three of a gated one.
_PLAIN_MLP = (
    *("bloom", "codegen", "falcon", "gpt2", "gpt_bigcode", "gpt_neo", "gpt_neox", "gptj", "mpt"),
    *("nemotron", "nemotron_h", "opt", "persimmon", "phi", "starcoder2"),
)
# Known to be a decoder with a gated MLP; of another type only the keys can tell.
_GATED_MLP = (
    *("bamba", "chatglm", "cohere", "cohere2", "deepseek_v2", "deepseek_v3", "gemma", "gemma2"),
    *("gemma3", "gemma3_text", "glm4", "glm4_moe", "gpt_oss", "granite", "granitemoehybrid"),
    *("internlm2", "jamba", "kimi_k2", "kimi_linear", "lfm2", "llama", "minimax", "mistral"),
    *("mixtral", "olmo2", "olmo3", "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
    *("qwen3_next", "smollm3", "stablelm", "yi"),
)
# Types that tie the embeddings where the config does not say.
_TIED = (
    *("bloom", "cohere", "cohere2", "falcon", "gemma", "gemma2", "gemma3", "gemma3_text", "gpt2"),
    *("gpt_bigcode", "gpt_neo", "mpt", "opt", "starcoder2"),
)
# Keys that announce what cannot be modelled, with what they mean.
_REFUSED = {
    "attention_chunk_size": "chunked attention",
    "attention_types": "attention kinds in GPT-Neo's notation",
    "attn_config": "nested attention settings",
    "block_configs": "layers of several sizes",
    "cross_attention_layers": "cross-attention",
    "global_head_dim": "layers of several head sizes",
    "index_topk": "attention with a built-in token indexer",
    "is_encoder_decoder": "an encoder-decoder",
    "num_kv_shared_layers": "layers that share KV",
    "swa_num_key_value_heads": "layers with several numbers of KV heads",
    "use_cla": "layers that share KV",
}
_NESTED = ("text_config", "llm_config", "language_config")


def _named(*names: str, default: Any = ...) -> Any:
    return Field(default, validation_alias=AliasChoices(*names))


class _Config(Part):
    """The sizes of a ``config.json``, under every name that families use."""

    layers: Count = _named("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    hidden: Count = _named("hidden_size", "n_embd", "d_model")
    heads: Count = _named("num_attention_heads", "n_head", "n_heads")
    kv_heads: Count | None = _named(
        *("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"), default=None
    )
    multi_query: bool = False
    new_decoder_architecture: bool = False
    head_dim: Count | None = _named("head_dim", "kv_channels", default=None)
    ffn: Count | None = _named(
        *("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"), default=None
    )
    vocab: Count = _named("vocab_size", "padded_vocab_size", "n_vocab")
    context: Count | None = _named(
        *("max_position_embeddings", "n_positions", "n_ctx", "seq_length", "max_seq_len"),
        *("max_sequence_length", "model_max_length"),
        default=None,
    )


def expand_model(spec: object, folder: Path) -> object:
    """Turn the ``model:`` of a scenario into a mapping of `ModelShape` fields.

    Parameters
    ----------
    spec
        A preset's name, the path of a Hugging Face ``config.json`` (relative to `folder`), or a
        mapping of fields, in which ``preset:`` may name either to start from. Anything else comes
        back as is.

    Raises
    ------
    ValueError
        If there is no such preset.
    InputError
        If the config cannot be read or modelled.
    """
    if isinstance(spec, dict) and "preset" in spec:
        rest = {key: value for key, value in spec.items() if key != "preset"}
        return _known(spec["preset"], folder).model_dump() | rest
    return _known(spec, folder).model_dump() if isinstance(spec, str) else spec


def _known(name: object, folder: Path) -> ModelShape:
    if isinstance(name, str) and name.endswith(".json"):
        return read_config(folder / name)
    if str(name) not in PRESETS:
        hint = nearest_hint(str(name), list(PRESETS))
        raise BadValueError(f"no model {name!r}", hint or "A path must end in .json")
    return PRESETS[str(name)]


def read_config(file: Path) -> ModelShape:
    """Read a Hugging Face ``config.json`` of a decoder.

    Every number that is assumed because the config leaves it out is said in a warning.

    Raises
    ------
    InputError
        If the file is not such a config; what cannot be modelled is named.
    """
    document = read_yaml(file)
    source = Source(document, document.data)
    for key in _NESTED:
        if isinstance(document.data.get(key), dict):
            source = source.nested(key)
            source.warn(f"only the text model under {key} is read")
            break
    kind = str(source.data.get("model_type", "llama"))
    _refuse(source)
    if kind not in (*_PLAIN_MLP, *_GATED_MLP):
        source.warn(f"model type {kind!r} is not known: taken as a decoder with gated MLPs")
    config = source.read(_Config)
    tied = document.data | source.data
    fields = {
        "name": (file.parent.name if file.stem == "config" else "") or file.stem,
        **_attention(source, config),
        **_layers(source, config, kind),
        "hidden": config.hidden,
        "vocab": config.vocab,
        "max_context_tokens": _context_tokens(source, config),
        "tied_embeddings": tied.get("tie_word_embeddings", kind in _TIED),
        "weight_dtype": _weight_dtype(source),
        "gated_mlp": kind not in _PLAIN_MLP,
    }
    return validate(ModelShape, fields, document)


def _refuse(source: Source) -> None:
    for key, meaning in _REFUSED.items():
        if source.data.get(key):
            hint = "Write the shape as a mapping if it is close enough"
            raise source.error(key, f"{meaning} cannot be modelled", hint)


def _weight_dtype(source: Source) -> str:
    """16-bit weights are bf16 whatever the checkpoint holds: bytes and kernels are the same."""
    quantised = source.data.get("quantization_config")
    if not quantised:
        return "bf16"
    method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised
    if method != "fp8":
        hint = "Delete the key to model 16-bit weights"
        raise source.error(
            "quantization_config", f"weights quantised by {method!r} cannot be modelled", hint
        )
    return "fp8"


def _context_tokens(source: Source, config: _Config) -> int:
    if config.context is None:
        source.warn("max_position_embeddings is absent: a context of 131072 tokens taken")
    return config.context or 131072


def _attention(source: Source, config: _Config) -> dict[str, Any]:
    """Return the heads; of latents the KV heads are virtual, one a query head."""
    heads, mla = config.heads, read_mla(source)
    if mla is not None:
        width = mla.nope_dim + mla.rope_dim
        fields = {"heads": heads, "kv_heads": heads, "head_dim": width}
        return fields | {"mla": mla.model_dump()}
    if config.head_dim is None and config.hidden % heads:
        key = next(k for k in ("hidden_size", "n_embd", "d_model") if k in source.data)
        message = (
            f"hidden_size ({config.hidden}) is not a multiple of num_attention_heads ({heads})"
        )
        raise source.error(key, message, "Give head_dim")
    kv_heads = config.kv_heads
    if config.multi_query and not config.new_decoder_architecture:
        kv_heads = 1
    if kv_heads is None:
        source.warn(f"num_key_value_heads is absent: {heads} taken, one for each attention head")
    head_dim = config.head_dim or config.hidden // heads
    return {"heads": heads, "kv_heads": kv_heads or heads, "head_dim": head_dim}


def _layers(source: Source, config: _Config, kind: str) -> dict[str, Any]:
    """Return the layers; a list that says nothing (all full, all of one MLP) is left out."""
    ffn = config.ffn
    if ffn is None and kind in _PLAIN_MLP:
        ffn = 4 * config.hidden
        source.warn(f"intermediate_size is absent: {ffn} taken, four times the hidden size")
    width = ffn or source.data.get("moe_intermediate_size")
    if width is None:
        raise source.error("intermediate_size", "required, but missing")
    moe = read_moe(source, width)
    mixer, mlp = mixers(source, kind, config.layers), mlps(source, config.layers, moe is not None)
    fields: dict[str, Any] = {"layers": config.layers, "ffn": width}
    if set(mixer) != {"full"}:
        fields["mixers"] = mixer
    if "sliding" in mixer:
        fields["window_tokens"] = window_tokens(source)
    if moe is not None and "moe" in mlp:
        fields["moe"] = moe.model_dump()
    if len(set(mlp)) > 1:
        fields["mlps"] = mlp
    if "recurrent" in mixer:
        recurrent = read_recurrent(source, config.hidden)
        fields["recurrent"] = recurrent.model_dump() if recurrent else None
    return fields
