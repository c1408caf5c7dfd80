"""Vectors and scores from ``LLM``."""

from __future__ import annotations

import numpy as np
import pytest

from quire import LLM, SamplingParams
from quire.core.errors import RequestError

TEXTS = ["a cat sat", "a dog ran", "prices fell"]


def test_embed_and_encode_are_the_pooled_states(llm: LLM) -> None:
    for pooling in ("last", "mean"):
        params = SamplingParams(pooling=pooling, max_tokens=None)
        expected = [np.frombuffer(o.embedding, "<f4") for o in llm.generate(TEXTS, params)]
        for output, vector in zip(llm.encode(TEXTS, pooling=pooling), expected, strict=True):
            assert np.array_equal(output.outputs.data, vector) and output.finished
        for output, vector in zip(llm.embed(TEXTS, pooling=pooling), expected, strict=True):
            assert output.outputs.embedding == vector.tolist()
            assert output.outputs.hidden_size == len(vector)
            assert np.linalg.norm(output.outputs.embedding) == pytest.approx(1, abs=1e-6)
    single = llm.embed("a cat sat")[0]
    assert single.prompt_token_ids == llm.get_tokenizer().encode("a cat sat")


def test_scores_are_cosines(llm: LLM) -> None:
    vectors = np.array([output.outputs.data for output in llm.encode(TEXTS)], float)
    one_to_all = [output.outputs.score for output in llm.score(TEXTS[0], TEXTS)]
    assert one_to_all == pytest.approx((vectors @ vectors[0]).tolist(), abs=1e-6)
    assert one_to_all[0] == pytest.approx(1, abs=1e-6)
    pairs = llm.score(TEXTS[:2], TEXTS[1:])
    expected = [vectors[0] @ vectors[1], vectors[1] @ vectors[2]]
    assert [output.outputs.score for output in pairs] == pytest.approx(expected, abs=1e-6)
    assert len(pairs[0].request_id.split("_")) == 2


@pytest.mark.parametrize(("first", "second"), [(TEXTS[:2], TEXTS), (TEXTS, TEXTS[0]), ("a", [])])
def test_numbers_that_do_not_fit_are_refused(llm: LLM, first, second) -> None:
    with pytest.raises(RequestError, match="data_1 must be one text, or as many as data_2"):
        llm.score(first, second)


def test_a_task_without_a_head_is_refused(llm: LLM) -> None:
    with pytest.raises(RequestError, match="needs a model with a head of classes"):
        llm.encode("a", pooling_task="classify")
    with pytest.raises(RequestError, match="must be embed or classify; got 'token_embed'"):
        llm.encode("a", pooling_task="token_embed")
