"""Text completions on a real engine, asked by OpenAI's own client."""

from __future__ import annotations

import pytest

from tests.sizes import sized

PROMPT = "Once upon a time"


def create(live, **fields):
    keywords = {"model": "tiny", "prompt": PROMPT, "temperature": 0, "max_tokens": 12}
    return live.openai.completions.create(**{**keywords, **fields})


def text_of(live, **fields):
    return create(live, **fields).choices[0].text


def test_sixteen_tokens_by_default(live):
    # Drawn without a seed, so the end may be among the sixteen.
    extra = {"ignore_eos": True}
    answer = live.openai.completions.create(model="tiny", prompt=PROMPT, extra_body=extra)
    assert (answer.object, answer.id[:5]) == ("text_completion", "cmpl-")
    assert answer.usage.completion_tokens == 16
    assert answer.choices[0].finish_reason == "length"


def test_the_default_gives_way_to_the_context_s_end(brief):
    limit = brief.openai.models.retrieve("tiny").model_extra["max_model_len"]
    assert limit == 512
    answer = brief.openai.completions.create(
        model="tiny", prompt="x" * (limit - 3), extra_body={"ignore_eos": True}
    )
    assert answer.usage.completion_tokens == 3


def test_token_ids_are_a_prompt(live):
    ids = live.http.post("/tokenize", json={"prompt": PROMPT}).json()["tokens"]
    assert text_of(live, prompt=ids) == text_of(live)


def test_many_prompts_keep_their_order(live):
    prompts = ["One", "Two", "Three and more"]
    alone = [text_of(live, prompt=prompt) for prompt in prompts]
    answer = create(live, prompt=prompts)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [choice.text for choice in answer.choices] == alone
    ids = [live.http.post("/tokenize", json={"prompt": p}).json()["tokens"] for p in prompts]
    assert [choice.text for choice in create(live, prompt=ids).choices] == alone
    assert answer.usage.completion_tokens == 36
    assert answer.usage.prompt_tokens == sum(map(len, ids))


@pytest.mark.parametrize("echo", [False, True])
def test_streamed_is_whole(live, echo):
    fields = {
        "prompt": ["One", "Two"],
        "n": 2,
        "temperature": 1,
        "seed": 3,
        "echo": echo,
        "logprobs": 2,
    }
    whole = create(live, **fields)
    assert [choice.index for choice in whole.choices] == [0, 1, 2, 3]
    found = {}
    for chunk in create(live, stream=True, stream_options={"include_usage": True}, **fields):
        for choice in chunk.choices:
            entry = found.setdefault(choice.index, {"text": "", "tokens": [], "offsets": []})
            entry["text"] += choice.text
            entry["tokens"] += choice.logprobs.tokens
            entry["offsets"] += choice.logprobs.text_offset
            entry["reason"] = choice.finish_reason
        usage = chunk.usage
    for choice in whole.choices:
        assert found[choice.index] == {
            "text": choice.text,
            "tokens": choice.logprobs.tokens,
            "offsets": choice.logprobs.text_offset,
            "reason": choice.finish_reason,
        }
    assert usage == whole.usage


def test_a_streamed_echo_of_a_prompt_that_takes_several_steps(live):
    num_words = sized(800, 1500)  # of three tokens each; a step has 2,048
    fields = {"prompt": "ab " * num_words, "echo": True, "logprobs": 0, "n": 2, "seed": 1}
    whole = create(live, **fields)
    found = [[], []]
    for chunk in create(live, stream=True, **fields):
        for choice in chunk.choices:
            found[choice.index] += choice.logprobs.token_logprobs
    assert found == [choice.logprobs.token_logprobs for choice in whole.choices]
    assert all(len(logprobs) > 3 * num_words > 2048 for logprobs in found)


def test_logprobs(live):
    choice = create(live, logprobs=2).choices[0]
    lists = choice.logprobs
    assert len(lists.tokens) == len(lists.token_logprobs) == len(lists.top_logprobs) == 12
    assert lists.text_offset[0] == 0 and lists.text_offset == sorted(lists.text_offset)
    for token, logprob, top in zip(
        lists.tokens, lists.token_logprobs, lists.top_logprobs, strict=True
    ):
        assert len(top) == 2 and top[token] == logprob == max(top.values())
    assert create(live, logprobs=0).choices[0].logprobs.token_logprobs == lists.token_logprobs


def test_echo(live):
    plain = text_of(live)
    assert text_of(live, echo=True) == PROMPT + plain
    ids = live.http.post("/tokenize", json={"prompt": PROMPT}).json()["tokens"]
    assert text_of(live, prompt=ids, echo=True) == PROMPT + plain


def test_echo_alone_scores_the_prompt(live):
    whole = create(live, echo=True, logprobs=1).choices[0]
    answer = create(live, echo=True, logprobs=1, max_tokens=0)
    choice = answer.choices[0]
    assert choice.text == PROMPT and choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 0
    count = len(PROMPT)
    assert choice.logprobs.tokens == list(PROMPT)
    assert choice.logprobs.token_logprobs == whole.logprobs.token_logprobs[:count]
    assert choice.logprobs.token_logprobs[0] is None and choice.logprobs.top_logprobs[0] is None
    assert choice.logprobs.text_offset == list(range(count))


def test_empty_prompts_are_refused(live):
    for prompt in ("", [], [""], [[]]):
        body = {"prompt": prompt}
        error = live.http.post("/v1/completions", json=body).json()["error"]
        assert (error["code"], error["param"]) == (400, "prompt")


def test_ids_outside_the_vocabulary_are_refused(live):
    for name, value in (
        ("prompt", [5, 320]),
        ("stop_token_ids", [320]),
        ("allowed_token_ids", [999]),
        ("logit_bias", {"320": 1}),
    ):
        response = live.http.post("/v1/completions", json={"prompt": "a", name: value})
        assert response.status_code == 400, name
        assert response.json()["error"]["param"] == name


def test_a_refused_prompt_takes_its_fellows_along(live):
    prompts = [[1, 2, 3], [4, 320]]
    response = live.http.post("/v1/completions", json={"prompt": prompts, "max_tokens": 8000})
    assert response.status_code == 400
    live.wait_until_idle()


def test_large_settings_are_not_kept_for_a_thousand_prompts(client, engine):
    """The engine held a list of biases for each prompt: 3 MB of a body became gigabytes of it."""
    bias = dict.fromkeys(map(str, range(300)), 1.0)
    body = {"prompt": ["a", "b"] * 512, "max_tokens": 1, "logit_bias": bias}
    assert client.post("/v1/completions", json=body).status_code == 200
    assert len({id(params) for params in engine.params}) == 1, "made once for all prompts"
    more = {"logit_bias": dict.fromkeys(map(str, range(1100)), 1.0)}
    for path in ("/v1/completions", "/completion"):
        answer = client.post(path, json=body | more)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "prompt")
        assert "got 1024 with settings of 35200 bytes each. Send fewer" in answer.text
    long = body | {"logit_bias": {}, "stop": ["x" * 40_000]}
    assert client.post("/v1/completions", json=long).status_code == 400
    assert client.post("/v1/completions", json=long | {"prompt": "a"}).status_code == 200


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"echo": True, "logprobs": 20, "n": 64}, "logprobs"),
        ({"prompt_logprobs": 20, "n": 64}, "prompt_logprobs"),
        ({"logprobs": 20, "n": 128, "max_tokens": 2}, "logprobs"),
        ({"echo": True, "n": 128}, "n"),
        ({"return_token_ids": True, "n": 128}, "n"),
        ({"echo": True, "n": 128, "stream": True, "logprobs": 3000}, "logprobs"),
        ({"n": 128, "stream": True, "logprobs": 20, "max_tokens": 9}, None),
        ({"echo": True, "logprobs": 20}, None),
    ],
)
def test_an_answer_has_no_more_than_a_server_may_hold(client, engine, fields, param):
    """Prompts times sequences times log-probabilities: a body of 400 KB was an answer of 4 GB."""
    engine.text = ""
    body = {"prompt": [[70] * 60] * 1000, "max_tokens": 1, **fields}
    if param is None:
        body["prompt"] = body["prompt"][:2]
    answer = client.post("/v1/completions", json=body)
    if param is None:
        assert answer.status_code == 200, answer.text
    else:
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, param), answer.text
        assert f"[{param}] an answer may hold 4194304 log-probabilities" in error["message"]
