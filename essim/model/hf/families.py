"""What a model type says that its config leaves out: the reference code of each family."""

from __future__ import annotations

from typing import Any

# The MLP has two matrices, not the three of a gated one.
PLAIN_MLP = (
    *(
        "apertus",
        "arcee",
        "bert-generation",
        "biogpt",
        "bloom",
        "codegen",
        "falcon",
        "gpt2",
        "gpt_bigcode",
        "gpt_neo",
    ),
    *("gpt_neox", "gptj", "jais2", "mpt", "nanochat", "nemotron", "nemotron_h", "opt"),
    *("persimmon", "phi", "refinedweb", "refinedwebmodel", "starcoder2"),
)
# Of these the width is four times the hidden size where the config does not say.
FOUR_TIMES = (
    *("bert-generation", "biogpt", "bloom", "codegen", "falcon", "gpt2", "gpt_bigcode"),
    *("gpt_neo", "gpt_neox", "gptj", "mpt", "refinedweb", "refinedwebmodel"),
)
# Experts are as wide as `intermediate_size` says.
EXPERTS_OF_DENSE_WIDTH = (
    *("aria_text", "dbrx", "flex_olmo", "gpt_oss", "granitemoe", "granitemoehybrid"),
    *("granitemoeshared", "grok-1", "jamba", "minimax", "minimax_m2", "mixtral", "olmoe"),
    "phimoe",
)
# Known to be a decoder with a gated MLP; of another type only the keys can tell.
GATED_MLP = (
    *(
        "afmoe",
        "aria_text",
        "baichuan",
        "bailing_moe",
        "bamba",
        "bitnet",
        "chatglm",
        "cohere",
        "cohere2",
    ),
    *("dbrx", "deci", "deepseek", "deepseek_v2", "deepseek_v3", "dots1", "ernie4_5"),
    *("ernie4_5_moe", "exaone", "exaone4", "gemma", "gemma2", "gemma3", "gemma3_text", "glm"),
    *("glm4", "glm4_moe", "gpt_oss", "granite", "granitemoe", "granitemoehybrid"),
    *("granitemoeshared", "helium", "hunyuan", "hunyuan_v1_dense", "hunyuan_v1_moe"),
    *("internlm", "internlm2", "internlm3", "jamba", "kimi_k2", "kimi_linear", "laguna", "lfm2"),
    *("lfm2_moe", "llama", "minimax", "minimax_m2", "ministral", "ministral3", "mistral"),
    *("mixtral", "olmo", "olmo2", "olmo3", "olmoe", "phi3", "phimoe", "qwen", "qwen2"),
    *("qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "recurrent_gemma", "seed_oss"),
    *("qwen2_5_vl", "qwen2_5_vl_text", "qwen2_vl", "qwen2_vl_text", "qwen3_vl_moe_text"),
    *("qwen3_vl_text", "smollm3", "solar", "stablelm", "vaultgemma", "yi"),
    *("cwm", "exaone_moe", "flex_olmo", "glm4_moe_lite", "hyperclovax", "minicpm", "minicpm3"),
    *("qwen3_5_moe_text", "qwen3_5_text", "sarvam_mla", "sarvam_moe", "solar_open", "youtu"),
)
# Activations that stand alone, without a gate, whatever the type; but for these types.
PLAIN_ACTIVATIONS = ("relu2", "xielu")
GATED_WHATEVER_THE_ACTIVATION = ("bitnet",)
# `intermediate_size` is the width of gate and up together.
DOUBLE_WIDTH = ("qwen", "recurrent_gemma")
# Embeddings are tied where the config does not say.
TIED = (
    *("bloom", "cohere", "cohere2", "ernie4_5", "ernie4_5_moe", "falcon", "gemma", "gemma2"),
    *("gemma3", "gemma3_text", "gpt2", "gpt_bigcode", "gpt_neo", "lfm2", "lfm2_moe", "mpt"),
    *("opt", "recurrent_gemma", "refinedweb", "refinedwebmodel", "smollm3", "starcoder2"),
    "vaultgemma",
)
# `sliding_window` means nothing unless `use_sliding_window` is true.
SLIDING_ON_REQUEST = (
    *("dots1", "qwen2", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_moe", "qwen2_vl"),
    *("qwen2_vl_text", "qwen3", "qwen3_moe", "qwen3_vl_moe_text", "qwen3_vl_text", "smollm3"),
)

# A window, where there is one, holds in all layers.
ALL_SLIDING = ("ministral", "mistral", "mixtral", "phi3", "phimoe", "starcoder2")
# Every n-th layer is full where the config leaves the pattern to the model type.
PATTERNS = {
    **dict.fromkeys(("afmoe", "cohere2", "exaone4", "olmo3"), 4),
    **dict.fromkeys(("gemma2", "gpt_oss", "vaultgemma"), 2),
    **dict.fromkeys(("gemma3", "gemma3_text"), 6),
}

# Values of absent keys, from the configuration classes of transformers 5.24.
DEFAULTS: dict[str, dict[str, Any]] = {
    **{
        kind: {"head_dim": 128}
        for kind in (
            *("ernie4_5", "glm", "glm4", "helium", "internlm3", "ministral3", "qwen3"),
            *("seed_oss", "solar_open", "minimax_m2"),
        )
    },
    "afmoe": {
        "head_dim": 128,
        "sliding_window": 1024,
        "num_dense_layers": 1,
        "num_shared_experts": 2,
    },
    "aria_text": {"moe_num_shared_experts": 2},
    "cohere2": {"sliding_window": 4096},
    "deepseek_v3": {"first_k_dense_replace": 3, "n_shared_experts": 1, "q_lora_rank": 1536},
    "ernie4_5_moe": {"moe_layer_start_index": 1, "moe_num_shared_experts": 2},
    "exaone4": {"sliding_window": 4096},
    "falcon": {"multi_query": True},
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256, "sliding_window": 4096},
    **{kind: {"head_dim": 256, "sliding_window": 4096} for kind in ("gemma3", "gemma3_text")},
    "glm4_moe": {"first_k_dense_replace": 1},
    "gpt_oss": {"head_dim": 64, "sliding_window": 128},
    "jamba": {
        "attn_layer_period": 8,
        "attn_layer_offset": 4,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
    },
    "mistral": {"sliding_window": 4096},
    "olmo3": {"sliding_window": 4096},
    "qwen2_moe": {"shared_expert_intermediate_size": 5632},
    "qwen3_next": {"head_dim": 256, "shared_expert_intermediate_size": 512},
    "recurrent_gemma": {
        "attention_window_size": 2048,
        "block_types": ["recurrent", "recurrent", "attention"],
    },
    "vaultgemma": {"head_dim": 256, "sliding_window": 4096},
}

# Keys that a family's own code does not read, or that say nothing while others are false.
_HUNYUAN = ("cla_share_factor", "dense_list", "use_mixed_mlp_moe")
IGNORED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("hunyuan", "hunyuan_v1_dense", "hunyuan_v1_moe"), _HUNYUAN),
    "minimax_m2": ("mlp_intermediate_size", "shared_moe_mode", "qk_norm_type"),
}

# Types whose architecture the keys do not tell, with what cannot be modelled.
REFUSED_TYPES = {
    "arctic": "a dense residual beside the experts",
    "deepseek_v4": "compressed attention",
    "diffllama": "differential attention",
    "falcon_h1": "attention and a recurrence in one layer",
    "gemma3n": "layers that share KV",
    "gemma3n_text": "layers that share KV",
    "gemma4": "layers of several head sizes",
    "gemma4_text": "layers of several head sizes",
    "gpt_neo": "attention kinds in GPT-Neo's notation",
    "git": "an image encoder inside the decoder",
    "hymba": "attention and a recurrence in one layer",
    "jetmoe": "experts in attention",
    "llama4": "chunked attention",
    "llama4_text": "chunked attention",
    "longcat_flash": "two attentions a layer",
    "mllama": "cross-attention",
    "mllama_text_model": "cross-attention",
    "modernbert-decoder": "windows on both sides",
    "moshi": "several decoders",
    "openelm": "layers of several sizes in OpenELM's notation",
    "phi4flash": "layers that share KV",
    "plamo2": "attention and a recurrence in PLaMo's notation",
    "step3": "factorised attention",
    "step3_text": "factorised attention",
    "zamba": "attention shared between layers",
    "zamba2": "attention shared between layers",
    "zaya": "convolved attention",
}
# Keys that announce what cannot be modelled, with what they mean.
REFUSED_KEYS = {
    "attention_chunk_size": "chunked attention",
    "attention_types": "attention kinds in GPT-Neo's notation",
    "block_configs": "layers of several sizes",
    "cross_attention_layers": "cross-attention",
    "global_head_dim": "layers of several head sizes",
    "index_topk": "attention with a built-in token indexer",
    "is_encoder_decoder": "an encoder-decoder",
    "num_kv_shared_layers": "layers that share KV",
    "use_cla": "layers that share KV",
}
