"""RoBERTa and XLM-R: BERT with positions that begin after the padding token's id."""

from __future__ import annotations

from dataclasses import replace

from quire.checkpoints.config_fields import ConfigFields
from quire.core.model.model_config import ModelConfig
from quire.models.config.class_labels import read_classifier
from quire.models.families.encoders import bert

NAMES = replace(
    bert.NAMES,
    optional_prefix="roberta.",
    **{
        field: getattr(bert.NAMES, field).replace("bert.", "roberta.", 1)
        for field in (
            "layer", "embedding", "positions", "token_types", "embedding_norm", "pooler"
        )
    },
    harmless=(r"(roberta\.)?embeddings\.position_ids",),
)  # fmt: skip
#: Its head for classes has the pooler in it.
CLASSES_NAMES = replace(NAMES, pooler="classifier.dense", classifier="classifier.out_proj")


def read_roberta(config: ConfigFields) -> ModelConfig:
    """Read a RobertaModel or XLMRobertaModel: positions begin after the padding token's id."""
    offset = config.integer("pad_token_id", 1, minimum=0) + 1
    read = bert.read_bert(config)
    if offset >= read.learned_positions:
        raise config.error("max_position_embeddings", f"must be more than {offset}")
    left = read.learned_positions - offset
    return replace(read, position_offset=offset, max_position_embeddings=left)


def read_roberta_classes(config: ConfigFields) -> ModelConfig:
    """Read a RobertaForSequenceClassification or XLMRobertaForSequenceClassification."""
    classifier = read_classifier(config, state="first", bias=True)
    return replace(read_roberta(config), classifier=classifier)
