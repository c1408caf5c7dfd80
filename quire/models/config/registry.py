"""The supported architectures; each is a configuration reader and a map of names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from quire.checkpoints.config_fields import ConfigFields
from quire.checkpoints.weight_names import WeightNames
from quire.core.errors import UnsupportedArchitectureError
from quire.core.model.model_config import ModelConfig
from quire.models.config.class_labels import read_classifier
from quire.models.families import (
    cohere,
    ernie,
    exaone,
    falcon,
    gemma,
    glm,
    gpt2,
    gpt_j,
    gpt_neox,
    granite,
    llama,
    olmo,
    phi,
    seed_oss,
    smollm3,
    stablelm,
    starcoder2,
)
from quire.models.families.encoders import bert, roberta
from quire.models.families.experts import deepseek, deepseek_moe, gpt_oss, llama4, mixtral, qwen_moe
from quire.models.families.pictures import gemma3_pictures, idefics3, llava, llava_next, qwen_vl


@dataclass(frozen=True, slots=True)
class Family:
    """Checkpoints that are read alike.

    Attributes:
        read_config: Function that turns ``config.json`` into a :class:`ModelConfig`.
        names: Names of the tensors.
        names_of: Function that returns the names where a configuration decides, or None.
    """

    read_config: Callable[[ConfigFields], ModelConfig]
    names: WeightNames
    names_of: Callable[[ModelConfig], WeightNames] | None = None

    def weight_names(self, config: ModelConfig) -> WeightNames:
        """Return the names of a model's tensors."""
        return self.names if self.names_of is None else self.names_of(config)


def _with_classes(read: Callable[[ConfigFields], ModelConfig], names: WeightNames) -> Family:
    """Return a family of decoders with a head of classes in place of the output head."""

    def read_config(config: ConfigFields) -> ModelConfig:
        classifier = read_classifier(config, state="last", bias=False)
        return replace(read(config), classifier=classifier, tie_word_embeddings=True)

    return Family(read_config, replace(names, classifier="score"))


FAMILIES = {
    "BertForSequenceClassification": Family(bert.read_bert_classes, bert.NAMES),
    "BertModel": Family(bert.read_bert, bert.NAMES),
    "Cohere2ForCausalLM": Family(cohere.read_cohere2, cohere.NAMES),
    "CohereForCausalLM": Family(cohere.read_cohere, cohere.NAMES),
    "DeepseekV2ForCausalLM": Family(deepseek.read_deepseek_v2, deepseek.NAMES),
    "DeepseekV3ForCausalLM": Family(deepseek.read_deepseek_v3, deepseek.NAMES),
    "Dots1ForCausalLM": Family(deepseek_moe.read_dots1, deepseek_moe.NAMES),
    "Ernie4_5ForCausalLM": Family(ernie.read_ernie, llama.NAMES),
    "Exaone4ForCausalLM": Family(exaone.read_exaone4, olmo.NAMES),
    "FalconForCausalLM": Family(falcon.read_falcon, falcon.NAMES, falcon.falcon_names),
    "GPTJForCausalLM": Family(gpt_j.read_gpt_j, gpt_j.NAMES),
    "GPTNeoXForCausalLM": Family(gpt_neox.read_gpt_neox, gpt_neox.NAMES),
    "Gemma2ForCausalLM": Family(gemma.read_gemma2, gemma.SANDWICH_NAMES),
    "Gemma3ForCausalLM": Family(gemma.read_gemma3, gemma.SANDWICH_NAMES),
    "Gemma3ForConditionalGeneration": Family(
        gemma3_pictures.read_gemma3_pictures, gemma3_pictures.NAMES
    ),
    "GemmaForCausalLM": Family(gemma.read_gemma, gemma.NAMES),
    "Glm4ForCausalLM": Family(glm.read_glm4, glm.GLM4_NAMES),
    "Glm4MoeForCausalLM": Family(deepseek_moe.read_glm4_moe, deepseek_moe.NAMES),
    "GlmForCausalLM": Family(glm.read_glm, glm.NAMES),
    "GptOssForCausalLM": Family(gpt_oss.read_gpt_oss, gpt_oss.NAMES),
    "GraniteForCausalLM": Family(granite.read_granite, llama.NAMES),
    "GraniteMoeForCausalLM": Family(granite.read_granite_moe, granite.MOE_NAMES),
    "GraniteMoeSharedForCausalLM": Family(granite.read_granite_moe_shared, granite.MOE_NAMES),
    "Ministral3ForCausalLM": Family(llama.read_ministral3, llama.NAMES),
    "MinistralForCausalLM": Family(llama.read_ministral, llama.NAMES),
    "Olmo2ForCausalLM": Family(olmo.read_olmo2, olmo.NAMES),
    "Olmo3ForCausalLM": Family(olmo.read_olmo3, olmo.NAMES),
    "OlmoeForCausalLM": Family(qwen_moe.read_olmoe, qwen_moe.NAMES),
    "Phi3ForCausalLM": Family(phi.read_phi3, phi.PHI3_NAMES),
    "PhiForCausalLM": Family(phi.read_phi, phi.PHI_NAMES),
    "SeedOssForCausalLM": Family(seed_oss.read_seed_oss, llama.NAMES),
    "RobertaForSequenceClassification": Family(roberta.read_roberta_classes, roberta.CLASSES_NAMES),
    "RobertaModel": Family(roberta.read_roberta, roberta.NAMES),
    "SmolLM3ForCausalLM": Family(smollm3.read_smollm3, llama.NAMES),
    "StableLmForCausalLM": Family(stablelm.read_stablelm, stablelm.NAMES, stablelm.stablelm_names),
    "Starcoder2ForCausalLM": Family(starcoder2.read_starcoder2, starcoder2.NAMES),
    "Idefics3ForConditionalGeneration": Family(idefics3.read_idefics3, idefics3.NAMES),
    "SmolVLMForConditionalGeneration": Family(idefics3.read_idefics3, idefics3.NAMES),
    "GPT2LMHeadModel": Family(gpt2.read_gpt2, gpt2.NAMES),
    "Llama4ForCausalLM": Family(llama4.read_llama4, llama4.NAMES),
    "Llama4ForConditionalGeneration": Family(llama4.read_llama4_whole, llama4.WHOLE_NAMES),
    "LlamaForCausalLM": Family(llama.read_llama, llama.NAMES),
    "LlamaForSequenceClassification": _with_classes(llama.read_llama, llama.NAMES),
    "LlavaForConditionalGeneration": Family(llava.read_llava, llava.NAMES),
    "LlavaNextForConditionalGeneration": Family(llava_next.read_llava_next, llava_next.NAMES),
    "LlavaOnevisionForConditionalGeneration": Family(
        llava_next.read_llava_onevision, llava_next.NAMES
    ),
    "MistralForCausalLM": Family(llama.read_mistral, llama.NAMES),
    "MistralForSequenceClassification": _with_classes(llama.read_mistral, llama.NAMES),
    "MixtralForCausalLM": Family(mixtral.read_mixtral, mixtral.NAMES),
    "Qwen2VLForConditionalGeneration": Family(qwen_vl.read_qwen2_vl, qwen_vl.NAMES),
    "Qwen2_5_VLForConditionalGeneration": Family(qwen_vl.read_qwen2_5_vl, qwen_vl.NAMES),
    "Qwen2ForCausalLM": Family(llama.read_qwen2, llama.NAMES),
    "Qwen2ForSequenceClassification": _with_classes(llama.read_qwen2, llama.NAMES),
    "Qwen2MoeForCausalLM": Family(qwen_moe.read_qwen2_moe, qwen_moe.NAMES),
    "Qwen3ForCausalLM": Family(llama.read_qwen3, llama.NAMES),
    "Qwen3ForSequenceClassification": _with_classes(llama.read_qwen3, llama.NAMES),
    "Qwen3MoeForCausalLM": Family(qwen_moe.read_qwen3_moe, qwen_moe.NAMES),
    "XLMRobertaForSequenceClassification": Family(
        roberta.read_roberta_classes, roberta.CLASSES_NAMES
    ),
    "XLMRobertaModel": Family(roberta.read_roberta, roberta.NAMES),
}


#: Names that transformers has given up since.
OLDER = {"RWForCausalLM": "FalconForCausalLM"}


def known_architecture(name: str) -> str | None:
    """Return the one of :data:`FAMILIES` that a class of transformers is read as; None for none.

    A model class without a head, such as ``LlamaModel``, is its decoder.
    """
    name = OLDER.get(name, name)
    if name in FAMILIES:
        return name
    base = name.removesuffix("Model")
    heads = [base + head for head in ("ForCausalLM", "LMHeadModel") if base != name]
    return next((known for known in heads if known in FAMILIES), None)


def get_family(architecture: str) -> Family:
    """Return the family of ``architecture``.

    Raises:
        UnsupportedArchitectureError: The architecture is not one of :data:`FAMILIES`; the message
            lists them.
    """
    if architecture not in FAMILIES:
        raise UnsupportedArchitectureError(
            f"[load] the architecture must be one of {', '.join(FAMILIES)}; got {architecture}."
        )
    return FAMILIES[architecture]
