"""The weight matrices of a model: (outputs, inputs) of each, and what it belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from essim.model.blocks import WeightPart

if TYPE_CHECKING:
    from essim.model.shape import ModelShape

# What each matrix of a layer belongs to.
PART_OF: dict[str, WeightPart] = {
    "recurrent": "recurrent",
    **dict.fromkeys(("qkv", "q_b", "kv_b", "o"), "attention"),
    **dict.fromkeys(("gate_up", "down"), "dense"),
    **dict.fromkeys(("expert_gate_up", "expert_down"), "experts"),
    **dict.fromkeys(("shared_gate_up", "shared_down"), "shared"),
}


def matrices(model: ModelShape) -> dict[str, tuple[int, int]]:
    """Return (n, k) of every matrix by name, as `ModelShape.gemm_shape` documents them."""
    wide = 1 + model.gated_mlp
    shapes = {
        "qkv": (model.q_width + 2 * model.kv_width, model.hidden),
        "o": (model.hidden, model.q_width),
        "gate_up": (wide * model.ffn, model.hidden),
        "down": (model.hidden, model.ffn),
        "head": (model.padded_vocab, model.hidden),
    }
    if model.mla:
        queries = model.mla.q_rank or model.q_width
        shapes |= {
            "qkv": (queries + model.mla.latent_width, model.hidden),
            "q_b": (model.q_width, model.mla.q_rank or 0),
            "kv_b": (model.heads * (model.mla.nope_dim + model.mla.v_dim), model.mla.kv_rank),
            "o": (model.hidden, model.heads * model.mla.v_dim),
        }
    if model.moe:
        shapes |= {
            "router": (model.moe.experts, model.hidden),
            "expert_gate_up": (wide * model.moe.ffn, model.hidden),
            "expert_down": (model.hidden, model.moe.ffn),
            "shared_gate_up": (wide * model.moe.shared_ffn, model.hidden),
            "shared_down": (model.hidden, model.moe.shared_ffn),
        }
    return shapes
