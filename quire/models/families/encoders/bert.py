"""BERT: an encoder; learned positions and token types, norms after sums, GELU."""

from __future__ import annotations

from dataclasses import replace

from quire.checkpoints.config_fields import ConfigFields
from quire.checkpoints.weight_names import WeightNames
from quire.core.model.model_config import ModelConfig
from quire.core.model.pooling_config import PoolingConfig
from quire.models.config.class_labels import read_classifier
from quire.models.families.llama import read_activation, read_architecture, read_head_dim

NAMES = WeightNames(
    optional_prefix="bert.",
    layer="bert.encoder.layer.{layer}.",
    embedding="bert.embeddings.word_embeddings",
    positions="bert.embeddings.position_embeddings",
    token_types="bert.embeddings.token_type_embeddings",
    embedding_norm="bert.embeddings.LayerNorm",
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
    attention_output="attention.output.dense",
    mlp_norm="attention.output.LayerNorm",
    gate_up=("intermediate.dense",),
    down="output.dense",
    next_norm="output.LayerNorm",
    pooler="bert.pooler.dense",
    classifier="classifier",
    harmless=(r"(bert\.)?embeddings\.position_ids",),
)


def read_bert(config: ConfigFields) -> ModelConfig:
    """Read a BertModel, whose checkpoint may be without the pooler."""
    config.require("position_embedding_type", "absolute")
    config.require("is_decoder", False)
    config.has("tie_word_embeddings")  # with an output head, which it does not have
    num_heads, positions = (
        config.integer(name) for name in ("num_attention_heads", "max_position_embeddings")
    )
    return ModelConfig(
        architecture=read_architecture(config),
        vocab_size=config.integer("vocab_size"),
        hidden_size=config.integer("hidden_size"),
        num_layers=config.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=read_head_dim(config),
        intermediate_size=config.integer("intermediate_size"),
        max_position_embeddings=positions,
        activation=read_activation(config, "hidden_act", "gelu"),
        gated_mlp=False,
        norm="layer_norm",
        norm_eps=config.number("layer_norm_eps", 1e-12),
        norm_placement="sum",
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        learned_positions=positions,
        token_types=config.integer("type_vocab_size", 2),
        tie_word_embeddings=True,
        is_encoder=True,
        pooling=PoolingConfig(kind="cls"),
        pooler=True,
    )


def read_bert_classes(config: ConfigFields) -> ModelConfig:
    """Read a BertForSequenceClassification."""
    return replace(read_bert(config), classifier=read_classifier(config, state="first", bias=True))
