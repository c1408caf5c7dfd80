"""``POST /tokenize`` and ``POST /detokenize``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.core.errors import RequestError
from quire.protocol.openai.tokenization import (
    ContentTokens,
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
    TokenPiece,
)
from quire.server.access.authentication import client_of
from quire.server.generation.model_routes import post_route
from quire.server.generation.prompts.chat_prompt import pictures_of, written_out
from quire.server.generation.prompts.tokenized_prompts import Conversation, encode_prompt
from quire.server.generation.served_models import Models
from quire.server.generation.service import Service
from quire.server.http.body import Fields, json_response, read_fields_in_turn
from quire.text.offloading import run_by_size
from quire.text.tokenizers.tokenizer import Tokenizer

#: Ids that are written at a time.
_SLICE = 2**15


def routes(models: Models) -> list[Route]:
    """Return the routes."""

    async def tokenize(service: Service, request: Request, fields: Fields) -> Response:
        tokenizer, strict = service.engine.tokenizer, service.options.strict_params
        client_id = client_of(request.scope.get("api_key")).client_id
        body, headers = await read_fields_in_turn(client_id, fields, TokenizeRequest, strict)
        service.resolve_model(body.model)
        given = [body.prompt, body.messages, body.content]
        if sum(item is not None for item in given) != 1:
            raise RequestError(
                "[prompt] give either prompt or messages, or llama-server's content.", "prompt"
            )
        if body.content is not None:
            size, work = len(body.content), partial(_content_tokens, tokenizer, body, headers)
            return await run_by_size(tokenizer.work_size(size), client_id, work)
        token_ids = await _encode(service, body, client_id)

        def texts(ids: list[int]) -> list[str]:
            return [token or "" for token in tokenizer.convert_ids_to_tokens(ids)]

        def write() -> Response:
            answer = TokenizeResponse(
                count=len(token_ids),
                max_model_len=service.engine.max_model_len,
                tokens=_written(token_ids, list),
            )
            if body.return_token_strs:
                answer.token_strs = _written(token_ids, texts)
            return json_response(answer, headers)

        return await run_by_size(len(token_ids), client_id, write)

    async def detokenize(service: Service, request: Request, fields: Fields) -> Response:
        tokenizer, strict = service.engine.tokenizer, service.options.strict_params
        client_id = client_of(request.scope.get("api_key")).client_id
        body, headers = await read_fields_in_turn(client_id, fields, DetokenizeRequest, strict)
        service.resolve_model(body.model)

        def decode() -> Response:
            unknown = next((i for i in body.tokens if i >= tokenizer.vocab_size), None)
            if unknown is not None:
                raise RequestError(
                    f"[tokens] ids must be below {tokenizer.vocab_size}; got {unknown}.", "tokens"
                )
            text = tokenizer.decode(body.tokens, skip_special_tokens=False)
            return json_response(DetokenizeResponse(text, text), headers)

        return await run_by_size(len(body.tokens), client_id, decode)

    return [
        post_route(models, "/tokenize", tokenize),
        post_route(models, "/detokenize", detokenize),
    ]


def _content_tokens(
    tokenizer: Tokenizer, body: TokenizeRequest, headers: dict[str, str]
) -> Response:
    content = body.content or ""
    parts = tokenizer.special_texts.cut(content) if body.parse_special is False else [content]
    token_ids = tokenizer.encode_parts(parts, bool(body.add_special))

    def pieces(ids: list[int]) -> list[TokenPiece]:
        return [_piece(i, tokenizer.token_bytes(i)) for i in ids]

    shown = _written(token_ids, pieces if body.with_pieces else list)
    return json_response(ContentTokens(tokens=shown), headers)


def _written(token_ids: list[int], shown: Callable[[list[int]], list[Any]]) -> Any:
    """Return the JSON of what is shown of ids, slice by slice: other threads run in between."""
    slices = (token_ids[start : start + _SLICE] for start in range(0, len(token_ids), _SLICE))
    return msgspec.Raw(b"[%b]" % b",".join(msgspec.json.encode(shown(one))[1:-1] for one in slices))


def _piece(token_id: int, data: bytes) -> TokenPiece:
    try:
        return TokenPiece(id=token_id, piece=data.decode())
    except UnicodeDecodeError:
        return TokenPiece(id=token_id, piece=list(data))


async def _encode(service: Service, body: TokenizeRequest, client_id: str) -> list[int]:
    tokenizer = service.engine.tokenizer
    if body.prompt is not None:
        special = body.add_special_tokens is not False
        return await encode_prompt(tokenizer, body.prompt, special, None, client_id)
    conversation = Conversation(
        body.messages or [],
        body.add_generation_prompt,
        body.continue_final_message,
        body.chat_template_kwargs,
        body.tools,
    )
    special = bool(body.add_special_tokens)
    token_ids = await encode_prompt(tokenizer, conversation, special, None, client_id)
    return await written_out(service, token_ids, pictures_of(service, conversation.messages))
