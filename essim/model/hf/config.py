"""Read a model: a preset, a ``config.json``, or a mapping that starts from one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from essim.errors import BadValueError
from essim.model.hf import families
from essim.model.hf.blocks import mlps, read_moe
from essim.model.hf.context import context_tokens
from essim.model.hf.layers import mixers, single_purpose, window_tokens
from essim.model.hf.recurrent import read_recurrent
from essim.model.hf.sizes import Sizes, experts_source, per_layer, read_heads, read_width
from essim.model.hf.source import Source
from essim.model.hf.unread import refuse_unread
from essim.model.hf.weights import read_weights
from essim.model.shape import PRESETS, ModelShape
from essim.text.files import existing
from essim.text.yaml import nearest_hint, read_yaml, validate

_NESTED = ("text_config", "llm_config", "language_config")


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
        return read_config(existing(folder / name))
    if str(name) not in PRESETS:
        hint = nearest_hint(str(name), list(PRESETS))
        raise BadValueError(f"no model {name!r}", hint or "A path must end in .json")
    return PRESETS[str(name)]


def read_config(file: Path) -> ModelShape:
    """Read a Hugging Face ``config.json`` of a decoder.

    Every number that is assumed because the config leaves it out is said in a warning. A key that
    changes sizes and that nothing here reads is refused.

    Raises
    ------
    InputError
        If the file is not such a config; what cannot be modelled is named.
    """
    document = read_yaml(file)
    outer = source = Source.of(document)
    for key in _NESTED:
        if isinstance(document.data.get(key), dict):
            source = source.nested(key)
            source.warn(f"only the text model under {key} is read", key)
            break
    for key in ("vision_config", "audio_config"):
        if source is outer and source.get(key):
            source.warn(f"{key} is not read: only the text model is counted", key)
    kind = str(source.get("model_type", "llama")).lower()
    _refuse(source, kind)
    _add_defaults(source, kind)
    tied = source.get("tie_word_embeddings", source.get("tie_embedding"))
    if tied is None:
        tied = outer.get("tie_word_embeddings", kind in families.TIED)
    fields = {
        "name": (file.parent.name if file.stem == "config" else "") or file.stem,
        **_layers(source, kind),
        "tied_embeddings": tied,
        "gated_mlp": _gated(source, kind),
    }
    weights = read_weights(outer, source, validate(ModelShape, fields, document))
    for key in families.IGNORED.get(kind, ()):
        source.get(key)
    refuse_unread(source)
    return validate(ModelShape, fields | weights, document)


def _refuse(source: Source, kind: str) -> None:
    hint = "Write the shape as a mapping if it is close enough"
    if kind in families.REFUSED_TYPES:
        meaning = families.REFUSED_TYPES[kind]
        raise source.error("model_type", f"{kind}: {meaning} cannot be modelled", hint)
    for key, meaning in families.REFUSED_KEYS.items():
        if source.get(key):
            raise source.error(key, f"{meaning} cannot be modelled", hint)


def _add_defaults(source: Source, kind: str) -> None:
    """Add what the configuration class of a family takes for absent keys, and say so."""
    for key, value in families.DEFAULTS.get(kind, {}).items():
        if key not in source.data and (key == "head_dim" or not source.written(key)):
            source.data[key] = value
            source.warn(f"{key} is absent: {value} taken, the default of {kind}")


def _gated(source: Source, kind: str) -> bool:
    """Return whether the MLP has a gate: its activation tells, else its model type."""
    names = [
        str(source.get(key)).lower()
        for key in ("hidden_act", "hidden_activation", "mlp_hidden_act", "activation_function")
    ]
    if kind in families.GATED_WHATEVER_THE_ACTIVATION:
        return True
    if kind in families.PLAIN_MLP or set(names) & set(families.PLAIN_ACTIVATIONS):
        return False
    if kind not in families.GATED_MLP:
        message = f"model type {kind!r} is not known: taken as a decoder with gated MLPs"
        source.warn(message, "model_type")
    return True


def _layers(source: Source, kind: str) -> dict[str, Any]:
    """Return the layers; a list that says nothing (all full, all of one MLP) is left out."""
    sizes, context = source.read(Sizes), context_tokens(source, kind)
    heads, width = read_heads(source, sizes), read_width(source, kind, sizes.hidden)
    nested = experts_source(source)
    moe = read_moe(nested, kind, width)
    mixer, mlp = mixers(source, kind, sizes.layers), mlps(source, sizes.layers, moe is not None)
    pairs = single_purpose(source, sizes.layers)
    if pairs is not None:
        mlp = [own for _, own in pairs]
    fields: dict[str, Any] = {
        "layers": sizes.layers,
        "hidden": sizes.hidden,
        "vocab": sizes.vocab,
        "max_context_tokens": context,
    }
    if "sliding" in mixer:
        window = window_tokens(source)
        if window is None:
            raise source.error("sliding_window", "required, since layers slide, but missing")
        if window >= context:
            # No sequence fills it: full attention.
            mixer = ["full" if own == "sliding" else own for own in mixer]
        else:
            fields["window_tokens"] = window
    fields |= per_layer(source, heads | {"ffn": width}, list(mixer))
    if set(mixer) != {"full"}:
        fields["mixers"] = mixer
    if moe is not None and "moe" in mlp:
        fields["moe"] = moe.model_dump()
    if len(set(mlp)) > 1:
        fields["mlps"] = mlp
    if "recurrent" in mixer:
        recurrent = read_recurrent(source, sizes.hidden)
        fields["recurrent"] = recurrent.model_dump() if recurrent else None
    return fields
