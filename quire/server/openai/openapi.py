"""``GET /openapi.json``: every route, made from the structs that requests are decoded into."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

import quire
from quire.protocol.anthropic.anthropic import (
    AnthropicMessage,
    AnthropicPrompt,
    AnthropicRequest,
    TokenCount,
)
from quire.protocol.llama_server import InfillRequest, LlamaRequest
from quire.protocol.ollama.ollama import (
    OllamaAnswer,
    OllamaChatRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaShowRequest,
)
from quire.protocol.openai.chat_completion import ChatCompletion, ChatCompletionRequest
from quire.protocol.openai.completion import Completion, CompletionRequest
from quire.protocol.openai.embedding import EmbeddingRequest, EmbeddingResponse
from quire.protocol.openai.model_list import ModelCard, ModelList
from quire.protocol.openai.pooling import PoolingRequest, PoolingResponse
from quire.protocol.openai.responses import ResponsesRequest
from quire.protocol.openai.scoring import (
    ClassifyRequest,
    ClassifyResponse,
    RerankRequest,
    RerankResponse,
    ScoreRequest,
    ScoreResponse,
)
from quire.protocol.openai.tokenization import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from quire.protocol.tgi import TgiAnswer, TgiRequest
from quire.protocol.triton.triton import TritonAnswer, TritonRequest
from quire.protocol.triton.triton_tensors import InferRequest
from quire.server.access.authentication import OPEN_PATHS, scope_of
from quire.server.http.http_errors import error_form_of_path

PATH = "/openapi.json"
_REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_TEXT = "text/plain"
_JSON = "application/json"
_EVENTS = "text/event-stream"
_LINES = "application/x-ndjson"
_BYTES = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Operation:
    """The request and the answer of one route.

    Attributes:
        summary: A line of text.
        request: Struct of the body, None without one.
        answer: Type of the answer, or None for an object that is not described further.
        or_with: A field; the answer may also be an object with this field alone.
        media: Content types of the answer; none for an empty one.
    """

    summary: str
    request: type[msgspec.Struct] | None = None
    answer: Any = None
    media: tuple[str, ...] = (_JSON,)
    or_with: str | None = None


class AnyRequest(msgspec.Struct, kw_only=True):
    """The body of one of three routes; the one field that it has of these says which."""

    messages: Any = msgspec.UNSET
    prompt: Any = msgspec.UNSET
    input: Any = msgspec.UNSET


def _of_triton() -> dict[tuple[str, str], Operation]:
    """Return Triton's routes, each with and without the model's version."""
    found = {("GET", "/v2"): Operation("The server, in Triton's shape.")}
    for state in ("live", "ready"):
        found["GET", f"/v2/health/{state}"] = Operation(f"As /health/{state}.", media=())
    for model in ("/v2/models/{model:path}", "/v2/models/{model:path}/versions/1"):
        found |= {
            ("GET", model): Operation("What a model takes and gives, in Triton's shape."),
            ("GET", f"{model}/config"): Operation("The same as a configuration."),
            ("GET", f"{model}/ready"): Operation("Whether requests are served.", media=()),
            ("POST", f"{model}/generate"): Operation(
                "Continue a text, in Triton's shape.", TritonRequest, TritonAnswer
            ),
            ("POST", f"{model}/generate_stream"): Operation(
                "The same, streamed.", TritonRequest, media=(_EVENTS,)
            ),
            ("POST", f"{model}/infer"): Operation(
                "Continue texts, as tensors.", InferRequest, media=(_JSON, _BYTES)
            ),
        }
    return found


OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/chat/completions"): Operation(
        "Answer a conversation.", ChatCompletionRequest, ChatCompletion, (_JSON, _EVENTS)
    ),
    ("POST", "/v1/completions"): Operation(
        "Continue texts.", CompletionRequest, Completion, (_JSON, _EVENTS)
    ),
    ("POST", "/v1/embeddings"): Operation("Texts to vectors.", EmbeddingRequest, EmbeddingResponse),
    ("POST", "/pooling"): Operation(
        "Texts to vectors, or to probabilities of classes.", PoolingRequest, PoolingResponse
    ),
    **{
        ("POST", path): Operation("How alike texts are.", ScoreRequest, ScoreResponse)
        for path in ("/score", "/v1/score")
    },
    **{
        ("POST", path): Operation("Sort texts by a query.", RerankRequest, RerankResponse)
        for path in ("/rerank", "/v1/rerank", "/v2/rerank")
    },
    **{
        ("POST", path): Operation("The classes of texts.", ClassifyRequest, ClassifyResponse)
        for path in ("/classify", "/v1/classify")
    },
    ("POST", "/invocations"): Operation(
        "A chat completion, completion or embedding, by the body's field.",
        media=(_JSON, _EVENTS),
        request=AnyRequest,
    ),
    ("POST", "/v1/responses"): Operation(
        "Answer in OpenAI's newer form.", ResponsesRequest, None, (_JSON, _EVENTS)
    ),
    ("GET", "/v1/responses/{id}"): Operation("A stored response."),
    ("DELETE", "/v1/responses/{id}"): Operation("Forget a stored response."),
    ("POST", "/v1/responses/{id}/cancel"): Operation("End a response under way."),
    ("POST", "/v1/messages"): Operation(
        "Answer a conversation, in Anthropic's shape.",
        AnthropicRequest,
        AnthropicMessage,
        (_JSON, _EVENTS),
    ),
    ("POST", "/v1/messages/count_tokens"): Operation(
        "Count the tokens of a conversation, in Anthropic's shape.", AnthropicPrompt, TokenCount
    ),
    ("POST", "/generate"): Operation("Continue a text, in TGI's shape.", TgiRequest, TgiAnswer),
    ("POST", "/generate_stream"): Operation("The same, streamed.", TgiRequest, media=(_EVENTS,)),
    ("POST", "/"): Operation(
        "As /generate, in a list, or streamed.", TgiRequest, list[TgiAnswer], (_JSON, _EVENTS)
    ),
    ("GET", "/info"): Operation("What is served, in TGI's shape."),
    ("POST", "/api/generate"): Operation(
        "Answer a text, in Ollama's shape.", OllamaGenerateRequest, OllamaAnswer, (_JSON, _LINES)
    ),
    ("POST", "/api/chat"): Operation(
        "Answer a conversation, in Ollama's shape.",
        OllamaChatRequest,
        OllamaAnswer,
        (_JSON, _LINES),
    ),
    ("POST", "/api/embed"): Operation("Texts to vectors, in Ollama's shape.", OllamaEmbedRequest),
    ("POST", "/api/embeddings"): Operation(
        "A text to its vector, in Ollama's older shape.", OllamaEmbedRequest
    ),
    ("POST", "/api/show"): Operation("Describe a model, in Ollama's shape.", OllamaShowRequest),
    ("GET", "/api/ps"): Operation("List the loaded models, in Ollama's shape."),
    ("GET", "/api/tags"): Operation("List the served models, in Ollama's shape."),
    ("GET", "/api/version"): Operation("The server's version, in Ollama's shape."),
    **_of_triton(),
    **{
        ("POST", path): Operation(
            "Continue texts, in llama-server's shape.", LlamaRequest, None, (_JSON, _EVENTS)
        )
        for path in ("/completion", "/completions")
    },
    ("POST", "/infill"): Operation(
        "Fill in the middle of a text, in llama-server's shape.",
        InfillRequest,
        None,
        (_JSON, _EVENTS),
    ),
    ("POST", "/apply-template"): Operation(
        "The prompt of a conversation, as text, in llama-server's shape.", ChatCompletionRequest
    ),
    ("POST", "/props"): Operation("Refused: properties are settings of the start."),
    ("POST", "/slots/{slot}"): Operation("Refused: no request has a slot of its own."),
    ("GET", "/props"): Operation("What is served, in llama-server's shape."),
    ("GET", "/slots"): Operation(
        "Slots of running requests, in llama-server's shape.", None, list[dict[str, Any]]
    ),
    ("GET", "/load"): Operation("How many requests are under way."),
    ("GET", "/v1/models"): Operation("List the served models.", None, ModelList),
    ("GET", "/v1/models/{model:path}"): Operation("Describe a model.", None, ModelCard),
    ("POST", "/tokenize"): Operation(
        "Text to token ids.", TokenizeRequest, TokenizeResponse, or_with="tokens"
    ),
    ("POST", "/detokenize"): Operation("Token ids to text.", DetokenizeRequest, DetokenizeResponse),
    ("GET", "/health"): Operation("Whether the engine takes requests.", media=()),
    ("GET", "/health/live"): Operation("Whether the server answers.", media=()),
    ("GET", "/health/ready"): Operation("Whether requests are served.", media=()),
    ("GET", "/health/progress"): Operation("How the engine gets on."),
    ("GET", "/ping"): Operation("As /health.", media=()),
    ("POST", "/ping"): Operation("As /health.", media=()),
    ("GET", "/version"): Operation("The server's version."),
    ("GET", "/metrics"): Operation("Prometheus' text format.", media=(_TEXT,)),
    ("POST", "/reset_prefix_cache"): Operation("Forget all cached prefixes.", media=()),
    ("GET", "/v1/responses/{id}/input_items"): Operation("What a stored response answers."),
    ("GET", "/debug/kv_cache"): Operation("The block pool, for people.", media=(_TEXT,)),
    ("GET", PATH): Operation("This document."),
}


def create_document(routes: Iterable[BaseRoute], with_keys: bool) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of HTTP routes; pages are left out."""
    schemas: dict[str, Any] = {}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if isinstance(route, Route) and not _is_page(route):
            methods = sorted((route.methods or {"POST"}) - {"HEAD"})
            item = paths.setdefault(_PARAMETER.sub(r"{\1}", route.path), {})
            for method in methods:
                operation = OPERATIONS.get((method, route.path), Operation(route.name))
                item[method.lower()] = _operation(route.path, operation, with_keys, schemas)
    security = {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Quire", "version": quire.__version__},
        "paths": paths,
        "components": {"schemas": schemas, **(security if with_keys else {})},
    }


def _is_page(route: Route) -> bool:
    shown = route.path == "/" and "GET" in (route.methods or ())
    return shown or route.path.startswith("/playground")


def _operation(
    path: str, operation: Operation, with_keys: bool, schemas: dict[str, Any]
) -> dict[str, Any]:
    kind = error_form_of_path(path).value
    error = {"description": "What is wrong.", "content": _content(kind, schemas)}
    answer: dict[str, Any] = {"description": operation.summary}
    if operation.media:
        content: dict[str, Any] = {media: {"schema": {}} for media in operation.media}
        if _JSON in content:
            content |= _content(operation.answer, schemas)
        if operation.or_with is not None:
            other = {"type": "object", "required": [operation.or_with]}
            content[_JSON] = {"schema": {"anyOf": [content[_JSON]["schema"], other]}}
        answer["content"] = content
    described: dict[str, Any] = {
        "summary": operation.summary,
        "responses": {"200": answer, "default": error},
    }
    if operation.request is not None:
        described["requestBody"] = {
            "required": True,
            "content": _content(operation.request, schemas),
        }
    names = _PARAMETER.findall(path)
    if names:
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    if with_keys and path not in OPEN_PATHS:
        described["security"] = [{"key": []}]
        described["description"] = f"Needs a key with the scope `{scope_of(path)}`."
    return described


def _content(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    if kind is None:
        return {_JSON: {"schema": {"type": "object"}}}
    (schema,), found = msgspec.json.schema_components([kind], ref_template=_REF)
    schemas.update(found)
    return {_JSON: {"schema": schema}}


def routes(others: Iterable[BaseRoute], with_keys: bool) -> list[Route]:
    """Return the route that serves the document of ``others`` and itself."""

    async def document(request: Request) -> Response:
        return Response(encoded(), media_type=_JSON)

    @functools.cache
    def encoded() -> bytes:
        return msgspec.json.encode(create_document([*others, own], with_keys))

    own = Route(PATH, document, methods=["GET"])
    return [own]
