"""The ASGI app: routes, errors, keys; every endpoint group has its own file."""

from __future__ import annotations

from typing import Any, TypeAlias

from starlette.routing import Route, Router, WebSocketRoute
from starlette.types import ASGIApp

from quire.server.access.outer_layers import with_outer_layers
from quire.server.compat import (
    anthropic,
    anthropic_models,
    llama_server,
    ollama,
    ollama_models,
    ollama_store,
    tgi,
    triton,
)
from quire.server.compat.invocations import Invocations
from quire.server.generation.endpoint import GenerationEndpoint
from quire.server.generation.model_routes import ByModel
from quire.server.generation.served_models import ManagedModels
from quire.server.http.missing_routes import MissingRoute
from quire.server.openai import adapters, openapi, responses, scoring, tokenization
from quire.server.openai import models as openai_models
from quire.server.openai.chat_completions import ChatCompletions
from quire.server.openai.completions import Completions
from quire.server.openai.embeddings import Embeddings
from quire.server.openai.pooling import Pooling
from quire.server.openai.websocket import WebSocketStream
from quire.server.operations import debug, health, prefix_cache
from quire.server.operations import model_operations as models_operations
from quire.server.playground import rendering
from quire.server.playground import routes as playground

Endpoints: TypeAlias = dict[str, type[GenerationEndpoint[Any]]]


def create_app(models: ManagedModels) -> ASGIApp:
    """Return the app that serves ``models``."""
    shared = models.shared
    page = playground.routes() if shared.options.playground else []
    texts = rendering.routes() if page else []
    invoked: Endpoints = {"messages": ChatCompletions, "prompt": Completions, "input": Embeddings}
    generations: Endpoints = {
        "/v1/chat/completions": ChatCompletions,
        "/v1/completions": Completions,
    }
    api = [
        *(Route(p, ByModel(models, kind), methods=["POST"]) for p, kind in generations.items()),
        *(
            WebSocketRoute(p, WebSocketStream(models, kind, shared.sinks))
            for p, kind in generations.items()
        ),
        Route("/v1/embeddings", ByModel(models, Embeddings), methods=["POST"]),
        Route("/pooling", ByModel(models, Pooling), methods=["POST"]),
        *scoring.routes(models),
        Route("/invocations", Invocations(models, invoked), methods=["POST"]),
        *responses.routes(models, shared.responses),
        *tgi.routes(models),
        *ollama.routes(models),
        *ollama_models.routes(models),
        *ollama_store.routes(models),
        *triton.routes(models),
        *llama_server.routes(models),
        *anthropic.routes(models),
        *anthropic_models.routes(models),
        *openai_models.routes(models),
        *adapters.routes(models),
        *tokenization.routes(models),
        *health.routes(models),
        *models_operations.routes(models),
        *debug.routes(models),
        *prefix_cache.routes(models),
    ]
    document = openapi.routes(api, bool(shared.keys))
    default = MissingRoute(api)
    app: ASGIApp = Router([*api, *document, *page, *texts], redirect_slashes=False, default=default)
    shown = {(method, route.path) for route in page for method in route.methods or ()}
    return with_outer_layers(app, shared.options, shared.keys, shown, shared.sinks)
