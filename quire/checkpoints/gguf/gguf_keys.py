"""Keys of the metadata of GGUF files: fields of a ``config.json`` by architecture, and options.

Source: llama.cpp, whose converters write them.
"""

from __future__ import annotations

from typing import Any

#: Of keys of the tokenizer, whatever the architecture.
PREFIX = "tokenizer.ggml."
WINDOW = "attention.sliding_window"
WINDOW_PATTERN = "attention.sliding_window_pattern"
#: Of an encoder: what its classes are made with, and the table of texts that tokens belong to.
CLASSES, TOKEN_TYPES = "cls.output.weight", "token_types.weight"
#: ``pooling_type`` of vectors.
POOLING = {"mean": 1, "cls": 2, "last": 3}
COMMON = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "rope_theta": "rope.freq_base",
}
RMS = COMMON | {"rms_norm_eps": "attention.layer_norm_rms_epsilon"}
LAYER = COMMON | {"layer_norm_eps": "attention.layer_norm_epsilon"}
LLAMA = RMS | {
    "num_local_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
}
EXPERTS = RMS | {
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
}
BERT = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "intermediate_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "layer_norm_eps": "attention.layer_norm_epsilon",
    "id2label": "classifier.output_labels",
}
GPT2 = {
    "n_embd": "embedding_length",
    "n_layer": "block_count",
    "n_head": "attention.head_count",
    "n_inner": "feed_forward_length",
    "n_positions": "context_length",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
}
FALCON = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_kv_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "ffn_hidden_size": "feed_forward_length",
    "max_position_embeddings": "context_length",
    "rope_theta": "rope.freq_base",
    "layer_norm_epsilon": "attention.layer_norm_epsilon",
}
GRANITE = RMS | {
    "attention_multiplier": "attention.scale",
    "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale",
    "logits_scaling": "logit_scale",
}
DEEPSEEK_EXPERTS = RMS | {
    "n_routed_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "n_shared_experts": "expert_shared_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "routed_scaling_factor": "expert_weights_scale",
    "norm_topk_prob": "expert_weights_norm",
}
GROUPED_EXPERTS = DEEPSEEK_EXPERTS | {
    "scoring_func": "expert_gating_func",
    "n_group": "expert_group_count",
    "topk_group": "expert_group_used_count",
    "num_nextn_predict_layers": "nextn_predict_layers",
}
SCORES = {"scoring_func": {0: "softmax", 1: "softmax", 2: "sigmoid"}}
#: Of those in ``keys``, one that a file has to have.
REQUIRED = (
    "embedding_length", "block_count", "attention.head_count", "feed_forward_length",
    "context_length", "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon",
    "use_parallel_residual",
)  # fmt: skip
#: Scales that are not there where they are 0.
SCALES = (
    "attention.scale", "embedding_scale", "residual_scale", "logit_scale", "expert_weights_scale",
)  # fmt: skip

#: Keys that change the output, with the values that change nothing; others are refused in
#: architectures that have no use for the key.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.key_length_swa": (),
    "attention.max_alibi_bias": (0.0,),
    "attention.output_scale": (0.0, 1.0),
    "attention.rope_pattern": (1, True),
    "attention.scale": (0.0,),
    "attention.temperature_length": (0,),
    "attention.temperature_scale": (0.0,),
    "attention.value_length_swa": (),
    "attention.value_scale": (0.0, 1.0),
    "attn_logit_softcapping": (0.0,),
    "deepstack_mapping": (-1,),
    "embedding_scale": (0.0, 1.0),
    "expert_count": (0,),
    "expert_gating_func": (0, 1),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "expert_shared_count": (0,),
    "expert_shared_feed_forward_length": (0,),
    "expert_used_count": (0,),
    "expert_weights_norm": (True,),
    "expert_weights_scale": (0.0, 1.0),
    "final_logit_softcapping": (0.0,),
    "hidden_activation": (),
    "leading_dense_block_count": (0,),
    "logit_scale": (0.0, 1.0),
    "n_deepstack_layers": (0,),
    "nextn_predict_layers": (0,),
    "num_loops": (0, 1),
    "residual_scale": (0.0, 1.0),
    "rope.dimension_count_swa": (),
    "rope.dimension_sections": (0,),
    "rope.freq_base_swa": (),
    "rope.scaling.alpha": (0.0,),
    "rope.scaling.yarn_attn_factor": (1.0, -1.0),
    "rope.scaling.yarn_ext_factor": (1.0, -1.0),
    "rope.scaling.yarn_log_multiplier": (0.0,),
    "router_logit_softcapping": (0.0,),
    "swin_norm": (False,),
    "use_parallel_residual": (False,),
}
#: Keys that are read one by one or say nothing about the forward pass.
OTHER_KEYS = frozenset(
    {
        WINDOW, WINDOW_PATTERN, "attention.key_length_mla", "attention.value_length",
        "attention.value_length_mla", "expert_feed_forward_length",
        "rope.dimension_count", "rope.scale_linear", "rope.scaling.attn_factor",
        "rope.scaling.factor", "rope.scaling.finetuned", "rope.scaling.original_context_length",
        "rope.scaling.type", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
        "pooling_type", "tensor_data_layout", "vocab_size",
    }
)  # fmt: skip
