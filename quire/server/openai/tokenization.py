"""``POST /tokenize`` and ``POST /detokenize``."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from quire.core.errors import RequestError
from quire.protocol.tokenization import (
    ContentTokens,
    DetokenizeRequest,
    DetokenizeResponse,
    Piece,
    TokenizeRequest,
    TokenizeResponse,
)
from quire.server.generation.chat_prompt import pictures_of, written_out
from quire.server.generation.model_routes import post_route
from quire.server.generation.models import Models
from quire.server.generation.prompts import Conversation, encode_prompt
from quire.server.generation.service import Service
from quire.server.http.body import Fields, json_response, read_fields


def routes(models: Models) -> list[Route]:
    """Return the routes."""

    async def tokenize(service: Service, request: Request, fields: Fields) -> Response:
        tokenizer, strict = service.engine.tokenizer, service.options.strict_params
        body, headers = read_fields(fields, TokenizeRequest, strict)
        service.resolve_model(body.model)
        given = [body.prompt, body.messages, body.content]
        if sum(item is not None for item in given) != 1:
            raise RequestError(
                "[prompt] give either prompt or messages, or llama-server's content.", "prompt"
            )
        if body.content is not None:
            return json_response(await _content_tokens(service, body), headers)
        token_ids = await _encode(service, body)
        answer = TokenizeResponse(
            count=len(token_ids), max_model_len=service.engine.max_model_len, tokens=token_ids
        )
        if body.return_token_strs:
            answer.token_strs = [
                token or "" for token in tokenizer.convert_ids_to_tokens(token_ids)
            ]
        return json_response(answer, headers)

    async def detokenize(service: Service, request: Request, fields: Fields) -> Response:
        tokenizer, strict = service.engine.tokenizer, service.options.strict_params
        body, headers = read_fields(fields, DetokenizeRequest, strict)
        service.resolve_model(body.model)
        unknown = [i for i in body.tokens if i >= tokenizer.vocab_size]
        if unknown:
            raise RequestError(
                f"[tokens] ids must be below {tokenizer.vocab_size}; got {unknown[0]}.", "tokens"
            )
        text = tokenizer.decode(body.tokens, skip_special_tokens=False)
        return json_response(DetokenizeResponse(text, text), headers)

    return [
        post_route(models, "/tokenize", tokenize),
        post_route(models, "/detokenize", detokenize),
    ]


async def _content_tokens(service: Service, body: TokenizeRequest) -> ContentTokens:
    tokenizer = service.engine.tokenizer
    content = body.content or ""
    parts = tokenizer.special_texts.cut(content) if body.parse_special is False else [content]
    token_ids = await encode_prompt(tokenizer, parts, bool(body.add_special))
    if not body.with_pieces:
        return ContentTokens(tokens=token_ids)
    return ContentTokens(tokens=[_piece(i, tokenizer.token_bytes(i)) for i in token_ids])


def _piece(token_id: int, data: bytes) -> Piece:
    try:
        return Piece(id=token_id, piece=data.decode())
    except UnicodeDecodeError:
        return Piece(id=token_id, piece=list(data))


async def _encode(service: Service, body: TokenizeRequest) -> list[int]:
    tokenizer = service.engine.tokenizer
    if body.prompt is not None:
        return await encode_prompt(tokenizer, body.prompt, body.add_special_tokens is not False)
    conversation = Conversation(
        body.messages or [],
        body.add_generation_prompt,
        body.continue_final_message,
        body.chat_template_kwargs,
        body.tools,
    )
    token_ids = await encode_prompt(tokenizer, conversation, bool(body.add_special_tokens))
    return await written_out(service, token_ids, pictures_of(service, conversation.messages))
