"""Encoders over HTTP, as clients ask: vectors, scores and classes; no text."""

from __future__ import annotations

import numpy as np
import pytest

from quire.core.errors import ConfigError
from quire.server.generation.scoring_methods import Scoring
from quire.server.server_options import ServerOptions
from quire.settings.config import EngineConfig
from tests.encoders.conftest import TEXTS
from tests.server.conftest import serve_live

QUERY = "a cat and a dog"


def served(folder, **options):
    config = EngineConfig.from_keywords(model=str(folder), served_model_name="tiny", threads=1)
    return serve_live(config, **options)


@pytest.fixture(scope="module")
def vectors(encoder):
    with served(encoder("bert").folder) as live:
        yield live


@pytest.fixture(scope="module")
def scores(encoder):
    with served(encoder("bert-score").folder) as live:
        yield live


@pytest.fixture(scope="module")
def classes(encoder):
    with served(encoder("roberta-classes").folder) as live:
        yield live


def test_openai_s_client_gets_vectors(vectors, encoder):
    data = vectors.openai.embeddings.create(model="tiny", input=TEXTS).data
    for text, item in zip(TEXTS, data, strict=True):
        np.testing.assert_allclose(item.embedding, encoder("bert").vector(text, "cls"), atol=1e-6)


def test_pooling_is_a_setting(encoder):
    oracle = encoder("xlm-roberta")
    with served(oracle.folder, pooling="mean") as live:
        data = live.openai.embeddings.create(model="tiny", input=TEXTS[0]).data
    np.testing.assert_allclose(data[0].embedding, oracle.vector(TEXTS[0], "mean"), atol=1e-6)


def test_scores_of_vectors_are_cosines(vectors, encoder):
    oracle = encoder("bert")
    answer = vectors.http.post("/rerank", json={"query": QUERY, "documents": TEXTS}).json()
    query = oracle.vector(QUERY, "cls")
    for result in answer["results"]:
        expected = float(query @ oracle.vector(TEXTS[result["index"]], "cls"))
        assert result["relevance_score"] == pytest.approx(expected, abs=1e-6)


def test_a_head_reads_both_texts(scores, encoder):
    oracle = encoder("bert-score")
    expected = [oracle.probabilities(QUERY, text)[0] for text in TEXTS]
    answer = scores.http.post("/v1/rerank", json={"query": QUERY, "documents": TEXTS}).json()
    results = answer["results"]
    assert [result["index"] for result in results] == np.argsort(-np.array(expected)).tolist()
    for result in results:
        assert result["relevance_score"] == pytest.approx(expected[result["index"]], abs=1e-6)
    answer = scores.http.post("/v1/score", json={"text_1": QUERY, "text_2": TEXTS}).json()
    assert [item["score"] for item in answer["data"]] == pytest.approx(expected, abs=1e-6)
    assert answer["usage"]["prompt_tokens"] == sum(
        len(oracle.tokenizer(QUERY, text).input_ids) for text in TEXTS
    )


def test_classes_have_their_labels(classes, encoder):
    oracle = encoder("roberta-classes")
    answer = classes.http.post("/v1/classify", json={"input": TEXTS}).json()
    for text, item in zip(TEXTS, answer["data"], strict=True):
        expected = oracle.probabilities(text)
        assert item["probs"] == pytest.approx(expected, abs=1e-6)
        assert item["label"] == ["bad", "fine", "good"][int(np.argmax(expected))]
        assert item["num_classes"] == 3
    response = classes.http.post("/score", json={"text_1": "a", "text_2": "b"})
    assert response.status_code == 400 and "got 3: bad, fine, good" in response.text


def test_pooling_gives_either(classes, vectors):
    probs = classes.http.post("/classify", json={"input": TEXTS}).json()["data"]
    pooled = classes.http.post("/pooling", json={"input": TEXTS}).json()
    assert [item["data"] for item in pooled["data"]] == [
        pytest.approx(item["probs"], abs=1e-6) for item in probs
    ]
    for live in (classes, vectors):
        body = {"input": TEXTS, "task": "embed"}
        pooled = live.http.post("/pooling", json=body).json()
        plain = live.http.post("/v1/embeddings", json={"input": TEXTS}).json()
        assert [item["data"] for item in pooled["data"]] == [
            item["embedding"] for item in plain["data"]
        ]
        assert pooled["usage"] == plain["usage"] and pooled["data"][0]["object"] == "pooling"
    response = vectors.http.post("/pooling", json={"input": "a", "task": "classify"})
    assert response.status_code == 400 and response.json()["error"]["param"] == "task"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "stream": True}),
        ("/v1/responses", {"input": "a"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 3}),
        ("/api/generate", {"prompt": "a"}),
        ("/completion", {"prompt": "a"}),
        ("/generate", {"inputs": "a"}),
    ],
)
def test_text_is_refused(vectors, path, body):
    response = vectors.http.post(path, json={"model": "tiny", **body})
    assert response.status_code in (400, 422), response.text
    assert "BertModel generates no text: it gives vectors" in response.text


def test_it_is_ready_and_listed(vectors):
    assert vectors.http.get("/health/ready").status_code == 200
    (model,) = vectors.openai.models.list().data
    assert model.id == "tiny" and model.model_extra["max_model_len"] == 172
    assert model.model_extra["capabilities"] == ["embedding"]


def test_long_texts_are_refused(vectors, scores):
    response = vectors.http.post("/v1/embeddings", json={"input": "cat " * 180})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "context_length_exceeded"
    for count in (180, 100_000):
        body = {"query": "a", "documents": ["cat " * count]}
        response = scores.http.post("/rerank", json=body)
        assert response.status_code == 400 and response.json()["error"]["param"] == "documents"


def test_normalize_is_the_checkpoint_s(vectors):
    body = {"input": "a"}
    assert vectors.http.post("/v1/embeddings", json={**body, "normalize": True}).is_success
    response = vectors.http.post("/v1/embeddings", json={**body, "normalize": False})
    assert response.status_code == 400 and response.json()["error"]["param"] == "normalize"


def test_tokens_of_an_answer_need_a_model_that_generates(vectors):
    options = ServerOptions(classifier_from_token=("no", "yes"))
    with pytest.raises(ConfigError, match="--classifier-from-token needs a model that generates"):
        Scoring.resolve(options, vectors.service.engine)


def test_word_pieces_become_text(vectors, encoder):
    """As the library's own decoder writes them, closing marks included."""
    backend = encoder("bert").tokenizer.backend_tokenizer
    generator = np.random.default_rng(0)
    for _ in range(200):
        ids = generator.integers(0, backend.get_vocab_size(), 12).tolist()
        assert vectors.service.engine.tokenizer.decode(ids) == backend.decode(ids)
        text = vectors.http.post("/detokenize", json={"tokens": ids}).json()["prompt"]
        assert text == backend.decode(ids, skip_special_tokens=False)
