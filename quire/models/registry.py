"""Which architectures are supported; each is a configuration reader and a map of names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quire.core.errors import UnsupportedArchitectureError
from quire.core.model_config import ModelConfig
from quire.models import gpt2, llama, mixtral
from quire.models.config_fields import ConfigFields
from quire.models.weight_names import WeightNames


@dataclass(frozen=True, slots=True)
class Family:
    """Checkpoints that are read alike.

    Attributes:
        read_config: Turns ``config.json`` into a :class:`ModelConfig`.
        names: What the tensors are called.
    """

    read_config: Callable[[ConfigFields], ModelConfig]
    names: WeightNames


FAMILIES = {
    "GPT2LMHeadModel": Family(gpt2.read_gpt2, gpt2.NAMES),
    "LlamaForCausalLM": Family(llama.read_llama, llama.NAMES),
    "MistralForCausalLM": Family(llama.read_mistral, llama.NAMES),
    "MixtralForCausalLM": Family(mixtral.read_mixtral, mixtral.NAMES),
    "Qwen2ForCausalLM": Family(llama.read_qwen2, llama.NAMES),
    "Qwen3ForCausalLM": Family(llama.read_qwen3, llama.NAMES),
}


def get_family(architecture: str) -> Family:
    """Return the family of ``architecture``.

    Raises:
        UnsupportedArchitectureError: Not one of :data:`FAMILIES`; the message lists them.
    """
    if architecture not in FAMILIES:
        raise UnsupportedArchitectureError(
            f"[load] the architecture must be one of {', '.join(FAMILIES)}; got {architecture}."
        )
    return FAMILIES[architecture]
