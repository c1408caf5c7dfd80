"""What tensors are called in GGUF files; the same uses as in a family's own checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, replace

from quire.core.errors import UnsupportedArchitectureError
from quire.models.weight_names import WeightNames

#: Factors by which the rotary frequencies are divided.
ROPE_FACTORS = "rope_freqs.weight"

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
    # The configuration reader takes the one into its frequencies; old files have the other.
    harmless=(r"rope_freqs\.weight", r"blk\.\d+\.attn_rot_embd\.weight"),
)
_MIXTRAL = replace(
    _LLAMA,
    router="ffn_gate_inp",
    expert_gate_up=("ffn_gate.{expert}", "ffn_up.{expert}"),
    expert_down="ffn_down.{expert}",
)
_GPT2 = replace(
    _LLAMA, positions="position_embd", qkv=("attn_qkv",), gate_up=("ffn_up",), harmless=()
)


@dataclass(frozen=True, slots=True)
class GgufFamily:
    """How one of our architectures is kept in a GGUF file.

    Attributes:
        architecture: ``general.architecture``, the prefix of its metadata.
        names: Of tensors. Experts have one each here; a file keeps a layer's experts together.
        interleaved_rope: Query and key rows are ordered for a RoPE of neighbouring pairs.
    """

    architecture: str
    names: WeightNames
    interleaved_rope: bool = False


GGUF_FAMILIES = {
    "LlamaForCausalLM": GgufFamily("llama", _LLAMA, True),
    "MistralForCausalLM": GgufFamily("llama", _LLAMA, True),
    "MixtralForCausalLM": GgufFamily("llama", _MIXTRAL, True),
    "Qwen2ForCausalLM": GgufFamily("qwen2", _LLAMA),
    "Qwen3ForCausalLM": GgufFamily("qwen3", _LLAMA),
    "GPT2LMHeadModel": GgufFamily("gpt2", _GPT2),
}


def gguf_family(architecture: str) -> GgufFamily:
    """Return how an architecture is kept in a GGUF file.

    Raises:
        UnsupportedArchitectureError: Not one of :data:`GGUF_FAMILIES`.
    """
    if architecture not in GGUF_FAMILIES:
        raise UnsupportedArchitectureError(
            f"[gguf] the architecture must be one of {', '.join(GGUF_FAMILIES)}; got "
            f"{architecture}. Keep it as safetensors."
        )
    return GGUF_FAMILIES[architecture]
