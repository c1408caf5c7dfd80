"""Meaning of the metadata of each architecture of GGUF files, as data; nothing is read here.

Source: llama.cpp, whose converters write these keys and whose models read them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from quire.checkpoints.gguf.gguf_keys import (
    BERT,
    CLASSES,
    COMMON,
    DEEPSEEK_EXPERTS,
    EXPERTS,
    FALCON,
    GPT2,
    GRANITE,
    GROUPED_EXPERTS,
    LAYER,
    LLAMA,
    RMS,
    SCORES,
    TOKEN_TYPES,
    WINDOW,
    WINDOW_PATTERN,
)
from quire.core.model.model_config import ModelConfig

Fields = Mapping[str, Any]
#: By name, with their shapes.
Tensors = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufArchitecture:
    """Spelling of the metadata of one ``general.architecture`` as a ``config.json``, and back.

    Attributes:
        model: The class that such a ``config.json`` names.
        instead: A key of the metadata, and the class where the key is present and not 0.
        instead_by: A tensor's name, and the class where that tensor is present.
        keys: Metadata keys, without the architecture, by fields of ``config.json``.
        fields: Fields that files leave out, or give only where they have other values.
        spelled: Values of fields, by those that a file has for them.
        derived: Fields that follow from others and from the file's tensors, unless given.
        window_every: Number n such that all layers but each n-th have the window, where a file
            says nothing; 0: all have it, if there is one.
        neutral: Entries of :data:`NEUTRAL` for this architecture.
        written: Keys besides :data:`COMMON`'s, of a model.
        rotates: Whether positions turn queries and keys.
        truncates: Whether YaRN's ramp begins and ends at whole dims.
        stretches_context: Whether readers stretch the context by the factor of linear scaling.
        mscale_unit: Quotient of ``rope.scaling.yarn_log_multiplier`` and YaRN's
            ``mscale_all_dim``; 0 where there is no such key.
        equal_mscales: Whether ``mscale`` equals ``mscale_all_dim``; otherwise it is 1.
        is_latent: Whether attention is of latents.
        limits: Choices of a model that llama.cpp takes for granted, with their value, or a function
            of the model that returns it.
    """

    model: str
    keys: Mapping[str, str]
    instead: tuple[str, str] | None = None
    instead_by: tuple[str, str] | None = None
    fields: Fields = field(default_factory=dict)
    spelled: Mapping[str, Mapping[Any, Any]] = field(default_factory=dict)
    derived: Mapping[str, Callable[[Fields, Tensors], Any]] = field(default_factory=dict)
    window_every: int = 0
    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    written: Mapping[str, Callable[[ModelConfig], Any]] = field(default_factory=dict)
    rotates: bool = True
    truncates: bool = True
    stretches_context: bool = True
    mscale_unit: float = 0.0
    equal_mscales: bool = False
    is_latent: bool = False
    limits: Mapping[str, Any] = field(default_factory=dict)


def _square(config: ModelConfig) -> int:
    return config.hidden_size // config.num_heads


def _scalar(layers: int) -> Callable[[Fields, Tensors], int]:
    """Return what finds Gemma's factor of scores: the head dim; of the model of 27 billion, known
    by its layers, what it would be.
    """

    def scalar(fields: Fields, tensors: Tensors) -> int:
        if fields["num_hidden_layers"] == layers:
            return int(fields["hidden_size"] // fields["num_attention_heads"])
        return int(fields["head_dim"])

    return scalar


def _falcon_norms(fields: Fields, tensors: Tensors) -> int:
    return 2 if "blk.0.attn_norm_2.weight" in tensors else 1


def _num_token_types(fields: Fields, tensors: Tensors) -> int:
    return int(tensors[TOKEN_TYPES].shape[0]) if TOKEN_TYPES in tensors else 0


def _labels(fields: Fields, tensors: Tensors) -> dict[str, str] | None:
    """Return names of classes for which a file has none."""
    if CLASSES not in tensors:
        return None
    return {str(number): f"LABEL_{number}" for number in range(tensors[CLASSES].shape[0])}


def _label_texts(config: ModelConfig) -> list[str] | None:
    return list(config.classifier.labels) if config.classifier else None


def _has_one_norm(fields: Fields, tensors: Tensors) -> bool:
    return "blk.0.ffn_norm.weight" not in tensors


def _has_qk_norm(fields: Fields, tensors: Tensors) -> bool:
    return "blk.0.attn_q_norm.weight" in tensors


def _first_sparse(config: ModelConfig) -> int:
    """Return how many layers apart those with experts are, if evenly."""
    sparse = (n for n in range(config.num_layers) if config.layer_moe(n) is not None)
    return next(sparse) + 1


def _gating(config: ModelConfig) -> int:
    assert config.moe is not None
    return {"softmax": 1, "sigmoid": 2}[config.moe.routing.scores]


def _num_shared(config: ModelConfig) -> int:
    assert config.moe is not None
    return config.moe.shared_size // config.moe.intermediate_size


def _deepseek_method(fields: Fields, tensors: Tensors) -> str:
    """Return how DeepSeek chooses: V3 has a bias, and V2 may have groups."""
    layer = fields.get("first_k_dense_replace", 0)
    if f"blk.{layer}.exp_probs_b.bias" in tensors:
        return "noaux_tc"
    return "group_limited_greedy" if fields["n_group"] > 1 else "greedy"


_EXPERT_SIZE = {"expert_feed_forward_length": attrgetter("moe.intermediate_size")}
_DEEPSEEK_WRITTEN: dict[str, Callable[[ModelConfig], Any]] = {
    **_EXPERT_SIZE,
    "expert_shared_count": _num_shared,
    "leading_dense_block_count": attrgetter("num_dense_layers"),
    "expert_gating_func": _gating,
    "expert_weights_scale": attrgetter("moe.routing.scale"),
    "expert_weights_norm": attrgetter("moe.routing.renormalize"),
}
#: What files say nothing of, which llama.cpp's readers take so.
_UNGROUPED = {"n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0, "norm_topk_prob": False}
_GROUPED_WRITTEN = _DEEPSEEK_WRITTEN | {
    "expert_group_count": attrgetter("moe.routing.num_groups"),
    "expert_group_used_count": attrgetter("moe.routing.top_groups"),
}
_NO_BIAS = {"qkv_bias": False, "output_bias": False, "mlp_bias": False}
_BIAS = dict.fromkeys(_NO_BIAS, True)
_LOGIT_SCALE = {"logit_scale": attrgetter("logits_scale")}
_GLM: dict[str, Any] = {"keys": RMS, "stretches_context": False}
_GLM_BIAS = {"output_bias": False, "mlp_bias": False}
_COHERE: dict[str, Any] = {
    "keys": LAYER | {"logit_scale": "logit_scale"},
    "fields": {"logit_scale": 1.0},
    "written": _LOGIT_SCALE,
    "stretches_context": False,
    "limits": {"tie_word_embeddings": True, "head_dim": _square, "output_bias": False},
}

_GRANITE: dict[str, Any] = {
    "keys": GRANITE,
    "derived": {"attention_multiplier": lambda fields, _: 1 / math.sqrt(fields["head_dim"])},
    # There, it tells whether positions turn anything.
    "neutral": {"rope.scaling.finetuned": (True,)},
    "written": {
        "attention.scale": attrgetter("attention_scale"),
        "embedding_scale": attrgetter("embedding_scale"),
        "residual_scale": attrgetter("residual_scale"),
        "logit_scale": lambda config: 1 / config.logits_scale,
    },
    "limits": {"rotary_dim": attrgetter("head_dim")},
}

#: By ``general.architecture``.
ARCHITECTURES = {
    "llama": GgufArchitecture(
        model="LlamaForCausalLM",
        keys=LLAMA,
        instead=("expert_count", "MixtralForCausalLM"),
        limits={"rotary_dim": attrgetter("head_dim")},
    ),
    "llama4": GgufArchitecture(
        model="Llama4ForCausalLM",
        keys=LLAMA
        | {
            "intermediate_size": "expert_feed_forward_length",
            "intermediate_size_mlp": "feed_forward_length",
            "interleave_moe_layer_step": "interleave_moe_layer_step",
        },
        # No key is for these.
        fields={
            "attention_chunk_size": 8192, "attn_scale": 0.1, "attn_temperature_tuning": True,
            "floor_scale": 8192, "no_rope_layer_interval": 4,
        },
        derived={"use_qk_norm": lambda fields, _: fields["num_local_experts"] != 128},
        neutral={WINDOW: (), WINDOW_PATTERN: ()},
        written=_EXPERT_SIZE | {"interleave_moe_layer_step": _first_sparse},
        limits={"output_bias": False, "rotary_dim": attrgetter("head_dim")},
    ),
    "mistral3": GgufArchitecture(
        model="MistralForCausalLM",
        keys=RMS | {"llama_4_scaling_beta": "attention.temperature_scale"},
        instead=("attention.temperature_scale", "Ministral3ForCausalLM"),
        fields={"sliding_window": None},
        written={"attention.temperature_scale": attrgetter("query_scaling.factor")},
        mscale_unit=1.0,
        limits={"rotary_dim": attrgetter("head_dim")},
    ),
    "qwen2": GgufArchitecture(model="Qwen2ForCausalLM", keys=RMS),
    "qwen2moe": GgufArchitecture(
        model="Qwen2MoeForCausalLM",
        keys=EXPERTS | {"shared_expert_intermediate_size": "expert_shared_feed_forward_length"},
        written=_EXPERT_SIZE | {"expert_shared_feed_forward_length": attrgetter("moe.shared_size")},
        limits={"head_dim": _square, "tie_word_embeddings": False, "num_dense_layers": 0},
    ),
    "qwen3": GgufArchitecture(model="Qwen3ForCausalLM", keys=RMS),
    "qwen3moe": GgufArchitecture(
        model="Qwen3MoeForCausalLM",
        keys=EXPERTS,
        fields={"norm_topk_prob": True},
        written=_EXPERT_SIZE,
        limits={"num_dense_layers": 0},
    ),
    "olmo2": GgufArchitecture(
        model="Olmo2ForCausalLM",
        keys=RMS | {"rope_local_base_freq": "rope.freq_base_swa"},
        instead=(WINDOW, "Olmo3ForCausalLM"),
        window_every=4,
        limits={**_NO_BIAS, "tie_word_embeddings": False, "head_dim": _square},
    ),
    "olmoe": GgufArchitecture(
        model="OlmoeForCausalLM",
        keys=EXPERTS,
        limits={**_NO_BIAS, "tie_word_embeddings": False, "head_dim": _square},
    ),
    "seed_oss": GgufArchitecture(
        model="SeedOssForCausalLM",
        keys=RMS,
        limits={"output_bias": False, "mlp_bias": False},
    ),
    "ernie4_5": GgufArchitecture(
        model="Ernie4_5ForCausalLM", keys=RMS, limits=_NO_BIAS, stretches_context=False
    ),
    "exaone4": GgufArchitecture(
        model="Exaone4ForCausalLM",
        keys=RMS,
        fields={"sliding_window": None},
        window_every=4,
        stretches_context=False,
        limits={"head_dim": _square},
    ),
    "gpt-oss": GgufArchitecture(
        model="GptOssForCausalLM",
        keys=LLAMA,
        window_every=2,
        written=_EXPERT_SIZE,
        truncates=False,
        stretches_context=False,
        limits={"qkv_bias": True, "output_bias": True, "tie_word_embeddings": False},
    ),
    "dots1": GgufArchitecture(
        model="Dots1ForCausalLM",
        keys=DEEPSEEK_EXPERTS,
        fields={"sliding_window": None, "n_group": 1, "topk_group": 1},
        neutral={"expert_gating_func": (2,)},
        written=_DEEPSEEK_WRITTEN,
        limits={**_NO_BIAS, "tie_word_embeddings": False},
    ),
    "deepseek2": GgufArchitecture(
        model="DeepseekV3ForCausalLM",
        keys=GROUPED_EXPERTS
        | {
            "kv_lora_rank": "attention.kv_lora_rank",
            "q_lora_rank": "attention.q_lora_rank",
        },
        fields=_UNGROUPED | {"scoring_func": "softmax"},
        derived={"topk_method": _deepseek_method},
        spelled=SCORES,
        neutral={"expert_gating_func": (0, 1, 2)},
        written=_GROUPED_WRITTEN
        | {
            "attention.head_count_kv": lambda _: 1,
            "attention.kv_lora_rank": attrgetter("latent.rank"),
            "attention.q_lora_rank": attrgetter("latent.query_rank"),
            "attention.key_length": attrgetter("latent.row_dim"),
            "attention.value_length": attrgetter("latent.rank"),
            "attention.key_length_mla": attrgetter("head_dim"),
            "attention.value_length_mla": attrgetter("latent.value_dim"),
        },
        mscale_unit=0.1,
        equal_mscales=True,
        is_latent=True,
    ),
    "gemma2": GgufArchitecture(
        model="Gemma2ForCausalLM",
        keys=RMS
        | {
            "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        derived={"query_pre_attn_scalar": _scalar(46)},
        window_every=2,
        written={
            "attn_logit_softcapping": attrgetter("attention_cap"),
            "final_logit_softcapping": attrgetter("logits_cap"),
        },
        stretches_context=False,
        limits={"tie_word_embeddings": True, "output_bias": False},
    ),
    "gpt2": GgufArchitecture(model="GPT2LMHeadModel", keys=GPT2, rotates=False),
    "bert": GgufArchitecture(
        model="BertModel",
        keys=BERT,
        instead_by=(CLASSES, "BertForSequenceClassification"),
        fields={"hidden_act": "gelu"},
        derived={"type_vocab_size": _num_token_types, "id2label": _labels},
        neutral={"attention.causal": (False,)},
        written={
            "attention.causal": lambda _: False,
            "classifier.output_labels": _label_texts,
        },
        rotates=False,
    ),
    "gemma": GgufArchitecture(
        model="GemmaForCausalLM",
        keys=RMS,
        limits={"tie_word_embeddings": True, "output_bias": False},
    ),
    "gemma3": GgufArchitecture(
        model="Gemma3ForCausalLM",
        keys=RMS | {"rope_local_base_freq": "rope.freq_base_swa"},
        derived={"query_pre_attn_scalar": _scalar(62)},
        window_every=6,
        written={"rope.freq_base_swa": attrgetter("window_rope.theta")},
        stretches_context=False,
        limits={"output_bias": False},
    ),
    "phi2": GgufArchitecture(
        model="PhiForCausalLM",
        keys=LAYER,
        stretches_context=False,
        limits={"tie_word_embeddings": False, "head_dim": _square},
    ),
    "phi3": GgufArchitecture(model="Phi3ForCausalLM", keys=RMS, limits={"head_dim": _square}),
    "gptneox": GgufArchitecture(
        model="GPTNeoXForCausalLM",
        keys=LAYER | {"use_parallel_residual": "use_parallel_residual"},
        written={"use_parallel_residual": attrgetter("parallel")},
        stretches_context=False,
        limits={**_BIAS, "tie_word_embeddings": False, "head_dim": _square},
    ),
    "falcon": GgufArchitecture(
        model="FalconForCausalLM",
        keys=FALCON,
        fields={"new_decoder_architecture": True},
        derived={"num_ln_in_parallel_attn": _falcon_norms},
        written={"tensor_data_layout": lambda _: "jploski"},
        limits={**_NO_BIAS, "rotary_dim": attrgetter("head_dim")},
    ),
    "starcoder2": GgufArchitecture(
        model="Starcoder2ForCausalLM",
        keys=COMMON | {"norm_epsilon": "attention.layer_norm_epsilon"},
        limits={**_BIAS, "head_dim": _square, "rotary_dim": attrgetter("head_dim")},
    ),
    "smollm3": GgufArchitecture(
        model="SmolLM3ForCausalLM",
        keys=RMS,
        limits={
            "output_bias": False, "mlp_bias": False, "rotary_dim": attrgetter("head_dim")
        },
    ),
    "glm4moe": GgufArchitecture(
        model="Glm4MoeForCausalLM",
        keys=GROUPED_EXPERTS,
        fields=_UNGROUPED | {"scoring_func": "sigmoid"},
        spelled=SCORES,
        derived={"use_qk_norm": _has_qk_norm},
        neutral={"expert_gating_func": (0, 2)},
        written=_GROUPED_WRITTEN,
        limits={"output_bias": False, "mlp_bias": False},
    ),
    "stablelm": GgufArchitecture(
        model="StableLmForCausalLM",
        keys=LAYER,
        # Tensors decide, whatever the key says.
        derived={"use_parallel_residual": _has_one_norm},
        neutral={"use_parallel_residual": (False, True)},
        written={"use_parallel_residual": attrgetter("parallel")},
        limits={"tie_word_embeddings": False, "head_dim": _square},
    ),
    "glm4": GgufArchitecture(model="Glm4ForCausalLM", **_GLM, limits=_GLM_BIAS),
    "chatglm": GgufArchitecture(
        model="GlmForCausalLM", **_GLM, limits={**_GLM_BIAS, "head_dim": _square}
    ),
    "granite": GgufArchitecture(model="GraniteForCausalLM", **_GRANITE),
    "granitemoe": GgufArchitecture(
        model="GraniteMoeForCausalLM",
        instead=("expert_shared_feed_forward_length", "GraniteMoeSharedForCausalLM"),
        **_GRANITE
        | {
            "keys": GRANITE
            | LLAMA
            | {"shared_intermediate_size": "expert_shared_feed_forward_length"},
            "written": _GRANITE["written"]
            | {"expert_shared_feed_forward_length": lambda config: config.moe.shared_size or None},
        },
    ),
    "command-r": GgufArchitecture(model="CohereForCausalLM", **_COHERE),
    "cohere2": GgufArchitecture(
        model="Cohere2ForCausalLM", **{**_COHERE, "window_every": 4}
    ),
}  # fmt: skip
