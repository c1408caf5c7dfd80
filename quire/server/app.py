"""The ASGI app: routes, errors, keys; every endpoint group has its own file."""

from __future__ import annotations

from starlette.routing import Route, Router, WebSocketRoute
from starlette.types import ASGIApp

from quire.server.access.outer_layers import with_outer_layers
from quire.server.compat import llama_server, ollama, ollama_models, tgi, triton
from quire.server.compat.invocations import Invocations
from quire.server.generation.service import Service
from quire.server.openai import models, openapi, responses, tokenization
from quire.server.openai.chat_completions import ChatCompletions
from quire.server.openai.completions import Completions
from quire.server.openai.embeddings import Embeddings
from quire.server.openai.websocket import WebSocketStream
from quire.server.operations import debug, health, prefix_cache
from quire.server.playground import rendering
from quire.server.playground import routes as playground


def create_app(service: Service) -> ASGIApp:
    """Return the app that serves ``service``."""
    chat, completions = ChatCompletions(service), Completions(service)
    embeddings = Embeddings(service)
    page = playground.routes() if service.options.playground else []
    texts = rendering.routes() if page else []
    api = [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
        WebSocketRoute("/v1/chat/completions", WebSocketStream(chat)),
        WebSocketRoute("/v1/completions", WebSocketStream(completions)),
        Route("/v1/embeddings", embeddings, methods=["POST"]),
        Route(
            "/invocations",
            Invocations({"messages": chat, "prompt": completions, "input": embeddings}),
            methods=["POST"],
        ),
        *responses.routes(service),
        *tgi.routes(service),
        *ollama.routes(service, embeddings),
        *ollama_models.routes(service),
        *triton.routes(service),
        *llama_server.routes(service),
        *models.routes(service),
        *tokenization.routes(service),
        *health.routes(service),
        *debug.routes(service),
        *prefix_cache.routes(service),
    ]
    document = openapi.routes(api, bool(service.keys))
    app: ASGIApp = Router([*api, *document, *page, *texts], redirect_slashes=False)
    shown = {(method, route.path) for route in page for method in route.methods or ()}
    return with_outer_layers(app, service.options, service.keys, shown, service.sinks)
