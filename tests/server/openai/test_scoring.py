"""``/score``, ``/rerank`` and ``/classify`` on a real engine, against its vectors and logits."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from quire.core.errors import ConfigError
from quire.server.generation.scoring_methods import Scoring
from quire.server.server_options import ServerOptions

TEXTS = ["a cat sat", "a dog ran", "prices fell"]


def post(live, path, **body):
    return live.http.post(path, json=body)


def vectors(live, texts):
    data = post(live, "/v1/embeddings", input=texts).json()["data"]
    return [item["embedding"] for item in data]


def dot(one, other):
    return math.fsum(a * b for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize(
    "names", [("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2")]
)
def test_scores_are_cosines(live, path, names):
    first, *others = vectors(live, TEXTS)
    answer = post(live, path, **{names[0]: TEXTS[0], names[1]: TEXTS}).json()
    scores = [item["score"] for item in answer["data"]]
    assert scores == pytest.approx([1.0, *(dot(first, other) for other in others)], abs=1e-6)
    assert [item["index"] for item in answer["data"]] == [0, 1, 2]
    assert answer["id"].startswith("score-") and answer["object"] == "list"
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 0
    pairs = post(live, path, **{names[0]: TEXTS[:2], names[1]: TEXTS[1:]}).json()["data"]
    expected = [dot(first, others[0]), dot(others[0], others[1])]
    assert [item["score"] for item in pairs] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_documents_are_sorted(live, path):
    documents = [TEXTS[1], {"text": TEXTS[0]}, TEXTS[2]]
    answer = post(live, path, query=TEXTS[0], documents=documents).json()
    results = answer["results"]
    scores = [result["relevance_score"] for result in results]
    assert results[0]["index"] == 1 and scores == sorted(scores, reverse=True)
    assert scores[0] == pytest.approx(1, abs=1e-6)
    texts = [TEXTS[1], TEXTS[0], TEXTS[2]]
    assert all(result["document"]["text"] == texts[result["index"]] for result in results)
    one = post(live, path, query="x", documents=documents, top_n=1, return_documents=False).json()
    assert len(one["results"]) == 1 and "document" not in one["results"][0]


@pytest.fixture
def judging(live, monkeypatch):
    """The server as one whose model answers no or yes."""
    options = replace(live.service.options, classifier_from_token=("n", "y"))
    monkeypatch.setattr(live.service, "scoring", Scoring.resolve(options, live.service.engine))
    return live


def expected_probability(live, prompt):
    """The second class's probability, from the whole vocabulary's log-probabilities."""
    ids = {text: live.service.engine.tokenizer.encode(text, False)[0] for text in "ny"}
    found = {}
    for text, token_id in ids.items():
        answer = post(
            live, "/v1/completions", prompt=prompt, max_tokens=1, logprobs=0,
            allowed_token_ids=[token_id], ignore_eos=True,
        ).json()  # fmt: skip
        (found[text],) = answer["choices"][0]["logprobs"]["token_logprobs"]
    return 1 / (1 + math.exp(found["n"] - found["y"]))


def test_a_token_s_probability(judging):
    data = post(judging, "/score", text_1="a cat: ", text_2=TEXTS).json()["data"]
    expected = [expected_probability(judging, f"a cat: {text}") for text in TEXTS]
    assert [item["score"] for item in data] == pytest.approx(expected, abs=1e-6)
    assert len(set(expected)) == 3
    results = post(judging, "/rerank", query="a cat: ", documents=TEXTS).json()["results"]
    found = {result["index"]: result["relevance_score"] for result in results}
    assert [found[index] for index in range(3)] == [item["score"] for item in data]


def test_a_query_is_not_repeated_for_a_thousand_documents_without_bound(judging):
    """One of 4 MiB was joined with each of 1,024 on the event loop: 4 GiB."""
    answer = post(judging, "/rerank", query="x" * 70_000, documents=["y"] * 1000)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "documents"
    assert "all pairs together may have 67108864 characters" in answer.text


def test_classes(judging):
    answer = post(judging, "/classify", input=TEXTS).json()
    for text, item in zip(TEXTS, answer["data"], strict=True):
        yes = expected_probability(judging, text)
        assert item["probs"] == pytest.approx([1 - yes, yes], abs=1e-6)
        assert item["label"] == ("y" if yes > 0.5 else "n") and item["num_classes"] == 2
    alone = post(judging, "/classify", input=TEXTS[0]).json()["data"]
    assert alone == answer["data"][:1]


def test_a_template_of_pairs(live, monkeypatch, tmp_path):
    path = tmp_path / "score.jinja"
    path.write_text("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}?")
    options = replace(
        live.service.options, classifier_from_token=("n", "y"), score_template=str(path)
    )
    scoring = Scoring.resolve(options, live.service.engine)
    monkeypatch.setattr(live.service, "scoring", scoring)
    (item,) = post(live, "/score", text_1="q", text_2="d").json()["data"]
    expected = expected_probability(live, "<query>q<document>d?")
    assert item["score"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/score", {"text_1": "a"}, "text_2"),
        ("/score", {"text_1": "a", "queries": "b", "text_2": "c"}, "text_1"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["c"]}, "text_2"),
        ("/score", {"text_1": [], "text_2": []}, "text_2"),
        ("/rerank", {"query": "a", "documents": []}, "documents"),
        ("/rerank", {"query": "a", "documents": [{"title": "b"}]}, "documents[0]"),
        ("/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, "top_n"),
        ("/rerank", {"query": "a", "documents": ["b"], "max_chunks_per_doc": 1},
         "max_chunks_per_doc"),
        ("/rerank", {"query": "a", "documents": ["x" * 100_000]}, "documents"),
        ("/classify", {"input": "a"}, "model"),
    ],
)  # fmt: skip
def test_bad_requests(live, path, body, param):
    response = post(live, path, **body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"classifier_from_token": ("n",)}, "two or more"),
        ({"classifier_from_token": ("n", "n")}, "two or more"),
        ({"classifier_from_token": ("n", "")}, "one token"),
        ({"score_template": "/nowhere/x.jinja"}, "Jinja file"),
    ],
)
def test_bad_settings(live, settings, text):
    with pytest.raises(ConfigError, match=text):
        Scoring.resolve(ServerOptions(**settings), live.service.engine)


def test_a_score_needs_two_classes(judging, monkeypatch):
    options = ServerOptions(classifier_from_token=("n", "y", "x"))
    scoring = Scoring.resolve(options, judging.service.engine)
    monkeypatch.setattr(judging.service, "scoring", scoring)
    response = post(judging, "/score", text_1="a", text_2="b")
    assert response.status_code == 400 and response.json()["error"]["param"] == "model"
    assert len(post(judging, "/classify", input="a").json()["data"][0]["probs"]) == 3
