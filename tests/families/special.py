"""What the generic shrinker of `tiny` sets, and what single types need beside it."""

from __future__ import annotations

from typing import Any

LAYERS = 4

_GROUPS: list[tuple[Any, str]] = [
    (
        1,
        (
            "n_group topk_group n_shared_experts num_shared_experts moe_num_shared_experts first_k_dense_replace num_dense_layers"
            " mamba_n_groups mamba_ngroups moe_top_k indexer_kv_heads"
        ),
    ),
    (
        2,
        (
            "num_key_value_heads num_kv_heads swa_num_key_value_heads kv_n_heads num_experts_per_tok moe_topk moe_k max_window_layers"
            " linear_num_key_heads index_topk_blocks o_groups n_groups hc_count hc_mult num_codebooks num_kv_shared_layers"
        ),
    ),
    (
        4,
        (
            "num_attention_heads n_head n_heads decoder_attention_heads encoder_attention_heads attention_heads num_heads rotary_dim"
            " swa_num_attention_heads num_encoder_attention_heads num_decoder_attention_heads num_experts num_local_experts"
            " n_routed_experts moe_num_experts mamba_n_heads mamba_num_heads linear_num_value_heads linear_num_heads index_block_size"
            " indexer_compress_ratio"
        ),
    ),
    (
        LAYERS,
        ("num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_decoder_layers num_encoder_layers"),
    ),
    (
        5,
        ("sliding_window sliding_window_size window_size attention_window_size local_attention local_attention_window_len"),
    ),
    (6, "index_topk rel_extent"),
    (
        8,
        (
            "attention_chunk_size head_dim swa_head_dim v_head_dim qk_nope_head_dim qk_rope_head_dim dim_head index_head_dim"
            " indexer_head_dim kv_channels query_pre_attn_scalar mamba_d_state ssm_state_size mamba_chunk_size chunk_size"
            " linear_key_head_dim linear_value_head_dim linear_head_dim indexer_budget log_scaling_n_floor hc_lowrank ple_embed_dim"
            " laurel_rank floor_scale adapter_rank d_rel"
        ),
    ),
    (
        16,
        (
            "index_n_heads indexer_n_heads kv_lora_rank q_lora_rank o_lora_rank mamba_d_head mamba_head_dim router_hidden_size"
            " hidden_size_per_layer_input prompt_mid_dim image_size"
        ),
    ),
    (
        32,
        (
            "hidden_size d_model n_embd emb_dim embedding_dim embedding_size word_embed_proj_dim lru_width hidden_size_global"
            " shape_embed_dim pronunciation_embed_dim input_embedding_size output_embedding_size cross_attention_hidden_size"
            " audio_vocab_size"
        ),
    ),
    (
        48,
        (
            "intermediate_size decoder_ffn_dim encoder_ffn_dim ffn_dim dff dim_ff moe_intermediate_size ffn_hidden_size"
            " expert_ffn_hidden_size shared_expert_intermediate_size shared_experts_intermediate_size"
            " moe_shared_expert_intermediate_size intermediate_size_mlp dense_intermediate_size n_inner prefix_dense_intermediate_size"
        ),
    ),
    (
        64,
        (
            "max_position_embeddings n_positions n_ctx max_seq_len max_target_positions max_source_positions mamba_d_ssm"
            " pronunciation_vocab_size shape_vocab_size"
        ),
    ),
    (128, "vocab_size decoder_vocab_size vocab_size_per_layer_input encoder_hash_byte_group_vocab unpadded_vocab_size"),
    (True, "is_decoder use_sliding_window"),
    (0.35, "attention_multiplier"),
]
SIZES: dict[str, Any] = {name: value for value, names in _GROUPS for name in names.split()}

TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "sep_token_id": 3, "cls_token_id": 4, "decoder_start_token_id": 2}

LAYER_LISTS = {"layer_types", "mlp_layer_types", "layers_block_type", "no_rope_layers"}

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_SLIDING = {"layer_types": ["sliding_attention", "full_attention"] * 2}
_CONV = {"layer_types": ["conv", "full_attention"] * 2}
_LINEAR = {"layer_types": ["linear_attention", "full_attention"] * 2}
_GLOBAL = {"global_head_dim": 16}
_DOTS_SLIDING = {
    "swa_num_attention_heads": 4,
    "swa_num_key_value_heads": 4,
    "swa_q_lora_rank": 16,
    "swa_kv_lora_rank": 16,
    "swa_head_dim": 16,
    "swa_qk_nope_head_dim": 8,
    "swa_v_head_dim": 8,
}

OVERRIDES: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "big_bird": {"attention_type": "original_full"},
    "bigbird_pegasus": {"attention_type": "original_full"},
    "cohere_compass_text": _SLIDING | {"rope_parameters": {"sliding_attention": _ROPE, "full_attention": None}},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8.0}, "ffn_config": {"moe_top_k": 2}},
    "deepseek_v4": {
        "layer_types": ["sliding_attention", "heavily_compressed_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
        "index_topk": 2,
    },
    "doge": {"sliding_window": None, "keep_window_size": 6},
    "dots1": _SLIDING,
    "dots3_note": {
        "vision_config": {"adapter_in_dim": 32, "adapter_out_dim": 32, "num_key_value_heads": 4, "mlp_layer_types": ["dense"] * 4},
        "audio_config": {"adapter_input_size": 32, "adapter_out_dim": 32, "downsample_hidden_size": 32},
    },
    "dots3_note_text": {"layer_types": ["indexed_attention", "sliding_attention"] * 2} | _DOTS_SLIDING,
    "gemma2": {"attn_logit_softcapping": 8.0},
    "gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 4, "vocab_size_per_layer_input": 0}},
    "gemma4_text": _GLOBAL,
    "gemma4_unified": {"vision_config": {"mm_embed_dim": 32, "patch_size": 4, "pooling_kernel_size": 2, "mm_posemb_size": 16}},
    "gemma4_unified_text": _GLOBAL,
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": _LINEAR | {"shared_intermediate_size": 48, "num_experts_per_tok": 2},
    "hrm_text": {"num_hidden_layers": 2, "H_cycles": 2, "L_cycles": 1, "L_bp_cycles": [1]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "laguna": _SLIDING,
    "lfm2": _CONV,
    "lfm2_moe": _CONV,
    "llama4_text": {"head_dim": 32, "attention_chunk_size": 8},
    "longcat_flash": {"zero_expert_num": 2},
    "mamba2": {"head_dim": 16},
    "mellum": _SLIDING,
    "minimax_m3_vl_text": {
        "layer_types": ["minimax_m3_sparse", "full_attention"] * 2,
        "index_n_heads": 2,
        "index_block_size": 4,
        "shared_intermediate_size": 48,
    },
    "modernbert-decoder": {"local_attention": 10},
    "nanochat": {"head_dim": 32},
    "qwen2": _SLIDING,
    "qwen2_moe": _SLIDING,
    "qwen3": _SLIDING,
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [8, 8], "attn_layers": ["local", "lsh"] * 2},
    "smollm3": _SLIDING,
    "vaultgemma": {"attn_logit_softcapping": 8.0},
    "xlm": {"causal": True},
    "xmod": {"default_language": "en_XX"},
    "zaya": {"num_experts_per_tok": 1, "layer_types": ["hybrid", "hybrid_sliding"] * 2},
}

DECODERS = {"musicgen": "decoder", "musicgen_melody": "decoder"}

# How much wider than the others the weights of queries and keys are drawn, where 2.2 gives scores too wide or too narrow.
GAIN: dict[str, float] = {
    "bert": 2.8,
    "big_bird": 2.8,
    "camembert": 2.8,
    "data2vec-text": 2.8,
    "dots3_note": 1.8,
    "dots3_note_text": 1.8,
    "gemma3n_text": 1.3,
    "gemma4": 1.2,
    "gemma4_text": 1.2,
    "gemma4_unified": 1.2,
    "gemma4_unified_text": 1.2,
    "gpt_neo": 1.3,
    "gpt_oss": 1.5,
    "inkling_text": 3.2,
    "jetmoe": 2.6,
    "longcat_flash": 1.8,
    "marian": 2.8,
    "nemotron": 1.2,
    "openai-gpt": 2.8,
    "roberta-prelayernorm": 2.8,
    "roc_bert": 3.0,
    "roformer": 2.8,
    "xlm-roberta": 2.8,
    "zamba": 1.8,
    "zaya": 2.8,
}

# Types whose queries and keys have a fixed norm, and their head size: scores spread only where all lie along one line.
ALIGNED = {"llama4": 32, "llama4_text": 32, "nanochat": 32}

# The list of layers that is meant where a type has several: `blt` also attends over patches, and over bytes in its encoder.
LISTS = {"blt": "model.local_decoder.layers"}

# Types whose map leaves a learned sink out: rows sum to one, and the output is scaled by sigmoid(lse - sink) afterwards.
SINK_ON_OUTPUT = {
    "granite_swa": "the output is multiplied by sigmoid(lse - sink) and the map is not",
    "granitemoe_swa": "the output is multiplied by sigmoid(lse - sink) and the map is not",
}

# Types whose layers choose the keys of each query by content. A key that lost could have been seen: it counts, and got nothing.
KEYS_BY_CONTENT = {
    "axk2",
    "deepseek_v32",
    "doge",
    "dots3_note",
    "dots3_note_text",
    "glm_moe_dsa",
    "hy_v4",
    "minimax_m3_vl_text",
    "qwen4_exp",
    "qwen4_exp_text",
}

# Types that add something to their scores beside the products of queries and keys.
BIASED = {"bloom", "doge", "inkling2_text", "inkling_text", "mpt"}

# Grouped types in which tiling key heads is no mistake that could be made.
TILED = {
    "gpt_bigcode": "has a single key head",
    "jetmoe": "repeats its key heads itself, by tiling",
}

# Types that cannot be compared under padding: what a place outputs that sees nothing differs between attention kernels, and here it leaks.
KERNEL_TELLS = {
    "blt": "is part of patches, which the text sees",
    "recurrent_gemma": "runs through the recurrence",
}

# Types in which a left-padded text is not the text without padding, and what padding does there.
PADDING_TELLS: dict[str, str] = {
    **dict.fromkeys(
        ("bart", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp", "pegasus", "plbart", "trocr", "whisper", "bigbird_pegasus"),
        "shifts positions, which are numbered by column",
    ),
    **dict.fromkeys(("inkling_text", "llama4", "llama4_text"), "shifts the columns by whose logarithm queries are scaled"),
    "blt": "is cut into patches with the text",
    "minimax_m3_vl_text": "shifts the blocks of columns that are chosen",
    "recurrent_gemma": "runs through the recurrence",
    "xlm": "is seen by the text, because only padding on the right is masked",
}

# What a reader of the table should know.
REMARKS = {
    "big_bird": "with `attention_type=original_full`; block-sparse attention is refused",
    "blt": "the layers of its decoder, which read bytes; those that read patches are left out",
    "diffllama": "the map, of which the model subtracts one head's output from another's",
    "longcat_flash": "a layer for each of the two attentions of its layers",
    "mllama": "without an image its cross-attention layers do not run",
}

# Refused types that cannot be built here, and the word in transformers' own error: without a package, and at all.
UNBUILT = {"gemma3n": "timm", "gemma4_assistant": "producing a cache"}

REFUSED: dict[str, str] = {
    "cpmant": "attends in both directions: its forward marks every token as context.",
    "deepseek_v4": "attends to compressed blocks of tokens beside the tokens of its window.",
    "falcon_mamba": "has no attention: every layer is a state-space layer.",
    "gemma3n": "needs the package timm, which is not installed; its language model is gemma3n_text.",
    "gemma4_assistant": "attends, in both directions, to keys and values that another model hands over.",
    "gemma4_unified_assistant": "attends, in both directions, to keys and values that another model hands over.",
    "hrm_text": "runs each of its layers several times in one forward, so that a layer has no single map.",
    "mamba": "has no attention: every layer is a state-space layer.",
    "mamba2": "has no attention: every layer is a state-space layer.",
    "musicgen": "reads several streams of audio codes at once, so that a place holds several tokens.",
    "musicgen_melody": "reads several streams of audio codes at once, so that a place holds several tokens.",
    "prophetnet": "predicts from a second stream whose queries see keys of two streams.",
    "reformer": "attends within hashed buckets (LSH), not to all earlier tokens.",
    "rwkv": "has no softmax attention: every layer is a linear recurrence.",
    "xlnet": "attends in both directions unless the caller passes a permutation mask.",
    "xlstm": "has no softmax attention: every layer is a linear recurrence.",
}
