"""``use_beam_search`` on a real engine over HTTP."""

from __future__ import annotations

import pytest

PROMPT = "Once upon a time"


def ask(live, **fields):
    body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 6, "ignore_eos": True}
    return live.http.post("/v1/completions", json=body | fields)


def texts(response):
    assert response.status_code == 200, response.text
    return [choice["text"] for choice in response.json()["choices"]]


def literal(live, width, num_tokens):
    """Search with one request for each sequence and step."""
    ids = live.http.post("/tokenize", json={"prompt": PROMPT}).json()["tokens"]
    beams = [(0.0, [])]
    for _ in range(num_tokens):
        longer = []
        for total, tokens in beams:
            answer = ask(
                live, prompt=[*ids, *tokens], max_tokens=1, temperature=0, logprobs=2 * width,
                return_tokens_as_token_ids=True,
            ).json()  # fmt: skip
            (found,) = answer["choices"][0]["logprobs"]["top_logprobs"]
            longer += [
                (total + logprob, [*tokens, int(name.removeprefix("token_id:"))])
                for name, logprob in found.items()
            ]
        beams = sorted(longer, key=lambda beam: -beam[0])[:width]
    return [tokens for _, tokens in beams]


def test_beams_are_the_choices(live):
    response = ask(live, use_beam_search=True, n=3, max_tokens=4, return_token_ids=True)
    choices = response.json()["choices"]
    assert [choice["index"] for choice in choices] == [0, 1, 2]
    assert [choice["token_ids"] for choice in choices] == literal(live, 3, 4)
    assert {choice["finish_reason"] for choice in choices} == {"length"}
    usage = response.json()["usage"]
    assert usage["completion_tokens"] == 12
    live.wait_until_idle()


def test_one_beam_is_greedy(live):
    assert texts(ask(live, use_beam_search=True)) == texts(ask(live, temperature=0))
    neutral = {"temperature": 0, "top_p": 1, "stream": False, "length_penalty": 1.5}
    assert texts(ask(live, use_beam_search=True, **neutral)) == texts(ask(live, temperature=0))


def test_many_prompts_and_chat(live):
    prompts = ["One", "Two and more"]
    both = texts(ask(live, prompt=prompts, use_beam_search=True, n=2))
    alone = [texts(ask(live, prompt=prompt, use_beam_search=True, n=2)) for prompt in prompts]
    assert both == [*alone[0], *alone[1]]


@pytest.mark.parametrize("num_top", [0, 2, 9])
def test_log_probabilities(live, num_top):
    """Those of the tokens themselves; more alternatives than the search looks at change nothing."""
    searched = {"use_beam_search": True, "n": 3, "return_token_ids": True}
    plain = ask(live, **searched).json()["choices"]
    for choice, other in zip(
        ask(live, logprobs=num_top, return_tokens_as_token_ids=True, **searched).json()["choices"],
        plain,
        strict=True,
    ):
        ids = choice["token_ids"]
        assert ids == other["token_ids"]
        found = choice["logprobs"]
        names = [f"token_id:{token_id}" for token_id in ids]
        assert found["tokens"] == names
        again = live.http.post(
            "/v1/completions",
            json={"model": "tiny", "prompt": PROMPT, "max_tokens": 1, "logprobs": num_top,
                  "allowed_token_ids": ids[:1], "return_tokens_as_token_ids": True},
        ).json()["choices"][0]["logprobs"]  # fmt: skip
        assert found["token_logprobs"][0] == pytest.approx(again["token_logprobs"][0], abs=1e-6)
        assert found["top_logprobs"][0] == pytest.approx(again["top_logprobs"][0], abs=1e-6)
        assert all(
            name in top and len(top) in (max(num_top, 1), num_top + 1)
            for name, top in zip(names, found["top_logprobs"], strict=True)
        )


def test_log_probabilities_of_a_chat(live):
    answer = live.http.post(
        "/v1/chat/completions",
        json={"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 3,
              "use_beam_search": True, "logprobs": True, "top_logprobs": 2, "ignore_eos": True},
    ).json()["choices"][0]  # fmt: skip
    assert len(answer["logprobs"]["content"]) == 3
    for token in answer["logprobs"]["content"]:
        assert len(token["top_logprobs"]) == 2 and token["token"]


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"stream": True}, "stream"),
        ({"temperature": 0.5}, "temperature"),
        ({"stop": "x"}, "stop"),
        ({"min_p": 0.1}, "min_p"),
        ({"guided_regex": "a+", "ignore_eos": False}, "guided_regex"),
        ({"length_penalty": 11}, "length_penalty"),
        ({"n": 64}, "n"),
        ({"use_beam_search": False, "length_penalty": 2}, "length_penalty"),
    ],
)
def test_what_does_not_go_together(live, fields, name):
    response = ask(live, **{"use_beam_search": True} | fields)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == name


def test_a_client_that_leaves_frees_all_blocks(live):
    with pytest.raises(Exception, match="timed out"):
        live.http.post(
            "/v1/completions",
            json={"model": "tiny", "prompt": PROMPT, "use_beam_search": True, "n": 4,
                  "max_tokens": 400, "ignore_eos": True},
            timeout=0.3,
        )  # fmt: skip
    live.wait_until_idle()
    live._wait(lambda: live.metric("quire:kv_cache_usage_perc") == 0)


def test_many_prompts_may_not_have_beams_without_end(client, engine):
    """A thousand prompts of ten beams kept a neighbour's stream waiting for two seconds."""
    body = {"use_beam_search": True, "n": 10, "max_tokens": 2, "prompt": ["a"] * 52}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == "n" and "may have 512 beams; got 520" in error["message"]
    assert engine.params == []
