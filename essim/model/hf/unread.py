"""Keys that nobody reads: which of them change a model's sizes, and so must not pass."""

from __future__ import annotations

import re

from essim.model.hf.source import Source

# Parts of names that tell of layers, heads, latents, widths, experts, windows or recurrences.
_MATTERS = re.compile(
    r"layer|block|group|rank|lora|expert|moe|dense|residual|window|head|kv|latent|dim|width|ffn"
    r"|mlp|intermediate|hidden_size|_size$|ratio|mamba|ssm|conv|lru|rwkv|recurren|lightning|linear"
    r"|delta|state|pattern|sparse|chunk|interval|stride|swa|local|global|cross|share|index|loop"
    r"|cycle|altup|ngram|engram|adapter|depth|compress|_config$|_cfg$|_attn|attn_|attention_"
)
# Names that tell of it whatever else is in them; the harmless ones are listed below.
_SURELY = re.compile(
    r"per_layer|layer_types?|block_types?|group|rank|expert|dense_layer|window|^residual_"
)
# Of the others, what only sets how values are computed, initialised or trained.
_HARMLESS_WORDS = re.compile(
    r"norm|rope|rotary|bias|dropout|drop_|_drop|pdrop|init|_std|eps|_act$|_act_fn$|activation|loss"
    r"|coef|jitter|noise|scal|(?<!dim_)multiplier$|softcap|soft_cap|logit|clip|temperature|dtype|fp32|impl"
    r"|kernels|flash|fused|fusion|recompute|checkpoint|parallel|token|label|tokenizer|sink"
    r"|theta|alpha|beta|router|gate|_prob$|_tp$|use_cache|keys_to_ignore|time_step|dt_|_dt"
    r"|^(_|anyres|vit|vision|image|img|audio|video|mm|speech|projector|mtp|nextn|summary|sinusoidal|alibi)"
)
_HARMLESS = frozenset(
    (
        *("add_cross_attention", "aux_loss_free", "chunk_size_feed_forward", "chunk_size"),
        *("cross_attention_hidden_size", "diversity_penalty", "ep_size", "expert_capacity"),
        *("expert_selection_fn", "layer_switch", "mamba_chunk_size", "max_sequence_length"),
        *("moe_capacity", "moe_renormalize", "n_group", "no_repeat_ngram_size"),
        *("num_expert_group", "num_nextn_predict_layers", "order_of_interleaved_layers"),
        *("pretraining_sequence_length", "pruned_heads", "qk_layernorm", "query_pre_attn_scalar"),
        *("moe_group", "moe_use_aux_free", "moe_use_hard_gate", "scoring_func", "topk_group"),
        *(
            "topk_method",
            "moe_shared_expert_overlap",
            "use_qk_norm",
            "use_qkv_bias",
            "swiglu_limit",
        ),
        *(
            "no_rope_layer_interval",
            "no_rope_layers",
            "attn_uses_sequence_id",
            "prefix_lm",
        ),
        *(
            "encoder_no_repeat_ngram_size",
            "attn_output_gate",
        ),
        *("num_beam_groups", "output_hidden_states", "output_attentions", "is_decoder"),
        *("use_mamba_kernels", "use_associative_scan", "classifier_dropout", "block_use_swiglu"),
        *("block_use_xavier_init", "max_window_layers", "gradient_checkpointing", "layer_types"),
        *("embedding_fraction", "chunk_size_lm_head", "attention_softmax_in_fp32", "qk_norm"),
        *("dim_model_base", "scale_depth", "moe_dropless", "block_size"),
        *("generation_config", "vision_config", "audio_config", "rope_parameters", "auto_map"),
        *("use_expert_bias", "moe_aux_loss", "quantization_config"),
        *("text_config", "thinker_config", "talker_config"),
        *("compression_config", "tie_word_embeddings", "attn_scale", "max_attn_value"),
        *("use_grouped_topk", "attn_implementation", "enable_expert_bias", "expert_bias"),
        *("expert_capacity_factor", "expert_dropout", "moe_router_enable_expert_bias"),
        *("residual_dropout", "residual_in_fp32", "residual_multiplier", "residual_pdrop"),
        *("moe_expert_capacity_factor", "moe_expert_dropout", "residual_scale", "groupnorm_eps"),
        *(
            "shared_expert_sink",
            "apply_residual_connection_post_layernorm",
            "moe_normalize_expert_weights",
        ),
    )
)


def refuse_unread(source: Source) -> None:
    """Refuse a config in which a key that changes sizes was not read.

    Raises
    ------
    InputError
        Naming the first such key.
    """
    for place, key in source.unread():
        name = key.lower()
        if place.data[key] in (None, False, 0, "", [], {}) or name in _HARMLESS:
            continue
        harmless = not _SURELY.search(name) and _HARMLESS_WORDS.search(name)
        if _MATTERS.search(name) and not harmless:
            message = "may change the sizes of the model, and is not understood"
            hint = "Write the shape as a mapping, or delete the key if it changes none"
            raise place.error(key, message, hint)
