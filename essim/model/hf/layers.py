"""Which layers of a config attend, to how much, and which have experts.

Every family says it with keys of its own; each rule below is that family's reference code.
"""

from __future__ import annotations

from essim.model.blocks import Count, Mixer, Mlp
from essim.model.hf.source import Part, Source

_NAMES: dict[str, Mixer] = {
    "full_attention": "full",
    "attention": "full",
    "global": "full",
    "sliding_attention": "sliding",
    "local": "sliding",
    "linear_attention": "recurrent",
    "mamba": "recurrent",
    "mamba2": "recurrent",
    "conv": "recurrent",
}
# Nemotron-H: a layer is a mixer or an MLP, never both.
_LETTERS: dict[str, tuple[Mixer, Mlp]] = {
    "*": ("full", "none"),
    "M": ("recurrent", "none"),
    "-": ("none", "dense"),
    "E": ("none", "moe"),
}
# Without attention layers named, these keys say that some layers are not attention.
_RECURRENT_KEYS = (
    "mamba_",
    "ssm_",
    "linear_num_",
    "linear_attn_",
    "lightning_",
    "rwkv_",
    "conv_L_",
)
# Model types of which `sliding_window` means nothing unless `use_sliding_window` is true.
_SLIDING_ON_REQUEST = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
# Every n-th layer is full where the config leaves the pattern to the model type.
_PATTERN_OF_TYPE = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}


class _LinearAttention(Part):
    full_attn_layers: list[Count]


class _Layers(Part):
    layer_types: list[str] | None = None
    layers_block_type: list[str] | None = None
    hybrid_override_pattern: str | None = None
    linear_attn_config: _LinearAttention | None = None
    attn_type_list: list[int] | None = None
    attn_layer_indices: list[int] | None = None
    full_attn_idxs: list[int] | None = None
    attn_layer_period: Count | None = None
    attn_layer_offset: int = 0
    full_attention_interval: Count | None = None
    sliding_window: Count | None = None
    sliding_window_pattern: Count | None = None
    use_sliding_window: bool | None = None
    max_window_layers: int | None = None


class _Experts(Part):
    first_k_dense_replace: int = 0
    moe_layer_freq: int | list[int] = 1
    decoder_sparse_step: Count = 1
    mlp_only_layers: list[int] | None = None
    expert_layer_period: Count = 1
    expert_layer_offset: int = 0


def mixers(source: Source, kind: str, layers: int) -> list[Mixer]:
    """Return the mixer of each layer.

    Raises
    ------
    InputError
        If a kind of layer cannot be modelled, or it is not said which layers attend.
    """
    keys = source.read(_Layers)
    for key, listed in (
        ("layer_types", keys.layer_types),
        ("layers_block_type", keys.layers_block_type),
    ):
        if listed is not None:
            return _named(source, key, listed, layers)
    if keys.hybrid_override_pattern is not None:
        return [mixer for mixer, _ in _letters(source, keys.hybrid_override_pattern, layers)]
    attending = _attending(source, keys, layers)
    if attending is not None:
        return ["full" if i in attending else "recurrent" for i in range(layers)]
    for key in source.data:
        if key.startswith(_RECURRENT_KEYS) and source.data[key]:
            message = "the config has layers without attention, but does not say which"
            raise source.error(key, message, "Add layer_types")
    return _windowed(keys, kind, layers)


def _named(source: Source, key: str, listed: list[str], layers: int) -> list[Mixer]:
    for name in listed:
        if name not in _NAMES:
            hint = f"Known: {', '.join(_NAMES)}"
            raise source.error(key, f"layers of kind {name!r} cannot be modelled", hint)
    if len(listed) != layers:
        raise source.error(key, f"lists {len(listed)} layers, not {layers}")
    return [_NAMES[name] for name in listed]


def _letters(source: Source, pattern: str, layers: int) -> list[tuple[Mixer, Mlp]]:
    key = "hybrid_override_pattern"
    for letter in pattern:
        if letter not in _LETTERS:
            hint = f"Known: {' '.join(_LETTERS)}"
            raise source.error(key, f"layers of kind {letter!r} cannot be modelled", hint)
    if len(pattern) != layers:
        raise source.error(key, f"lists {len(pattern)} layers, not {layers}")
    return [_LETTERS[letter] for letter in pattern]


def _attending(source: Source, keys: _Layers, layers: int) -> set[int] | None:
    """Return the layers that attend where the others do not, or None where all do."""
    key, found = "", None
    if keys.linear_attn_config is not None:
        # Kimi Linear counts layers from 1.
        key, found = "linear_attn_config", [i - 1 for i in keys.linear_attn_config.full_attn_layers]
    elif keys.attn_type_list is not None:
        if len(keys.attn_type_list) != layers:
            message = f"lists {len(keys.attn_type_list)} layers, not {layers}"
            raise source.error("attn_type_list", message)
        found = [i for i, attends in enumerate(keys.attn_type_list) if attends]
    elif keys.attn_layer_indices is not None or keys.full_attn_idxs is not None:
        key = "full_attn_idxs" if keys.attn_layer_indices is None else "attn_layer_indices"
        found = keys.attn_layer_indices or keys.full_attn_idxs or []
    elif keys.attn_layer_period is not None:
        period, offset = keys.attn_layer_period, keys.attn_layer_offset
        found = [i for i in range(layers) if i % period == offset]
    elif keys.full_attention_interval is not None:
        found = [i for i in range(layers) if (i + 1) % keys.full_attention_interval == 0]
    for i in found or ():
        if not 0 <= i < layers:
            raise source.error(key, f"names a layer outside the {layers} there are")
    return None if found is None else set(found)


def _windowed(keys: _Layers, kind: str, layers: int) -> list[Mixer]:
    used = keys.use_sliding_window
    if used is None:
        used = kind not in _SLIDING_ON_REQUEST
    if keys.sliding_window is None or not used:
        return ["full"] * layers
    pattern = keys.sliding_window_pattern or _PATTERN_OF_TYPE.get(kind)
    if pattern is not None:
        return ["sliding" if (i + 1) % pattern else "full" for i in range(layers)]
    first = (keys.max_window_layers or 0) if kind in _SLIDING_ON_REQUEST else 0
    return ["sliding" if i >= first else "full" for i in range(layers)]


def window_tokens(source: Source) -> int | None:
    """Return the sliding window, whether or not a layer uses it."""
    return source.read(_Layers).sliding_window


def mlps(source: Source, layers: int, experts: bool) -> list[Mlp]:
    """Return the MLP of each layer of a model with `experts`, or without."""
    pattern = source.read(_Layers).hybrid_override_pattern
    if pattern is not None:
        return [mlp for _, mlp in _letters(source, pattern, layers)]
    keys = source.read(_Experts)
    freq, step, period = keys.moe_layer_freq, keys.decoder_sparse_step, keys.expert_layer_period
    if isinstance(freq, list) and len(freq) != layers:
        raise source.error("moe_layer_freq", f"lists {len(freq)} layers, not {layers}")
    chosen = [
        i >= keys.first_k_dense_replace
        and (freq[i] > 0 if isinstance(freq, list) else i % max(freq, 1) == 0)
        and (i + 1) % step == 0
        and i % period == keys.expert_layer_offset
        and i not in (keys.mlp_only_layers or ())
        for i in range(layers)
    ]
    return ["moe" if experts and here else "dense" for here in chosen]
