"""Names of tensors in GGUF files; the same uses as in a family's own checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from quire.checkpoints.weight_names import WeightNames
from quire.core.errors import UnsupportedArchitectureError
from quire.core.model.model_config import ModelConfig

#: Factors by which the rotary frequencies are divided; in contexts longer than the original one,
#: and in those up to it.
ROPE_FACTORS = "rope_freqs.weight"
LONG_FACTORS = "rope_factors_long.weight"
SHORT_FACTORS = "rope_factors_short.weight"
#: Queries, keys and values of a layer in one matrix, which some files have.
FUSED_QKV = ("attn_qkv",)

_LLAMA = WeightNames(
    layer="blk.{layer}.",
    embedding="token_embd",
    final_norm="output_norm",
    head="output",
    attention_norm="attn_norm",
    qkv=("attn_q", "attn_k", "attn_v"),
    attention_output="attn_output",
    q_norm="attn_q_norm",
    k_norm="attn_k_norm",
    mlp_norm="ffn_norm",
    gate_up=("ffn_gate", "ffn_up"),
    down="ffn_down",
    # The configuration reader takes factors into its frequencies; old files have the other.
    harmless=(
        r"rope_freqs\.weight",
        r"rope_factors_(long|short)\.weight",
        r"blk\.\d+\.attn_rot_embd\.weight",
    ),
)
_MIXTRAL = replace(
    _LLAMA,
    router="ffn_gate_inp",
    expert_gate_up=("ffn_gate.{expert}", "ffn_up.{expert}"),
    expert_down="ffn_down.{expert}",
    shared_gate_up=("ffn_gate_shexp", "ffn_up_shexp"),
    shared_down="ffn_down_shexp",
    shared_gate="ffn_gate_inp_shexp",
    choice_bias="exp_probs_b.bias",
)
_DEEPSEEK = replace(
    _MIXTRAL,
    qkv=(),
    queries="attn_q",
    query_down="attn_q_a",
    query_norm="attn_q_a_norm",
    query_up="attn_q_b",
    latents="attn_kv_a_mqa",
    latent_norm="attn_kv_a_norm",
    latent_heads="attn_kv_b",
)
_SEED_OSS = replace(_LLAMA, mlp_norm="post_attention_norm")
_GPT_OSS = replace(_MIXTRAL, mlp_norm="post_attention_norm", sinks="attn_sinks.weight")
_GPT2 = replace(_LLAMA, positions="position_embd", qkv=FUSED_QKV, gate_up=("ffn_up",), harmless=())
_GEMMA3 = replace(
    _LLAMA, attention_norm_after="post_attention_norm", mlp_norm_after="post_ffw_norm"
)
_OLMO2 = replace(_GEMMA3, attention_norm="", mlp_norm="")
_PHI2 = replace(_LLAMA, mlp_norm="attn_norm", gate_up=("ffn_up",))
_FUSED = replace(_LLAMA, qkv=FUSED_QKV, gate_up=("ffn_up",))
_FALCON = replace(_FUSED, mlp_norm="attn_norm")
_ONE_UP = replace(_LLAMA, gate_up=("ffn_up",))
_GLM4 = replace(_GEMMA3, gate_up=("ffn_up",))
_BERT = replace(
    _LLAMA,
    positions="position_embd",
    token_types="token_types",
    embedding_norm="token_embd_norm",
    attention_norm="",
    mlp_norm="attn_output_norm",
    next_norm="layer_output_norm",
    final_norm="",
    gate_up=("ffn_up",),
    pooler="cls",
    classifier="cls.output",
    harmless=(),
)
_COHERE = replace(_LLAMA, mlp_norm="attn_norm")
_GLM4_MOE = replace(_MIXTRAL, mlp_norm="post_attention_norm")


def _stablelm_names(config: ModelConfig) -> WeightNames:
    return _COHERE if config.shared_norm else _LLAMA


def _falcon_names(config: ModelConfig) -> WeightNames:
    return _FALCON if config.shared_norm else replace(_FALCON, attention_norm="attn_norm_2")


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """Form of one of our architectures in a GGUF file.

    Attributes:
        architecture: ``general.architecture``, the prefix of its metadata.
        names: Names of tensors. Experts have one each here; a file keeps a layer's experts
            together.
        interleaved_rope: Whether query and key rows are ordered for a RoPE of neighbouring pairs.
        names_of: Function that returns ``names`` where a configuration decides, or None.
    """

    architecture: str
    names: WeightNames
    interleaved_rope: bool = False
    names_of: Callable[[ModelConfig], WeightNames] | None = None

    def weight_names(self, config: ModelConfig) -> WeightNames:
        """Return the names of a model's tensors."""
        return self.names if self.names_of is None else self.names_of(config)


GGUF_FAMILIES = {
    "LlamaForCausalLM": GgufFamily("llama", _LLAMA, True),
    "MistralForCausalLM": GgufFamily("llama", _LLAMA, True),
    "MinistralForCausalLM": GgufFamily("llama", _LLAMA, True),
    "Ministral3ForCausalLM": GgufFamily("mistral3", _LLAMA, True),
    "MixtralForCausalLM": GgufFamily("llama", _MIXTRAL, True),
    "Llama4ForCausalLM": GgufFamily("llama4", _MIXTRAL, True),
    "Llama4ForConditionalGeneration": GgufFamily("llama4", _MIXTRAL, True),
    "Qwen2ForCausalLM": GgufFamily("qwen2", _LLAMA),
    "Qwen2MoeForCausalLM": GgufFamily("qwen2moe", _MIXTRAL),
    "Qwen3ForCausalLM": GgufFamily("qwen3", _LLAMA),
    "Qwen3MoeForCausalLM": GgufFamily("qwen3moe", _MIXTRAL),
    "Olmo2ForCausalLM": GgufFamily("olmo2", _OLMO2),
    "Olmo3ForCausalLM": GgufFamily("olmo2", _OLMO2),
    "OlmoeForCausalLM": GgufFamily("olmoe", _MIXTRAL),
    "SeedOssForCausalLM": GgufFamily("seed_oss", _SEED_OSS),
    "Ernie4_5ForCausalLM": GgufFamily("ernie4_5", _LLAMA, True),
    "Exaone4ForCausalLM": GgufFamily("exaone4", _OLMO2),
    "GptOssForCausalLM": GgufFamily("gpt-oss", _GPT_OSS),
    "Dots1ForCausalLM": GgufFamily("dots1", _MIXTRAL),
    "DeepseekV2ForCausalLM": GgufFamily("deepseek2", _DEEPSEEK, True),
    "DeepseekV3ForCausalLM": GgufFamily("deepseek2", _DEEPSEEK, True),
    "GPT2LMHeadModel": GgufFamily("gpt2", _GPT2),
    "GemmaForCausalLM": GgufFamily("gemma", _LLAMA),
    "Gemma2ForCausalLM": GgufFamily("gemma2", _GEMMA3),
    "Gemma3ForCausalLM": GgufFamily("gemma3", _GEMMA3),
    "PhiForCausalLM": GgufFamily("phi2", _PHI2),
    "Phi3ForCausalLM": GgufFamily("phi3", _FUSED),
    "GPTNeoXForCausalLM": GgufFamily("gptneox", _FUSED),
    "FalconForCausalLM": GgufFamily("falcon", _FALCON, names_of=_falcon_names),
    "Starcoder2ForCausalLM": GgufFamily("starcoder2", _ONE_UP),
    "SmolLM3ForCausalLM": GgufFamily("smollm3", _LLAMA, True),
    "GlmForCausalLM": GgufFamily("chatglm", _ONE_UP, True),
    "Glm4ForCausalLM": GgufFamily("glm4", _GLM4, True),
    "Glm4MoeForCausalLM": GgufFamily("glm4moe", _GLM4_MOE),
    "StableLmForCausalLM": GgufFamily("stablelm", _LLAMA, names_of=_stablelm_names),
    "GraniteForCausalLM": GgufFamily("granite", _LLAMA, True),
    "GraniteMoeForCausalLM": GgufFamily("granitemoe", _MIXTRAL, True),
    "GraniteMoeSharedForCausalLM": GgufFamily("granitemoe", _MIXTRAL, True),
    "BertModel": GgufFamily("bert", _BERT),
    "BertForSequenceClassification": GgufFamily("bert", _BERT),
    "RobertaModel": GgufFamily("bert", _BERT),
    "RobertaForSequenceClassification": GgufFamily("bert", _BERT),
    "XLMRobertaModel": GgufFamily("bert", _BERT),
    "XLMRobertaForSequenceClassification": GgufFamily("bert", _BERT),
    "CohereForCausalLM": GgufFamily("command-r", _COHERE, True),
    "Cohere2ForCausalLM": GgufFamily("cohere2", _COHERE, True),
}


def gguf_family(architecture: str) -> GgufFamily:
    """Return the form of an architecture in a GGUF file.

    Raises:
        UnsupportedArchitectureError: The architecture is not one of :data:`GGUF_FAMILIES`.
    """
    if architecture not in GGUF_FAMILIES:
        raise UnsupportedArchitectureError(
            f"[gguf] the architecture must be one of {', '.join(GGUF_FAMILIES)}; got "
            f"{architecture}. Keep it as safetensors."
        )
    return GGUF_FAMILIES[architecture]
