"""Which layers of a config attend, and to how much.

Every family says it with keys of its own; each rule below is that family's reference code.
"""

from __future__ import annotations

from typing import Any

from pydantic import AliasChoices, Field

from essim.model.blocks import Count, Mixer, Mlp
from essim.model.hf.families import ALL_SLIDING, PATTERNS, SLIDING_ON_REQUEST
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
    "recurrent": "recurrent",
}
# Nemotron-H: a layer is a mixer or an MLP, never both.
_LETTERS: dict[str, tuple[Mixer, Mlp]] = {
    "*": ("full", "none"),
    "M": ("recurrent", "none"),
    "-": ("none", "dense"),
    "E": ("none", "moe"),
}
_BLOCKS = {"attention": "*", "full_attention": "*", "mlp": "-", "moe": "E"} | dict.fromkeys(
    ("mamba", "mamba2", "linear_attention"), "M"
)
# Sizes of layers without attention; without attention layers named, they say that there are some.
_RECURRENT_KEYS = (
    *("mamba_", "ssm_", "linear_num_", "linear_attn_", "lightning_", "rwkv_", "conv_L_"),
    *("linear_key_", "linear_value_", "linear_conv_", "lru_"),
)
_PATTERN_KEYS = ("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers")
_SIZES_OF_RECURRENCE = (*_RECURRENT_KEYS, "linear_", "conv", "expand", "n_groups", "state_size")


class _LinearAttention(Part):
    full_attn_layers: list[Count]
    kda_layers: list[Count] | None = None


class _Layers(Part):
    layer_types: list[str] | None = None
    layers_block_type: list[str] | None = None
    block_types: list[str] | None = None
    attention_window_size: Count | None = None
    hybrid_override_pattern: str | None = None
    linear_attn_config: _LinearAttention | None = None
    attn_type_list: list[int] | None = None
    attn_layer_indices: list[int] | None = None
    full_attn_idxs: list[int] | None = None
    attn_layer_period: Count | None = None
    attn_layer_offset: int = 0
    full_attention_interval: Count | None = None


class _Windows(Part):
    sliding_window: int | None = Field(None, ge=-1, le=10**9)
    pattern: Any = Field(
        None,
        validation_alias=AliasChoices(*_PATTERN_KEYS),
    )
    use_sliding_window: bool | None = None
    max_window_layers: int | None = None


def mixers(source: Source, kind: str, layers: int) -> list[Mixer]:
    """Return the mixer of each layer.

    Raises
    ------
    InputError
        If a kind of layer cannot be modelled, or it is not said which layers attend.
    """
    keys, windows = source.read(_Layers), source.read(_Windows)
    listed = _listed(source, keys, layers)
    if listed is None:
        for key in source.data:
            if key.startswith(_RECURRENT_KEYS) and source.data[key]:
                message = "the config has layers without attention, but does not say which"
                raise source.error(key, message, "Add layer_types")
        return _windowed(source, windows, kind, layers)
    for key in source.data:
        if key.startswith(_SIZES_OF_RECURRENCE):
            source.get(key)
    return listed


def _listed(source: Source, keys: _Layers, layers: int) -> list[Mixer] | None:
    """Return the mixers that the config lists layer by layer, None where it lists none."""
    pairs = single_purpose(source, layers)
    if pairs is not None:
        return [mixer for mixer, _ in pairs]
    for key in ("layer_types", "layers_block_type"):
        if getattr(keys, key) is not None:
            return _named(source, key, getattr(keys, key), layers)
    if keys.block_types:
        # RecurrentGemma: the types repeat, and attention has a window.
        repeated = (keys.block_types * layers)[:layers]
        named = _named(source, "block_types", repeated, layers)
        return ["sliding" if mixer == "full" else mixer for mixer in named]
    attending = _attending(source, keys, layers)
    if attending is None:
        return None
    return ["full" if i in attending else "recurrent" for i in range(layers)]


def _named(source: Source, key: str, listed: list[str], layers: int) -> list[Mixer]:
    for name in listed:
        if name not in _NAMES:
            hint = f"Known: {', '.join(_NAMES)}"
            raise source.error(key, f"layers of kind {name!r} cannot be modelled", hint)
    if len(listed) != layers:
        raise source.error(key, f"lists {len(listed)} layers, not {layers}")
    return [_NAMES[name] for name in listed]


def single_purpose(source: Source, layers: int) -> list[tuple[Mixer, Mlp]] | None:
    """Return the layers of a model each of which is a mixer or an MLP, None of another."""
    keys = source.read(_Layers)
    key, letters = "hybrid_override_pattern", keys.hybrid_override_pattern
    blocks = keys.layers_block_type or []
    if letters is None and {"mlp", "moe"} & set(blocks):
        key, letters = "layers_block_type", "".join(_BLOCKS.get(name, "?") for name in blocks)
    if letters is None:
        return None
    for letter in letters:
        if letter not in _LETTERS:
            hint = f"Known: {' '.join(_LETTERS)}"
            raise source.error(key, f"layers of kind {letter!r} cannot be modelled", hint)
    if len(letters) != layers:
        raise source.error(key, f"lists {len(letters)} layers, not {layers}")
    return [_LETTERS[letter] for letter in letters]


def _attending(source: Source, keys: _Layers, layers: int) -> set[int] | None:
    """Return the layers that attend where the others do not, or None where all do."""
    key, found = "", None
    if keys.linear_attn_config is not None:
        source.nested("linear_attn_config").skip(_LinearAttention)
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


def _windowed(source: Source, keys: _Windows, kind: str, layers: int) -> list[Mixer]:
    used = keys.use_sliding_window
    if used is None:
        used = kind not in SLIDING_ON_REQUEST
    if (keys.sliding_window or 0) < 1 or not used:
        return ["full"] * layers
    if keys.pattern is not None or kind in PATTERNS:
        return _pattern(source, keys.pattern, kind, layers)
    first = keys.max_window_layers if keys.use_sliding_window else 0
    if first is None:
        first = 28 if kind in SLIDING_ON_REQUEST else 0
    if not keys.use_sliding_window and kind not in ALL_SLIDING:
        source.warn(
            "sliding_window without a pattern: it is taken to hold in all layers", "sliding_window"
        )
    return ["sliding" if i >= first else "full" for i in range(layers)]


def _pattern(source: Source, pattern: object, kind: str, layers: int) -> list[Mixer]:
    """Return the layers of a pattern: a text of L and G, or every n-th full."""
    written = [key for key in _PATTERN_KEYS if source.written(key)]
    if pattern is None and written and kind in PATTERNS:
        return ["full"] * layers
    key = written[0] if written else "sliding_window_pattern"
    pattern = PATTERNS.get(kind) if pattern is None else pattern
    if isinstance(pattern, str) and pattern and not set(pattern.upper()) - set("LG"):
        letters = (pattern.upper() * layers)[:layers]
        return ["sliding" if letter == "L" else "full" for letter in letters]
    if type(pattern) is int and pattern >= 0:
        return ["sliding" if pattern and (i + 1) % pattern else "full" for i in range(layers)]
    raise source.error(key, f"{pattern!r} is neither a number nor a text of L and G")


def window_tokens(source: Source) -> int | None:
    """Return the window of layers that have one."""
    window = source.read(_Windows).sliding_window
    return window if window and window > 0 else source.read(_Layers).attention_window_size
