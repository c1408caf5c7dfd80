"""``/score``, ``/rerank`` and ``/classify``: by a head, a token's probability or vectors."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from starlette.routing import Route

from quire.core.errors import RequestError
from quire.core.outputs import RequestOutput
from quire.llm.outputs.pooling_outputs import cosine
from quire.protocol.openai.scoring import (
    Classification,
    ClassifyRequest,
    ClassifyResponse,
    RankedDocument,
    RankedResult,
    RerankRequest,
    RerankResponse,
    Score,
    ScoreRequest,
    ScoreResponse,
)
from quire.server.generation.endpoint import GenerationEndpoint
from quire.server.generation.model_routes import ByModel
from quire.server.generation.prompts.tokenized_prompts import (
    MARK_CHARACTERS,
    PromptLimit,
    encode_pairs,
    encode_texts,
)
from quire.server.generation.scoring_methods import Scoring
from quire.server.generation.served_models import ManagedModels
from quire.server.generation.service import Service
from quire.server.generation.submission import ApiRequest, Submission
from quire.server.openai.embeddings import PooledAnswer, prompt_usage
from quire.text.offloading import run_by_size, run_template

#: Of all pairs: a query stands in the prompt of each of a thousand documents.
MAX_PAIR_CHARACTERS = 2**26
PATHS = {
    "score": ("/score", "/v1/score"),
    "rerank": ("/rerank", "/v1/rerank", "/v2/rerank"),
    "classify": ("/classify", "/v1/classify"),
}


class Scores(GenerationEndpoint[ScoreRequest]):
    """The ASGI app of ``/score``."""

    kind = ScoreRequest
    id_prefix = "score"

    async def prepare(self, request: ApiRequest[ScoreRequest]) -> tuple[PooledAnswer, Submission]:
        pairs = request.body.pairs()
        submission, read = await _scored(self.service, request, pairs, "text_2")

        def write(outputs: list[RequestOutput]) -> ScoreResponse:
            return ScoreResponse(
                id=request.response_id,
                created=int(time.time()),
                model=request.model,
                data=[Score(index=i, score=score) for i, score in enumerate(read(outputs))],
                usage=prompt_usage(outputs),
            )

        return PooledAnswer(write), submission


class Reranking(GenerationEndpoint[RerankRequest]):
    """The ASGI app of ``/rerank``."""

    kind = RerankRequest
    id_prefix = "rerank"

    async def prepare(self, request: ApiRequest[RerankRequest]) -> tuple[PooledAnswer, Submission]:
        body = request.body
        texts = body.texts()
        pairs = [(body.query, text) for text in texts]
        submission, read = await _scored(self.service, request, pairs, "documents")

        def write(outputs: list[RequestOutput]) -> RerankResponse:
            results = [
                RankedResult(index=index, relevance_score=score)
                for index, score in enumerate(read(outputs))
            ]
            results.sort(key=lambda result: -result.relevance_score)
            results = results[: body.top_n or None]
            if body.return_documents is not False:
                for result in results:
                    result.document = RankedDocument(text=texts[result.index])
            return RerankResponse(
                id=request.response_id,
                model=request.model,
                results=results,
                usage=prompt_usage(outputs),
            )

        return PooledAnswer(write), submission


class Classifications(GenerationEndpoint[ClassifyRequest]):
    """The ASGI app of ``/classify``."""

    kind = ClassifyRequest
    id_prefix = "classify"

    async def prepare(
        self, request: ApiRequest[ClassifyRequest]
    ) -> tuple[PooledAnswer, Submission]:
        scoring = self.service.scoring
        if not scoring.labels:
            raise RequestError(
                "[model] this model has no head of classes. Start the server with "
                "--classifier-from-token for each of them.",
                "model",
            )
        texts = request.body.texts()
        prompts = await _encoded(self.service, request, texts, "input")
        submission = Submission.create(request, "input", [(p, scoring.params()) for p in prompts])

        def write(outputs: list[RequestOutput]) -> ClassifyResponse:
            found = [scoring.probabilities(output) for output in outputs]
            return ClassifyResponse(
                id=request.response_id,
                created=int(time.time()),
                model=request.model,
                data=[
                    Classification(
                        index=index,
                        label=scoring.labels[probs.index(max(probs))],
                        probs=probs,
                        num_classes=len(probs),
                    )
                    for index, probs in enumerate(found)
                ],
                usage=prompt_usage(outputs),
            )

        return PooledAnswer(write), submission


async def _scored(
    service: Service,
    request: ApiRequest[ScoreRequest] | ApiRequest[RerankRequest],
    pairs: Sequence[tuple[str, str]],
    param: str,
) -> tuple[Submission, Callable[[list[RequestOutput]], list[float]]]:
    """Return what the engine is asked to score pairs, and how its outputs become scores."""
    scoring, body = service.scoring, request.body
    scoring.check_pairs()
    if body.instruction is not None and scoring.template is None:
        raise RequestError(
            "[instruction] needs a server with --score-template, which says where it goes.",
            "instruction",
        )
    size = sum(len(text) + MARK_CHARACTERS for pair in pairs for text in pair)
    if size > MAX_PAIR_CHARACTERS and (scoring.labels or scoring.classifier is not None):
        raise RequestError(
            f"[{param}] all pairs together may have {MAX_PAIR_CHARACTERS} characters; got {size}. "
            "Send shorter texts, or fewer at a time.",
            param,
        )
    if scoring.classifier is not None and scoring.template is None:
        limit = PromptLimit(service.engine.max_model_len, param)
        client_id = request.client.client_id
        read = await encode_pairs(service.engine.tokenizer, pairs, limit, client_id)
        asked = [(token_ids, scoring.params()) for token_ids, _ in read]
        submission = Submission.create(request, param, asked)
        submission = submission.with_second_texts([start for _, start in read])
        return submission, lambda outputs: [scoring.probabilities(one)[0] for one in outputs]
    if scoring.labels:
        texts = await _prompts(scoring, request, pairs, size)
        special = False if scoring.template is not None else body.add_special_tokens
        prompts = await _encoded(service, request, texts, param, special)
        submission = Submission.create(request, param, [(p, scoring.params()) for p in prompts])
        return submission, lambda outputs: [scoring.probabilities(one)[-1] for one in outputs]
    # A text that several pairs have is computed once.
    places: dict[str, int] = {}
    for pair in pairs:
        for text in pair:
            places.setdefault(text, len(places))
    prompts = await _encoded(service, request, list(places), param)
    params = service.vector_params

    def cosines(outputs: list[RequestOutput]) -> list[float]:
        vectors = [output.embedding or b"" for output in outputs]
        return [cosine(*(vectors[places[text]] for text in pair)) for pair in pairs]

    return Submission.create(request, param, [(prompt, params) for prompt in prompts]), cosines


async def _prompts(
    scoring: Scoring,
    request: ApiRequest[ScoreRequest] | ApiRequest[RerankRequest],
    pairs: Sequence[tuple[str, str]],
    size: int,
) -> Sequence[str | list[str]]:
    """Return the prompts of pairs of ``size`` characters, whole or in parts."""
    instruction, client_id = request.body.instruction, request.client.client_id

    def render() -> list[str | list[str]]:
        return [scoring.prompt(*pair, instruction) for pair in pairs]

    run = run_by_size if scoring.template is None else run_template
    return await run(size, client_id, render)


async def _encoded(
    service: Service,
    request: ApiRequest[Any],
    texts: Sequence[str | list[str]],
    param: str,
    special: bool | None = None,
) -> list[list[int]]:
    limit = PromptLimit(service.engine.max_model_len, param)
    body, client_id = request.body, request.client.client_id
    add = (body.add_special_tokens if special is None else special) is not False
    return await encode_texts(service.engine.tokenizer, texts, add, limit, client_id)


def routes(models: ManagedModels) -> list[Route]:
    """Return the routes."""
    kinds: dict[str, type[GenerationEndpoint[Any]]] = {
        "score": Scores,
        "rerank": Reranking,
        "classify": Classifications,
    }
    return [
        Route(path, ByModel(models, kinds[name]), methods=["POST"])
        for name, paths in PATHS.items()
        for path in paths
    ]
