"""A mixed step as one list of ops: sequences that decode and chunks of prompts share GEMMs."""

from __future__ import annotations

from dataclasses import replace

from essim.errors import PricingError
from essim.methods.routing import Routing
from essim.methods.selectors import Selector
from essim.methods.selectors.dense import Dense
from essim.model.shape import ModelShape
from essim.step.ops import Op, decode_step, prefill_step


def mixed_step(
    model: ModelShape,
    selector: Selector,
    routing: Routing,
    *,
    decodes: bool,
    prompt_tokens: int | None = None,
) -> tuple[Op, ...]:
    """Return the ops of a step with chunks.

    It is the decode step with one op of attention more in each layer (kind ``attn_chunk``), so the
    rows of a chunk are in every GEMM, and an anchor exists once they have gone through o_proj, too:
    the window is longer. Routers see the sequences that decode alone.

    Parameters
    ----------
    decodes
        Whether some sequences decode; else it is a part of a prefill.
    prompt_tokens
        Of a prompt that ends with this step: what its selector needs follows each layer, and a
        token is sampled. None if no prompt ends.

    Raises
    ------
    InputError, PricingError
        What a decode step refuses; latent attention and sliding windows, whose chunks have no
        price.
    """
    if model.mla or model.count("sliding"):
        raise PricingError(f"chunks of a prompt have no price yet on {model.name}: its attention")
    if prompt_tokens is None:
        prefill = prefill_step(model, Dense(), routing, 1)
    else:
        prefill = prefill_step(model, selector, routing, prompt_tokens)
    chunk = {op.name: replace(op, stage="attn_chunk", kind="attn_chunk") for op in prefill}
    if not decodes:
        samples = prompt_tokens is not None
        return tuple(
            chunk[op.name] if op.stage == "attn" else op
            for op in prefill
            if samples or op.stage != "head"
        )
    made: list[Op] = []
    extras = [op for op in prefill if op.stage in ("stage1", "summary", "copy")]
    for op in decode_step(model, selector, routing):
        made.append(op)
        if op.stage == "attn":
            made.append(chunk[op.name])
        if op.stage == ("o" if model.mlp(op.layer or 0) == "none" else "down"):
            made += [extra for extra in extras if extra.layer == op.layer]
    copies = tuple(op.name for op in extras if op.stage == "copy")[-1:]
    return tuple(replace(op, waits=op.waits + copies) if op.stage == "head" else op for op in made)
