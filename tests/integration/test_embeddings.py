"""Embeddings: right against transformers, and the same bits whatever else is in the batch."""

from __future__ import annotations

import numpy as np
import pytest

from quire import SamplingParams
from quire.core.errors import InvalidSamplingParamsError, PromptTooLongError

POOLINGS = ("mean", "last")
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)


def pooled(pooling: str) -> SamplingParams:
    return SamplingParams(pooling=pooling, max_tokens=None, detokenize=False)


def vectors(llm, prompts, pooling):
    outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], pooled(pooling))
    assert all(o.finished and o.outputs[0].finish_reason == "stop" for o in outputs)
    assert all(not o.outputs[0].token_ids and not o.outputs[0].text for o in outputs)
    return [output.embedding for output in outputs]


@pytest.mark.parametrize("family", ["tiny-llama", "tiny-qwen3", "tiny-gpt2"])
def test_they_are_the_pooled_states_of_transformers(checkpoint, create_llm, prompts, family):
    pytest.importorskip("transformers")
    import torch

    from tests.reference_model import ReferenceModel

    model = ReferenceModel(checkpoint(family))._model
    asked = prompts(1, 17, 40)
    llm = create_llm(family, block_size=8, max_num_batched_tokens=24)
    for pooling in POOLINGS:
        for prompt, found in zip(asked, vectors(llm, asked, pooling), strict=True):
            with torch.no_grad():
                whole = model(torch.tensor([prompt]), output_hidden_states=True, use_cache=False)
            states = whole.hidden_states[-1][0].double().numpy()
            expected = states.mean(axis=0) if pooling == "mean" else states[-1]
            expected /= np.linalg.norm(expected)
            vector = np.frombuffer(found, "<f4")
            assert vector.shape == expected.shape
            np.testing.assert_allclose(vector, expected, atol=1e-5)
            assert np.linalg.norm(vector.astype(float)) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_the_same_bits_whatever_else_is_in_the_batch(create_llm, prompts, pooling):
    asked = prompts(60, 5, 33, 48, 1, 60)
    asked.append(asked[0][:40] + asked[3][:20])  # a shared prefix
    alone_llm = create_llm(enable_prefix_caching=False)
    alone = [vectors(alone_llm, [prompt], pooling)[0] for prompt in asked]
    assert len(set(alone)) == len(alone)
    small = {"block_size": 4, "max_num_batched_tokens": 16, "num_gpu_blocks_override": 32,
             "looks_ahead": False}  # fmt: skip
    for settings in ({}, small, small | {"threads": 2}):
        llm = create_llm(**settings)
        for _ in range(2):  # the second time from a warm cache
            assert vectors(llm, asked, pooling) == alone
        # Together with requests that generate, under preemption.
        for index, prompt in enumerate(asked):
            llm.engine.add_request(f"g{index}", {"prompt_token_ids": prompt}, GREEDY)
            llm.engine.add_request(f"e{index}", {"prompt_token_ids": prompt}, pooled(pooling))
        found = {}
        while llm.engine.has_unfinished_requests():
            found |= {o.request_id: o for o in llm.engine.step() if o.finished}
        assert [found[f"e{index}"].embedding for index in range(len(asked))] == alone
        assert all(len(found[f"g{i}"].outputs[0].token_ids) == 40 for i in range(len(asked)))
        if settings:
            assert llm.engine.stats()["num_preemptions"] > 0


def test_only_the_last_token_s_state_may_come_behind_a_cache_hit(create_llm, prompts):
    (prompt,) = prompts(40)
    llm = create_llm(block_size=4)
    for pooling, hits in (("last", 36), ("mean", 0)):
        vectors(llm, [prompt], pooling)
        (output,) = llm.generate({"prompt_token_ids": prompt}, pooled(pooling))
        assert output.num_cached_tokens == hits


def test_a_prompt_may_fill_the_context(create_llm, prompts):
    llm = create_llm(max_model_len=32)
    (fits, long) = prompts(32, 33)
    assert vectors(llm, [fits], "last")[0]
    with pytest.raises(PromptTooLongError, match="at most 32 tokens to be embedded; got 33"):
        llm.generate({"prompt_token_ids": long}, pooled("last"))


@pytest.mark.parametrize(
    "settings",
    [{"pooling": "max"}, {"pooling": "mean", "n": 2}, {"pooling": "last", "logprobs": 1}],
)
def test_what_does_not_go_with_it_is_refused(settings):
    with pytest.raises(InvalidSamplingParamsError):
        SamplingParams(**settings)
