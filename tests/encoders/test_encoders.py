"""Vectors, classes and scores of encoders against transformers, and against themselves."""

from __future__ import annotations

import re

import numpy as np
import pytest

from quire import LLM, SamplingParams
from quire.core.errors import ConfigError, RequestError
from tests.encoders.conftest import MODELS, TEXTS

VECTORS = [name for name, (kind, _) in MODELS.items() if kind.endswith("Model")]
CLASSES = [name for name in MODELS if name not in VECTORS]
PAIRS = list(zip(TEXTS, reversed(TEXTS), strict=True))


def relative_error(got, want):
    return float(np.abs(np.array(got) - want).max() / np.abs(want).max())


@pytest.mark.parametrize("name", VECTORS)
def test_vectors_are_those_of_transformers(name, encoder):
    oracle = encoder(name)
    with LLM(oracle.folder) as llm:
        for kind in ("cls", "mean", "last", "pooler"):
            found = llm.embed(TEXTS, pooling=kind, use_tqdm=False)
            for text, output in zip(TEXTS, found, strict=True):
                assert relative_error(output.outputs.embedding, oracle.vector(text, kind)) < 1e-5
        default = [output.outputs.embedding for output in llm.embed(TEXTS, use_tqdm=False)]
        cls = [output.outputs.embedding for output in llm.embed(TEXTS, pooling="cls")]
        assert default == cls


@pytest.mark.parametrize("name", CLASSES)
def test_classes_are_those_of_transformers(name, encoder):
    oracle = encoder(name)
    with LLM(oracle.folder) as llm:
        found = llm.classify(TEXTS, use_tqdm=False)
        for text, output in zip(TEXTS, found, strict=True):
            assert relative_error(output.outputs.probs, oracle.probabilities(text)) < 1e-5
        same = llm.encode(TEXTS, pooling_task="classify", use_tqdm=False)
        for one, other in zip(found, same, strict=True):
            assert np.array_equal(other.outputs.data, np.array(one.outputs.probs, np.float32))


@pytest.mark.parametrize("name", [name for name in CLASSES if name.endswith("score")])
def test_scores_of_pairs_are_those_of_transformers(name, encoder):
    oracle = encoder(name)
    with LLM(oracle.folder) as llm:
        found = llm.score(*map(list, zip(*PAIRS, strict=True)), use_tqdm=False)
        for pair, output in zip(PAIRS, found, strict=True):
            assert relative_error([output.outputs.score], oracle.probabilities(*pair)) < 1e-5
        one_to_all = llm.score(TEXTS[0], TEXTS, use_tqdm=False)
        assert one_to_all[-1].outputs.score == found[0].outputs.score


@pytest.mark.parametrize("name", ["bert", "xlm-roberta", "bert-score", "qwen3-score"])
@pytest.mark.parametrize("max_num_batched_tokens", [172, 300, 2048])
def test_company_changes_no_bit(name, max_num_batched_tokens, encoder):
    """All alone, and as many in a step as fit; the budget never cuts a prompt of an encoder."""
    kind = "mean" if name in VECTORS else "classify"
    params = SamplingParams(pooling=kind, max_tokens=None)
    with LLM(encoder(name).folder, max_num_batched_tokens=max_num_batched_tokens) as llm:
        alone = [llm.generate(text, params)[0].embedding for text in TEXTS]
        together = llm.generate(TEXTS * 7, params, use_tqdm=False)
        assert [output.embedding for output in together] == alone * 7
        if name.endswith("score"):
            pairs = [llm.score(*pair)[0].outputs.score for pair in PAIRS]
            found = llm.score(*map(list, zip(*(PAIRS * 5), strict=True)), use_tqdm=False)
            assert [output.outputs.score for output in found] == pairs * 5
        llm.engine.engine.scheduler.kv.check_integrity()
        assert llm.engine.engine.scheduler.kv.pool.num_used == 0


def test_several_texts_share_a_step(encoder):
    with LLM(encoder("bert").folder) as llm:
        for index, text in enumerate(TEXTS):
            params = SamplingParams(pooling="cls", max_tokens=None)
            llm.engine.add_request(str(index), text, params)
        outputs = llm.engine.step()
        assert len(outputs) == len(TEXTS) and all(output.finished for output in outputs)


@pytest.mark.parametrize(
    ("name", "longest"), [("bert", 172), ("roberta", 170), ("xlm-roberta", 171)]
)
def test_a_prompt_may_be_as_long_as_there_are_positions(name, longest, encoder):
    oracle = encoder(name)
    with LLM(oracle.folder) as llm:
        assert len(llm.embed([[7] * longest])[0].outputs.embedding) == 60
        with pytest.raises(RequestError, match=f"at most {longest} tokens"):
            llm.embed([[7] * (longest + 1)])


def test_kv_takes_one_layer_s_room(encoder):
    with LLM(encoder("bert").folder) as llm:
        spec, budget = llm.engine.executor.kv_cache_spec, llm.engine.executor.memory.budget
        assert spec.num_layers == 1
        assert budget.num_blocks == 2048 // spec.block_size + 128 + 1


def test_text_is_refused_in_one_sentence(encoder):
    with LLM(encoder("bert").folder) as llm:
        with pytest.raises(RequestError, match=r"BertModel generates no text.*LLM\.embed"):
            llm.generate("a cat")
        with pytest.raises(RequestError, match="needs a model with a head of classes"):
            llm.classify("a cat")
    with LLM(encoder("llama-classes").folder) as llm:
        with pytest.raises(RequestError, match="generates no text"):
            llm.generate("a cat")
        with pytest.raises(RequestError, match="cls needs an encoder"):
            llm.embed("a cat", pooling="cls")
        with pytest.raises(RequestError, match="needs a model with one class; got 3"):
            llm.score("a cat", "a dog")
    with (
        LLM(encoder("xlm-roberta-score").folder) as llm,
        pytest.raises(RequestError, match="takes texts"),
    ):
        llm.score([[5, 6]], "a dog")


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"enable_lora": True}, "--enable-lora"),
        ({"speculative_config": {"method": "ngram"}}, "--speculative-config"),
    ],
)
def test_settings_of_models_that_generate_are_refused(settings, flag, encoder):
    with pytest.raises(ConfigError, match=f"{re.escape(flag)} needs a model that generates"):
        LLM(encoder("bert").folder, **settings)


def test_tiers_of_kv_blocks_are_refused(encoder):
    """They took memory, and an encoder has no KV that they could keep."""
    with pytest.raises(ConfigError, match=r"--kv-offload-\* needs a model with a KV cache"):
        LLM(encoder("xlm-roberta-score").folder, kv_offload_bytes=1 << 20)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_weights_are_rounded_at_load(quantization, encoder):
    oracle = encoder("bert-classes")
    options = {"quantization": quantization, "quantization_group_size": 0}
    with LLM(oracle.folder, **options) as llm:
        found = llm.classify(TEXTS, use_tqdm=False)
    bound = {"int8": 0.05, "int4": 0.5}[quantization]
    for text, output in zip(TEXTS, found, strict=True):
        assert relative_error(output.outputs.probs, oracle.probabilities(text)) < bound
