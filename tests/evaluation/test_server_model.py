"""A server as what is judged: what it is asked, and answers that cannot be used."""

import numpy as np
import pytest

from quire.core.errors import QuireError
from quire.evaluation.server_model import ServerEncoder, ServerModel
from quire.evaluation.windows import Window

WINDOWS = [Window(np.arange(n, dtype=np.int32), first) for n, first in ((4, 1), (3, 2), (5, 1))]


class Server:
    """Answers as OpenAI's route does; the log-probability of token i is -i."""

    def __init__(self, change=lambda answer: answer):
        self.bodies = []
        self._change = change

    def post(self, path, body):
        assert path == "/v1/completions"
        self.bodies.append(body)
        choices = [
            {"index": index, "text": "", "logprobs": {
                "token_logprobs": [None, *(-float(token) for token in prompt[1:]), -0.5]
            }}
            for index, prompt in enumerate(body["prompt"])
        ]  # fmt: skip
        return self._change({"choices": choices[::-1]})


def test_losses_are_those_of_the_echoed_prompts():
    server, counts = Server(), []
    found = list(ServerModel(server.post, "m").losses(WINDOWS, counts.append))
    assert [part.tolist() for part in found] == [[1, 2, 3], [2], [1, 2, 3, 4]]
    assert counts == [4, 3, 5]
    (body,) = server.bodies
    assert (body["model"], body["echo"], body["logprobs"]) == ("m", True, 1)


def test_requests_hold_a_bounded_number_of_tokens_and_prompts(monkeypatch):
    monkeypatch.setattr("quire.evaluation.server_model.REQUEST_TOKENS", 7)
    server = Server()
    found = list(ServerModel(server.post, "m").losses([*WINDOWS, WINDOWS[2]], lambda n: None))
    assert [len(body["prompt"]) for body in server.bodies] == [2, 1, 1]
    assert len(found) == 4


def set_logprobs(value):
    def change(answer):
        answer["choices"][0]["logprobs"] = value
        return answer

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda answer: [],
        lambda answer: None,
        lambda answer: {"choices": answer["choices"][1:]},
        lambda answer: {"choices": [*answer["choices"][1:], {}]},
        lambda answer: {"choices": 3 * answer["choices"][:1]},
        lambda answer: {"choices": "abc"},
        set_logprobs(None),
        set_logprobs({}),
        set_logprobs({"token_logprobs": None}),
        set_logprobs({"token_logprobs": [-0.5]}),  # only of the new token: no echo
        set_logprobs({"token_logprobs": [None, -1, None, -1, -1, -1]}),
        set_logprobs({"token_logprobs": [None, -1, "x", -1, -1, -1]}),
        set_logprobs({"token_logprobs": [None, -1, float("nan"), -1, -1, -1]}),
    ],
)
def test_answers_that_cannot_be_used_are_refused(change):
    with pytest.raises(QuireError, match=r"\[eval\] the server must"):
        list(ServerModel(Server(change).post, "m").losses(WINDOWS, lambda n: None))


def test_the_server_s_tokenizer_is_asked():
    asked = []

    def post(path, body):
        asked.append((path, body))
        return {"tokens": [5, 6], "max_model_len": 64, "count": 2}

    encoder = ServerEncoder(post, "m")
    assert encoder.max_tokens is None
    assert encoder.encode("hi", True) == encoder.encode_after("hi") == [5, 6]
    assert encoder.encode_chat([{"role": "user", "content": "hi"}], True) == [5, 6]
    assert encoder.max_tokens == 63  # one token is made
    assert asked[0] == ("/tokenize", {"model": "m", "prompt": "hi", "add_special_tokens": True})
    assert asked[2][1]["add_generation_prompt"] is True


@pytest.mark.parametrize("answer", [{}, [], None, {"tokens": ["a"]}, {"tokens": 3}])
def test_a_server_without_a_tokenizer_needs_one_here(answer):
    with pytest.raises(QuireError, match="Give --tokenizer"):
        ServerEncoder(lambda path, body: answer, "m").encode("hi", True)
