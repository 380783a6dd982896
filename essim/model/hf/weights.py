"""How a config stores its weights: 16 bits, FP8, or fewer bits with a scale a group."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import AliasChoices, Field

from essim.model.blocks import WeightPart
from essim.model.hf.source import Part, Source
from essim.model.shape import Count, ModelShape

_KEYS = ("quantization_config", "compression_config")
_NOT_CONVERTED = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules")


class _Integers(Part):
    """AWQ and GPTQ: 4 bits, 16-bit scales, zero points of as many bits as a weight."""

    bits: Literal[2, 3, 4, 8] = Field(4, validation_alias=AliasChoices("bits", "w_bit"))
    group: int = Field(
        128, ge=-1, le=10**6, validation_alias=AliasChoices("group_size", "q_group_size")
    )
    zero_point: bool = True
    lm_head: Literal[False] = False
    dynamic: dict[str, Any] = Field(default_factory=dict, max_length=0)
    modules_in_block_to_quantize: list[Any] = Field(default_factory=list, max_length=0)


class _Tensors(Part):
    """The weights of a group of compressed-tensors."""

    num_bits: Literal[4, 8]
    type: Literal["int", "float"] = "int"
    strategy: Literal["group", "channel", "tensor", "block", "tensor_group"] = "channel"
    group_size: Count | None = None
    symmetric: bool = True


def read_weights(outer: Source, source: Source, model: ModelShape) -> dict[str, Any]:
    """Return the fields of a shape that say how its weights are stored.

    16-bit weights are bf16 whatever the checkpoint holds: bytes and kernels are the same. What is
    quantised is looked for at the top of the file, then in the text model.

    Raises
    ------
    InputError
        If it is not known how the weights are stored.
    """
    places = [(place, key) for place in (outer, source) for key in _KEYS if place.get(key)]
    if not places:
        return {}
    place, key = places[0]
    if not isinstance(place.data[key], dict):
        raise _unknown(place, key, place.data[key])
    settings = place.aside(key)
    method = settings.get("quant_method")
    if method in ("fp8", "fbgemm_fp8"):
        fields: dict[str, Any] = {"weight_dtype": "fp8"}
    elif method in ("awq", "gptq"):
        fields = _integers(settings, method)
    elif method == "mxfp4":
        fields = _four_bit_floats("mxfp4", 32)
    elif method == "compressed-tensors":
        fields = _tensors(settings)
    else:
        raise _unknown(place, key, method)
    wide = _kept(settings, model)
    if method == "mxfp4":
        if model.moe is None:
            raise _unknown(place, key, "mxfp4, which is of experts,")
        wide |= {"attention", "dense", "shared", "recurrent"}
    return fields | ({"wide": sorted(wide)} if wide else {})


def _unknown(place: Source, key: str, method: object) -> Exception:
    hint = "Delete the key to model 16-bit weights"
    return place.error(key, f"weights quantised by {method!r} cannot be modelled", hint)


def _integers(settings: Source, method: str) -> dict[str, Any]:
    keys = settings.read(_Integers)
    # GPTQ stores zero points, symmetric or not.
    zeros = keys.bits if method == "gptq" or keys.zero_point else 0
    group = keys.group if keys.group > 0 else None
    return {
        "weight_dtype": f"int{keys.bits}",
        "quantised": {"bits": keys.bits, "group": group, "scale_bits": 16, "zero_bits": zeros},
    }


def _four_bit_floats(dtype: str, group: int) -> dict[str, Any]:
    """Return MXFP4 or NVFP4: 4-bit floats with an 8-bit scale for a group."""
    return {"weight_dtype": dtype, "quantised": {"bits": 4, "group": group, "scale_bits": 8}}


def _tensors(settings: Source) -> dict[str, Any]:
    groups = settings.get("config_groups")
    if not isinstance(groups, dict) or len(groups) != 1:
        raise settings.error("config_groups", "only one group of weights can be modelled")
    below = settings.aside("config_groups")
    name = next(iter(groups))
    if not isinstance(groups[name], dict) or not isinstance(groups[name].get("weights"), dict):
        raise below.error(str(name), "has no weights")
    group = below.aside(str(name))
    if group.get("targets") != ["Linear"]:
        raise group.error("targets", "only Linear can be modelled")
    keys = group.aside("weights").read(_Tensors)
    if not any("lm_head" in str(entry) for entry in _entries(settings)):
        raise settings.error("ignore", "the LM head is quantised, which cannot be modelled")
    if keys.type == "float":
        if keys.num_bits == 8:
            return {"weight_dtype": "fp8"}
        return _four_bit_floats("nvfp4", keys.group_size or 16)
    grouped = keys.group_size if keys.strategy == "group" else None
    zeros = 0 if keys.symmetric else keys.num_bits
    return {
        "weight_dtype": f"int{keys.num_bits}",
        "quantised": {"bits": keys.num_bits, "group": grouped, "zero_bits": zeros},
    }


# Modules that are none of the matrices of a layer, or are 16-bit anyway.
_ELSEWHERE = re.compile(
    r"vision|visual|image|audio|speech|projector|merger|connector|embed|lm_head|norm|router|wte"
    r"|mtp|nextn|conv|A_log|dt_bias|(^|[.*])(gate|shared_expert_gate|g_proj)(\.weight|\$|\\)*$"
    r"|e_score|shared_head|eh_proj|sampler|indexer|rotary|output_layer|^model\.vision"
)
_MODULES: dict[WeightPart, tuple[str, ...]] = {
    "attention": ("self_attn", "attn", "attention", "self_attention"),
    "dense": ("mlp", "feed_forward", "ffn"),
    "experts": ("mlp.experts", "mlp.experts.0", "block_sparse_moe.experts.0"),
    "shared": ("mlp.shared_experts", "mlp.shared_expert"),
    "recurrent": ("linear_attn", "mamba", "mixer", "self_attn"),
}
_LEAVES: dict[WeightPart, tuple[tuple[str, ...], ...]] = {
    "attention": (
        ("q_proj", "k_proj", "v_proj", "o_proj"),
        ("qkv_proj", "o_proj"),
        ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"),
    ),
    "recurrent": (("in_proj", "out_proj"), ("in_proj_qkvz", "in_proj_ba", "out_proj")),
}
_MLP_LEAVES = (
    ("gate_proj", "up_proj", "down_proj"),
    ("gate_up_proj", "down_proj"),
    ("w1", "w2", "w3"),
)


def _entries(settings: Source) -> list[str]:
    """Return the modules that a checkpoint leaves unquantised."""
    found: list[str] = []
    for key in _NOT_CONVERTED:
        listed = settings.get(key, [])
        if not isinstance(listed, list):
            raise settings.error(key, "is not a list")
        found += map(str, listed)
    return found


def _kept(settings: Source, model: ModelShape) -> set[WeightPart]:
    """Return the parts of which no layer is quantised.

    Raises
    ------
    InputError
        Where only some layers or matrices of a part are, or a module is not known.
    """
    kept: set[WeightPart] = set()
    key = next((key for key in _NOT_CONVERTED if settings.data.get(key)), _NOT_CONVERTED[0])
    entries = [entry for entry in dict.fromkeys(_entries(settings)) if not _elsewhere(entry)]
    if not entries:
        return kept
    patterns = [_pattern(settings, key, entry) for entry in entries]
    used = [False] * len(patterns)
    for part in _MODULES:
        names = [list(one) for one in _matrices(part, model)]
        hits = [[_matching(patterns, used, name) for name in leaves] for leaves in names]
        whole = [all(found) for found in hits]
        if names and any(any(found) for found in hits):
            layers = len(_layers_of(part, model))
            if sum(whole) < layers:
                message = "only some of the layers' matrices stay 16-bit, which cannot be modelled"
                raise settings.error(key, message)
            kept.add(part)
    if not all(used):
        entry = entries[used.index(False)]
        raise settings.error(key, f"the module {entry!r} is not known")
    return kept


def _elsewhere(entry: str) -> bool:
    return bool(_ELSEWHERE.search(entry.removesuffix(".weight")))


def _pattern(settings: Source, key: str, entry: str) -> re.Pattern[str]:
    try:
        if entry.startswith("re:"):
            return re.compile(entry[3:])
        plain = re.escape(entry.removeprefix("model.").removeprefix("language_model."))
        return re.compile(r"(^|.*\.)" + plain.replace(r"\*", ".*") + r"(\.|$)")
    except re.error:
        raise settings.error(key, f"{entry!r} is not a pattern") from None


def _matching(patterns: list[re.Pattern[str]], used: list[bool], name: str) -> bool:
    found = False
    for i, pattern in enumerate(patterns):
        if pattern.match(name):
            used[i] = found = True
    return found


def _layers_of(part: WeightPart, model: ModelShape) -> list[int]:
    every = range(model.layers)
    if part == "attention":
        return [i for i in every if model.mixer(i) in ("full", "sliding")]
    if part == "recurrent":
        return [i for i in every if model.mixer(i) == "recurrent"]
    if part == "dense":
        return [i for i in every if model.mlp(i) == "dense"]
    shared = model.moe is not None and model.moe.shared_ffn > 0
    return [i for i in every if model.mlp(i) == "moe" and (part == "experts" or shared)]


def _matrices(part: WeightPart, model: ModelShape) -> Iterator[Iterator[str]]:
    """Yield, layer by layer and for each way to call them, the names of a part's matrices."""
    for layer in _layers_of(part, model):
        for module in _MODULES[part]:
            for leaves in _LEAVES.get(part, _MLP_LEAVES):
                yield (f"model.layers.{layer}.{module}.{leaf}" for leaf in leaves)
