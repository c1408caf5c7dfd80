"""Chat on a real engine, asked by OpenAI's own client."""

from __future__ import annotations

import openai
import pytest

HELLO = [{"role": "user", "content": "Hello there, how are you?"}]
IDS = {"return_token_ids": True}


def create(live, **fields):
    keywords = {"model": "tiny", "messages": HELLO, "temperature": 0, "max_completion_tokens": 24}
    return live.openai.chat.completions.create(**{**keywords, **fields})


def joined(stream):
    """Return per choice (text, finish reason, token ids), and the last usage."""
    texts, reasons, ids, usage = {}, {}, {}, None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            index = choice.index
            texts[index] = texts.get(index, "") + (choice.delta.content or "")
            ids[index] = ids.get(index, []) + (choice.model_extra.get("token_ids") or [])
            if choice.finish_reason:
                assert index not in reasons, "a choice ends once"
                reasons[index] = choice.finish_reason
    return [(texts[i], reasons[i], ids[i]) for i in sorted(texts)], usage


def test_the_answer_is_the_engine_s(live, folder, device):
    from quire import LLM, SamplingParams

    answer = create(live, extra_body=IDS)
    with LLM(str(folder), device=device, threads=1, memory=64 * 2**20) as llm:
        params = SamplingParams(temperature=0, max_tokens=24)
        expected = llm.chat(HELLO, params, use_tqdm=False)[0]
    choice = answer.choices[0]
    assert answer.model_extra["prompt_token_ids"] == expected.prompt_token_ids
    assert choice.model_extra["token_ids"] == expected.outputs[0].token_ids
    assert choice.message.content == expected.outputs[0].text
    assert (choice.message.role, choice.finish_reason) == ("assistant", "length")
    assert (answer.object, answer.model, answer.id[:9]) == ("chat.completion", "tiny", "chatcmpl-")
    assert answer.usage.prompt_tokens == len(expected.prompt_token_ids)
    assert answer.usage.completion_tokens == 24
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 24


@pytest.mark.parametrize("n", [1, 3])
def test_streamed_is_whole(live, n):
    fields = {"n": n, "temperature": 1, "seed": 7, "extra_body": IDS}
    whole = create(live, **fields)
    stream = create(live, stream=True, stream_options={"include_usage": True}, **fields)
    choices, usage = joined(stream)
    assert choices == [
        (c.message.content, c.finish_reason, c.model_extra["token_ids"]) for c in whole.choices
    ]
    assert usage.completion_tokens == whole.usage.completion_tokens == 24 * n
    assert len({text for text, _, _ in choices}) == n, "sequences draw for themselves"


def test_logprobs_carry_exact_bytes(live):
    choice = create(live, logprobs=True, top_logprobs=3, extra_body=IDS).choices[0]
    content = choice.logprobs.content
    assert len(content) == 24
    data = b"".join(bytes(entry.bytes) for entry in content)
    assert data.decode(errors="replace") == choice.message.content
    for entry in content:
        tops = [top.logprob for top in entry.top_logprobs]
        assert len(tops) == 3 and tops == sorted(tops, reverse=True)
        # Greedy: what was chosen is the most likely.
        assert (entry.token, entry.logprob) == (entry.top_logprobs[0].token, tops[0])
        assert (
            entry.token == bytes(entry.bytes).decode(errors="backslashreplace") or not entry.bytes
        )


def test_streamed_logprobs_are_the_whole_ones(live):
    whole = create(live, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    stream = create(live, logprobs=True, top_logprobs=2, stream=True)
    parts = [choice.logprobs for chunk in stream for choice in chunk.choices if choice.logprobs]
    assert [entry for part in parts for entry in part.content] == whole


def test_tokens_can_be_named_by_id(live):
    extra = {"return_tokens_as_token_ids": True, **IDS}
    choice = create(live, logprobs=True, extra_body=extra).choices[0]
    names = [entry.token for entry in choice.logprobs.content]
    assert names == [f"token_id:{i}" for i in choice.model_extra["token_ids"]]


def first_word(text):
    """A piece of text that the tokenizer gives back unchanged."""
    for start in range(1, len(text) - 1):
        piece = text[start : start + 2]
        if "\ufffd" not in piece:
            return piece
    raise AssertionError("the random model writes no two whole characters in a row")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("keep", [False, True])
def test_stop_strings(live, stream, keep):
    full = create(live).choices[0].message.content
    stop = first_word(full)
    expected = full[: full.index(stop) + (len(stop) if keep else 0)]
    extra = {"include_stop_str_in_output": keep}
    answer = create(live, stop=stop, stream=stream, extra_body=extra)
    if stream:
        assert joined(answer)[0][0][:2] == (expected, "stop")
    else:
        choice = answer.choices[0]
        assert (choice.message.content, choice.finish_reason) == (expected, "stop")
        assert choice.model_extra["stop_reason"] == stop


def test_stop_token_ids(live):
    ids = create(live, extra_body=IDS).choices[0].model_extra["token_ids"]
    extra = {"stop_token_ids": [ids[5]], **IDS}
    choice = create(live, extra_body=extra).choices[0]
    assert choice.finish_reason == "stop" and choice.model_extra["stop_reason"] == ids[5]
    assert choice.model_extra["token_ids"] == ids[: ids.index(ids[5]) + 1]


def test_without_a_limit_the_context_is_filled(brief):
    limit = brief.openai.models.retrieve("tiny").model_extra["max_model_len"]
    assert limit == 512
    messages = [{"role": "user", "content": "x" * (limit - 60)}]
    extra = {"ignore_eos": True}
    answer = brief.openai.chat.completions.create(
        model="tiny", messages=messages, temperature=0, extra_body=extra
    )
    assert answer.usage.total_tokens == limit
    assert answer.choices[0].finish_reason == "length"


def test_allowed_tokens_and_bias(live):
    choice = create(live, extra_body={"allowed_token_ids": [65, 66], **IDS}).choices[0]
    assert set(choice.model_extra["token_ids"]) <= {65, 66}
    choice = create(live, logit_bias={"70": 100}, extra_body=IDS).choices[0]
    assert set(choice.model_extra["token_ids"]) == {70}


def test_prompt_logprobs(live):
    answer = create(live, extra_body={"prompt_logprobs": 1, **IDS})
    ids, entries = answer.model_extra["prompt_token_ids"], answer.model_extra["prompt_logprobs"]
    assert entries[0] is None and len(entries) == len(ids)
    for token_id, entry in zip(ids[1:], entries[1:], strict=True):
        assert entry[str(token_id)]["logprob"] <= max(e["logprob"] for e in entry.values())
        assert set(entry[str(token_id)]) == {"logprob", "rank", "decoded_token"}


def test_the_final_message_can_be_continued(live):
    messages = [*HELLO, {"role": "assistant", "content": "I am"}]
    extra = {"continue_final_message": True, **IDS}
    answer = create(live, messages=messages, extra_body=extra)
    ids = live.http.post(
        "/tokenize", json={"messages": messages, "continue_final_message": True}
    ).json()["tokens"]
    assert answer.model_extra["prompt_token_ids"] == ids
    text = live.http.post("/detokenize", json={"tokens": ids}).json()["prompt"]
    assert text.endswith("<|im_start|>assistant\nI am")


def test_cached_tokens_are_reported_and_salted(live):
    def cached(**extra):
        messages = [{"role": "user", "content": "The same long beginning. " * 4}]
        answer = create(live, messages=messages, max_completion_tokens=2, extra_body=extra)
        return answer.usage.prompt_tokens_details.cached_tokens

    assert cached() == 0
    assert cached() >= 96
    assert cached(cache_salt="mine") == 0
    assert cached(cache_salt="mine") >= 96


def test_the_client_s_exceptions(live):
    with pytest.raises(openai.NotFoundError, match="`gpt-4` does not exist"):
        create(live, model="gpt-4")
    with pytest.raises(openai.BadRequestError) as caught:
        create(live, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.BadRequestError, match="maximum context length is 32768 tokens"):
        create(live, messages=[{"role": "user", "content": "x" * 33000}])
    with pytest.raises(openai.BadRequestError) as caught:
        create(live, logprobs=True, top_logprobs=21)
    assert caught.value.param == "top_logprobs"
